"""``clip-serve --triton`` with a real server in the places of NVIDIA's, whose model this package's backend runs.

The same server has a repository with TensorRT's settings, and sends its spans to a collector, here a small one.
"""

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fixtures.server import QUIET, Server, serving
from clip_client import ClipClient
from preprocess_ensemble.contract import DEFAULT_NAMES
from preprocess_ensemble.export.atomic_install import write
from preprocess_ensemble.model_repository.config import pending_files
from preprocess_ensemble.model_repository.tensorrt import Tensorrt
from tests.fixtures.models.exports import installed
from tests.fixtures.packaging.unpacked_triton import unpack_triton


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[str, list[Any]]]:
    """An OTLP collector over HTTP, which Triton sends JSON to: its URL, and the spans that came."""
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in request["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    received.extend(scope["spans"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked") / "tritonserver"
    unpack_triton(folder)
    return folder


@pytest.fixture(scope="module")
def staged(tiny_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository that ``clip-export --tensorrt`` writes, for a machine without a GPU."""
    folder = shutil.copytree(tiny_repository, tmp_path_factory.mktemp("staged") / "models")
    write(pending_files(folder, installed(folder), tensorrt=Tensorrt(version=11, cache=folder.parent)))
    encoder = folder / DEFAULT_NAMES.encoder / "config.pbtxt"
    encoder.write_text(encoder.read_text().replace("KIND_GPU", "KIND_AUTO"))
    return folder


@pytest.fixture(scope="module")
def server(unpacked: Path, staged: Path, collector: tuple[str, list[Any]]) -> Iterator[Server]:
    tracing = ("mode=opentelemetry", f"opentelemetry,url={collector[0]}", "rate=1", "level=TIMESTAMPS")
    batching = ("opentelemetry,bsp_schedule_delay=100",)
    options = [f"--trace-config={setting}" for setting in (*tracing, *batching)]
    with serving(staged, f"--triton={unpacked}", "--precision=fp32", *QUIET, "--", *options) as running:
        yield running


async def _embed(clip: ClipClient, photos: Path) -> None:
    (await clip.embed([photos / "coffee.jpg"])).raise_for_errors()


async def test_an_unpacked_server_embeds_with_tensorrts_settings(unpacked: Path, server: Server, photos: Path) -> None:
    """Triton ignores an accelerator for GPUs on the CPU. It reads the block, whose keys are the backend's."""
    async with ClipClient(server.grpc_url) as clip:
        assert (await clip.health()).ok, "the canary has its vector"
        await _embed(clip, photos)
    assert server.triton.exe() == str(unpacked / "bin" / "tritonserver")
    assert server.triton.environ()["NVIDIA_TF32_OVERRIDE"] == "0", "fp32 is not TF32"
    libraries = {Path(mapped.path).name for mapped in server.triton.memory_maps()}
    assert any(name.startswith("libtritonserver") for name in libraries)


async def test_tritons_spans_join_the_clients(server: Server, photos: Path, collector: tuple[str, list[Any]]) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="pip install opentelemetry-sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    # The provider of a process can be set once; no other test sets one.
    trace.set_tracer_provider(provider)

    def is_joined() -> bool:
        """Triton's span is the child of the request's; it comes after those of the models within it."""
        requests = {
            ("InferRequest", f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")
            for span in spans.get_finished_spans()
            if span.name == "clip_client.infer"
        }
        found = (tuple(map(span.get, ("name", "traceId", "parentSpanId"))) for span in list(collector[1]))
        return not requests.isdisjoint(found)

    async with ClipClient(server.grpc_url) as clip:
        with trace.get_tracer("test").start_as_current_span("caller"):
            await _embed(clip, photos)
        mine = {span.name: span for span in spans.get_finished_spans()}
        request, caller = mine["clip_client.infer"], mine["caller"]
        assert request.kind is trace.SpanKind.CLIENT
        assert request.parent is not None
        assert request.parent.span_id == caller.context.span_id
        attributes = dict(request.attributes or {})
        assert attributes["clip.images"] == 1
        assert not any(isinstance(value, str) and "coffee" in value for value in attributes.values())

        # Triton drops spans that it cannot send at once, so more than one request may be needed.
        deadline = time.monotonic() + 120
        while not is_joined():
            assert time.monotonic() < deadline, collector[1]
            await asyncio.sleep(0.5)
            if not is_joined():
                await _embed(clip, photos)

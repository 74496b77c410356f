"""Client spans, and Triton's own that join them: its OpenTelemetry mode sends to a collector, here a small one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from benchmarks.fixtures.server import serving
from clip_client import ClipClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("opentelemetry.sdk", reason="pip install opentelemetry-sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The provider of a process can be set once; no other test sets one.
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
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


async def test_tritons_spans_join_the_clients(
    tiny_repository: Path, spans: InMemorySpanExporter, collector: tuple[str, list[Any]]
) -> None:
    url, received = collector
    tracing = ("mode=opentelemetry", f"opentelemetry,url={url}", "rate=1", "level=TIMESTAMPS")
    batching = ("opentelemetry,bsp_schedule_delay=100",)
    options = [f"--trace-config={setting}" for setting in (*tracing, *batching)]

    def is_joined() -> bool:
        """Triton's span is the child of the request's; it comes after those of the models within it."""
        requests = {
            ("InferRequest", f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")
            for span in spans.get_finished_spans()
            if span.name == "clip_client.infer"
        }
        found = (tuple(map(span.get, ("name", "traceId", "parentSpanId"))) for span in list(received))
        return not requests.isdisjoint(found)

    async def embed(clip: ClipClient) -> None:
        (await clip.embed([Image.effect_noise((64, 64), 50).convert("RGB")])).raise_for_errors()

    with serving(tiny_repository, "--", *options) as server:
        async with ClipClient(server.grpc_url) as clip:
            with trace.get_tracer("test").start_as_current_span("caller"):
                await embed(clip)
            mine = {span.name: span for span in spans.get_finished_spans()}
            request, caller = mine["clip_client.infer"], mine["caller"]
            assert request.kind is trace.SpanKind.CLIENT
            assert request.parent is not None
            assert request.parent.span_id == caller.context.span_id
            attributes = dict(request.attributes or {})
            assert attributes["clip.images"] == 1
            assert not any(isinstance(value, str) and "noise" in value for value in attributes.values())

            # Triton drops spans that it cannot send at once, so more than one request may be needed.
            deadline = time.monotonic() + 120
            while not is_joined():
                assert time.monotonic() < deadline, received
                await asyncio.sleep(0.5)
                if not is_joined():
                    await embed(clip)

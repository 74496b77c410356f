"""What does each form of an image cost to send?

The model does no work, so this measures serialising, sending and parsing on loopback: FP32 as JSON, FP32 and uint8 in
binary over HTTP and gRPC, and the JPEG file over gRPC, by images per request. The tensors are ready in memory. Each
answer carries a checksum of its payload; a wrong one ends the run. The same follows over two slow lines, a relay in a
process of its own, beside the time that bytes and round trip alone would take.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from benchmarks import fixtures
from benchmarks.harness.experiment import Experiment, Run, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import median_of, of_rounds
from benchmarks.load.adapters import normalised
from benchmarks.load.loops import closed_loop
from benchmarks.load.slow_link import slow_link
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.testing.server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FORMS: Final[Mapping[str, str]] = {
    "fp32-json": "FP32 as JSON, HTTP",
    "fp32-http": "FP32, binary, HTTP",
    "fp32-grpc": "FP32, binary, gRPC",
    "uint8-grpc": "uint8, binary, gRPC",
    "jpeg-grpc": "JPEG file, gRPC",
}
SINKS: Final[Mapping[str, tuple[str, list[int]]]] = {
    "fp32": ("TYPE_FP32", [3, 224, 224]),
    "uint8": ("TYPE_UINT8", [224, 224, 3]),
    "jpeg": ("TYPE_STRING", [1]),
}
LINKS: Final[Mapping[str, tuple[float, float]]] = {"100 Mbit/s, 20 ms": (100e6, 20.0), "20 Mbit/s, 40 ms": (20e6, 40.0)}
"""Bits a second, and milliseconds there and back."""
LINK_FORMS: Final = ("fp32-json", "fp32-grpc", "uint8-grpc", "jpeg-grpc")
"""What is sent over slow lines: how a tensor is framed there matters less than its bytes."""


@contextmanager
def sinks() -> Iterator[tuple[str, str]]:
    """A tritonserver with the models above; gives its gRPC and HTTP addresses."""
    grpc, http = free_port(), free_port()
    with tempfile.TemporaryDirectory() as scratch:
        for name, (kind, dims) in SINKS.items():
            directory = Path(scratch) / f"sink_{name}" / "1"
            directory.mkdir(parents=True)
            shutil.copy(Path(fixtures.__path__[0], "sink_model.py"), directory / "model.py")
            config = model_config_pb2.ModelConfig(
                name=f"sink_{name}",
                backend="python",
                max_batch_size=32,
                input=[model_config_pb2.ModelInput(name="payload", data_type=kind, dims=dims)],
                output=[model_config_pb2.ModelOutput(name="sum", data_type="TYPE_FP64", dims=[1])],
                instance_group=[model_config_pb2.ModelInstanceGroup(kind="KIND_CPU", count=1)],
            )
            (directory.parent / "config.pbtxt").write_text(text_format.MessageToString(config))
        addresses = [f"--{service}-address=127.0.0.1" for service in ("grpc", "http")]
        command = [
            sys.executable,
            "-m",
            "preprocess_ensemble.serving.launcher",
            f"--model-repository={scratch}",
            *addresses,
        ]
        ports = [f"--grpc-port={grpc}", f"--http-port={http}", "--allow-metrics=false", "--log-error=true"]
        log = (Path(scratch) / "log").open("wb")
        process = subprocess.Popen([*command, *ports], stdout=log, stderr=log)
        try:
            _await_ready(f"127.0.0.1:{grpc}", process)
            yield f"127.0.0.1:{grpc}", f"127.0.0.1:{http}"
        finally:
            process.terminate()
            process.wait(60)
            log.close()


def _await_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    deadline = time.monotonic() + 60
    with triton.InferenceServerClient(url) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if client.is_server_ready():
                    return
            except InferenceServerException:
                time.sleep(0.1)
    raise RuntimeError("tritonserver did not start")


def payloads(files: Sequence[bytes], rows: int) -> dict[str, Any]:
    """The same photos in each form: (rows, ...) arrays, and files as an array of objects (rows, 1)."""
    config = PreprocessConfig(
        size=(224, 224), mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
    )
    chosen = [files[row % len(files)] for row in range(rows)]
    pixels, _ = Preprocessor(config).run([chosen])
    return {"fp32": normalised(pixels, config), "uint8": pixels, "jpeg": np.array(chosen, dtype=object)[:, None]}


async def measure_form(form: str, array: Any, grpc: str, http: str, seconds: float) -> dict[str, Any]:
    """Send ``array`` again and again, one request at a time; milliseconds, images a second and bytes of a request."""
    import aiohttp
    import tritonclient.grpc.aio as triton_grpc
    import tritonclient.http.aio as triton_http

    name, _, way = form.partition("-")
    rows = [np.frombuffer(row.item(), np.uint8) if name == "jpeg" else row for row in array]
    expected = [row.sum(dtype=np.float64) for row in rows]
    kind = {"fp32": "FP32", "uint8": "UINT8", "jpeg": "BYTES"}[name]
    async with AsyncExitStack() as stack:
        if way == "json":
            session = await stack.enter_async_context(aiohttp.ClientSession())

            async def send() -> list[float]:
                tensor = {
                    "name": "payload",
                    "datatype": kind,
                    "shape": list(array.shape),
                    "data": array.ravel().tolist(),
                }
                body = json.dumps({"inputs": [tensor]})
                async with session.post(f"http://{http}/v2/models/sink_{name}/infer", data=body) as response:
                    response.raise_for_status()
                    return list((await response.json())["outputs"][0]["data"])

            payload_bytes = len(json.dumps(array.ravel().tolist()))
        else:
            triton: Any = triton_grpc if way == "grpc" else triton_http
            client = await stack.enter_async_context(triton.InferenceServerClient(grpc if way == "grpc" else http))

            async def send() -> list[float]:
                tensor = triton.InferInput("payload", list(array.shape), kind)
                tensor.set_data_from_numpy(array)
                answer = await client.infer(f"sink_{name}", [tensor])
                return list(answer.as_numpy("sum").ravel())

            payload_bytes = sum(4 + len(row.item()) for row in array) if name == "jpeg" else array.nbytes
        if not np.allclose(await send(), expected):
            raise RuntimeError(f"{form}: the payload changed on its way")
        answers = await closed_loop(lambda _: send(), callers=1, seconds=seconds)
    p50 = statistics.median(answers.latencies_ms)
    return {"p50_ms": p50, "ms_per_image": p50 / len(array), "rate": 1e3 * len(array) / p50, "bytes": payload_bytes}


def over_links(point: Mapping[str, Any]) -> dict[str, float]:
    """Link -> milliseconds of a request there: as measured on loopback, plus bytes and round trip by arithmetic."""
    return {link: point["p50_ms"] + 8e3 * point["bytes"] / bits + trip for link, (bits, trip) in LINKS.items()}


def measure(run: Run) -> dict[str, Any]:
    """Measure each form and number of images on loopback and over each link."""
    options = run.options
    per_round = len(FORMS) * len(options.rows) + len(options.links) * len(LINK_FORMS) * len(options.link_rows)
    checkpoint = run.checkpoint(total=options.rounds * per_round)
    grpc, http = run.stack.enter_context(sinks())
    addresses = {"loopback": (grpc, http)}
    for link in options.links:
        bits_per_s, trip_ms = LINKS[link]
        line = {"megabits_per_s": bits_per_s / 1e6, "round_trip_ms": trip_ms}
        lines = [run.stack.enter_context(slow_link(int(url.rpartition(":")[2]), **line)) for url in (grpc, http)]
        addresses[link] = (lines[0], lines[1])
    for number in run.rounds:
        for link, urls in addresses.items():
            for count in options.rows if link == "loopback" else options.link_rows:
                arrays = payloads(run.files, count)
                for form in FORMS if link == "loopback" else LINK_FORMS:
                    array = arrays[form.partition("-")[0]]

                    def send(form: str = form, array: Any = array, urls: tuple[str, str] = urls) -> dict[str, Any]:
                        return asyncio.run(measure_form(form, array, *urls, options.seconds))

                    checkpoint.cell(f"{form} {count} images, {link}, round {number}", send)

    def median(form: str, count: int, link: str) -> dict[str, Any]:
        runs = of_rounds(checkpoint.cells, f"{form} {count} images, {link},")
        figures = {key: median_of(runs, key) for key in ("p50_ms", "ms_per_image", "bytes")}
        return {"form": form, "rows": count, **figures}

    points = [median(form, count, "loopback") for form in FORMS for count in options.rows]
    computed = {(point["form"], point["rows"]): over_links(point) for point in points}
    slow = [
        {"link": link, **median(form, count, link), "computed_ms": computed.get((form, count), {}).get(link)}
        for link in options.links
        for form in LINK_FORMS
        for count in options.link_rows
    ]
    rows: list[tuple[str, ...]] = []
    for point in points:
        times = (f"{point['bytes']:,.0f}", f"{point['p50_ms']:.2f}", f"{point['ms_per_image']:.3f}")
        rows.append((FORMS[point["form"]], str(point["rows"]), *times))
    show("One request to a null model, on loopback", ("form", "images", "bytes", "ms", "ms per image"), rows)
    if slow:
        over_lines: list[tuple[str, ...]] = []
        for point in slow:
            by_arithmetic = "" if point["computed_ms"] is None else f"{point['computed_ms']:.0f}"
            times = (f"{point['p50_ms']:.0f}", f"{point['ms_per_image']:.0f}", by_arithmetic)
            over_lines.append((point["link"], FORMS[point["form"]], str(point["rows"]), *times))
        show(
            "The same over slow lines",
            ("line", "form", "images", "ms", "ms per image", "ms, computed"),
            over_lines,
        )
    return {"summary": {"points": points, "labels": dict(FORMS), "over_links": slow}}


EXPERIMENT: Final = Experiment(
    "serialisation",
    __doc__,
    measure,
    (
        option("--rows", type=int, nargs="+", default=[1, 8, 32], help="images per request"),
        option("--links", nargs="*", choices=LINKS, default=list(LINKS), help="slow over_lines"),
        option("--link-rows", type=int, nargs="+", default=[1, 8], help="images per request over slow over_lines"),
        rounds(3),
        seconds(1.0, "per form, number of images and round"),
    ),
)

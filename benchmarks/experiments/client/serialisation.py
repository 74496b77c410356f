"""What does each form of an image cost to send?

The model does no work, so this measures serialising, sending and parsing on loopback: FP32 as JSON, FP32 and uint8 in
binary over HTTP and gRPC, and the JPEG file over gRPC, by images per request. The tensors are ready in memory. Each
answer carries a checksum of its payload; a wrong one ends the run. The same follows over two slow lines (a relay in a
process of its own), with the time that bytes and round trip alone would take.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from tritonclient.grpc import model_config_pb2

from benchmarks import fixtures
from benchmarks.fixtures.bare_encoder import exact_pixels
from benchmarks.fixtures.null_repository import write_config, write_null_repository
from benchmarks.harness.experiment import Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import median_of
from benchmarks.load.adapters import normalised
from benchmarks.load.loops import closed_loop
from benchmarks.load.slow_link import slow_link
from benchmarks.load.triton_requests import triton_requests
from preprocess_ensemble.imaging.transform import PreprocessConfig

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
CONFIG: Final = PreprocessConfig(
    size=(224, 224), mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
)
"""OpenAI's."""
LINK_FORMS: Final = ("fp32-json", "fp32-grpc", "uint8-grpc", "jpeg-grpc")
"""Sent over slow lines, where the framing of a tensor matters less than its bytes."""


def write_sinks(directory: Path) -> Path:
    """Write the three models above as a repository into ``directory`` and return it."""
    for name, (kind, dims) in SINKS.items():
        config = model_config_pb2.ModelConfig(
            name=f"sink_{name}",
            backend="python",
            max_batch_size=32,
            input=[model_config_pb2.ModelInput(name="payload", data_type=kind, dims=dims)],
            output=[model_config_pb2.ModelOutput(name="sum", data_type="TYPE_FP64", dims=[1])],
            instance_group=[model_config_pb2.ModelInstanceGroup(kind="KIND_CPU", count=1)],
        )
        shutil.copy(Path(fixtures.__path__[0], "sink_model.py"), write_config(directory, config) / "model.py")
    return directory


def payloads(files: Sequence[bytes], rows: int) -> dict[str, Any]:
    """The same photos in each form: (rows, ...) arrays, and files as an array of objects (rows, 1)."""
    chosen = [files[row % len(files)] for row in range(rows)]
    pixels = exact_pixels(chosen, CONFIG)
    return {"fp32": normalised(pixels, CONFIG), "uint8": pixels, "jpeg": np.array(chosen, dtype=object)[:, None]}


async def measure_form(form: str, array: Any, grpc: str, http: str, seconds: float) -> dict[str, Any]:
    """Send ``array`` again and again, one request at a time; milliseconds, images a second and bytes of a request."""
    name, _, protocol = form.partition("-")
    rows = [np.frombuffer(row.item(), np.uint8) if name == "jpeg" else row for row in array]
    expected = [row.sum(dtype=np.float64) for row in rows]
    if protocol == "json":
        payload_bytes = len(json.dumps(array.ravel().tolist()))
    else:
        payload_bytes = sum(4 + row.nbytes for row in rows) if name == "jpeg" else array.nbytes
    async with triton_requests(grpc if protocol == "grpc" else http, f"sink_{name}", ["sum"], protocol) as infer:
        (sums,) = await infer({"payload": array})
        if not np.allclose(sums.ravel(), expected):
            raise RuntimeError(f"{form}: the payload changed on its way")
        answers = await closed_loop(lambda _: infer({"payload": array}), callers=1, seconds=seconds)
    p50 = statistics.median(answers.latencies_ms)
    return {"p50_ms": p50, "ms_per_image": p50 / len(array), "rate": 1e3 * len(array) / p50, "bytes": payload_bytes}


def over_links(point: Mapping[str, Any]) -> dict[str, float]:
    """Link -> milliseconds of a request there: as measured on loopback, plus bytes and round trip by arithmetic."""
    return {link: point["p50_ms"] + 8e3 * point["bytes"] / bits + trip for link, (bits, trip) in LINKS.items()}


@experiment(
    option("--rows", type=int, nargs="+", default=[1, 8, 32], help="images per request"),
    option("--links", nargs="*", choices=LINKS, default=list(LINKS), help="slow lines"),
    option("--link-rows", type=int, nargs="+", default=[1, 8], help="images per request over slow lines"),
    rounds(3),
    seconds(1.0, "per form, number of images and round"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure each form and number of images on loopback and over each link."""
    options = run.options
    sinks = f"--model-repository={write_sinks(run.scratch / 'sinks')}"
    server = run.serve(write_null_repository(run.scratch / "null"), "--", sinks, http=True)
    addresses = {"loopback": (server.grpc_url, server.http_url.removeprefix("http://"))}
    for link in options.links:
        bits_per_s, trip_ms = LINKS[link]
        line = {"megabits_per_s": bits_per_s / 1e6, "round_trip_ms": trip_ms}
        grpc, http = (run.stack.enter_context(slow_link(url, **line)) for url in addresses["loopback"])
        addresses[link] = (grpc, http)
    cells = [
        *(("loopback", count, form) for count in options.rows for form in FORMS),
        *((link, count, form) for link in options.links for count in options.link_rows for form in LINK_FORMS),
    ]
    arrays = {count: payloads(run.files, count) for count in {*options.rows, *options.link_rows}}

    def send(link: str, count: int, form: str) -> dict[str, Any]:
        array = arrays[count][form.partition("-")[0]]
        return asyncio.run(measure_form(form, array, *addresses[link], options.seconds))

    found = run.in_rounds(
        {f"{form} {count} images, {link},": partial(send, link, count, form) for link, count, form in cells}
    )

    def median(link: str, count: int, form: str) -> dict[str, Any]:
        runs = found[f"{form} {count} images, {link},"]
        figures = {key: median_of(runs, key) for key in ("p50_ms", "ms_per_image", "bytes")}
        return {"form": form, "rows": count, **figures}

    points = [median("loopback", count, form) for form in FORMS for count in options.rows]
    computed = {(point["form"], point["rows"]): over_links(point) for point in points}
    slow = [
        {"link": link, **median(link, count, form), "computed_ms": computed.get((form, count), {}).get(link)}
        for link in options.links
        for form in LINK_FORMS
        for count in options.link_rows
    ]
    rows = [
        (
            FORMS[one["form"]],
            str(one["rows"]),
            f"{one['bytes']:,.0f}",
            f"{one['p50_ms']:.2f}",
            f"{one['ms_per_image']:.3f}",
        )
        for one in points
    ]
    show("One request to a null model, on loopback", ("form", "images", "bytes", "ms", "ms per image"), rows)
    rows = []
    for one in slow:
        times = (one["p50_ms"], one["ms_per_image"], one["computed_ms"])
        texts = ("" if time_ms is None else f"{time_ms:.0f}" for time_ms in times)
        rows.append((one["link"], FORMS[one["form"]], str(one["rows"]), *texts))
    if rows:
        show("The same over slow lines", ("line", "form", "images", "ms", "ms per image", "ms, computed"), rows)
    return {"summary": {"points": points, "labels": dict(FORMS), "over_links": slow}}

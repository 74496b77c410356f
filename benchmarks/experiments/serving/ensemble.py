"""What does the ensemble cost beside its parts, and which settings suit it?

The parts are a bare ONNX Runtime session on ready pixels, which is the upper limit, and open_clip's batched PyTorch
loop, which decodes too. All embed the same JPEG files, in turn in every round; the parts get batches in place of
callers. Beside the callers' times are Triton's own counters: what each step took, and which images shared a run.
Options of the server with several values measure every combination, each on a server of its own; ``--device cuda``
measures an NVIDIA card, with its power.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from benchmarks.fixtures.repositories import Vectors, bare_encoder, exact_pixels, preprocessing
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.harness.experiment import MODEL, PHOTOS, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import LEAST_COSINE, cosine_to_first, median_of, of_rounds, ratios, show, spread
from benchmarks.load.adapters import in_process, pytorch, ready_pixels, transport
from benchmarks.load.worker import measured, start_load
from preprocess_ensemble.contract import DEFAULT_NAMES

PARTS: Final = {
    "session": partial(in_process, load=ready_pixels),
    "pytorch": partial(in_process, load=partial(pytorch, precision="fp32")),
}
SATURATED: Final = 0.95
"""The server is full at the least number of callers that reaches this share of the best rate."""
CARD: Final = (
    option("--device", choices=("cpu", "cuda"), help="of the encoder; never fall back to the other"),
    option("--tf32", action="store_true", help="let CUDA round the inputs of fp32 products"),
    option("--graphs", action="store_true", help="CUDA graphs"),
)
SETTINGS: Final = (
    *CARD,
    *(
        option(name, type=int, nargs="+", metavar="N", help=f"{what}; with several values, all combinations are served")
        for name, what in (
            ("--max-batch-size", "of the encoder"),
            ("--encoders", "instances of the encoder"),
            ("--decoders", "instances of the preprocessor"),
            ("--delay-us", "max_queue_delay_microseconds of the encoder"),
        )
    ),
)


@experiment(
    REPOSITORY,
    MODEL,
    PHOTOS,
    *SETTINGS,
    option("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="measured beside the ensemble"),
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32, 128], help="callers, or images in a batch"),
    option("--rows", type=int, default=1, help="images in a request"),
    option("--load-processes", type=int, default=1, help="processes that share the callers"),
    rounds(3),
    seconds(4.0, "per system, number of callers and round"),
    option("--reference", type=Path, metavar="REPOSITORY", help="fp32 export to compare vectors with (default: this)"),
    option("--name", default="ensemble", help="of the result file"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    run.name = options.name
    settings = ServerSetting.every(options)
    parts = {name: start_load(run, PARTS[name], name=name) for name in options.parts}
    fp32 = options.reference or options.repository
    reference = cache(lambda: bare_encoder(fp32)(exact_pixels(run.files, preprocessing(fp32))))
    for number in run.rounds:
        for setting in settings:
            measure_round(run, setting, parts if setting is settings[0] else {}, f"round {number}", reference)
    cells = run.saved.cells
    served = [summary_of(setting, options.concurrency, cells) for setting in settings]
    summary: dict[str, Any] = {"settings": served, "parts": {}, "ratios": {}, "precision": run.passport.weights_dtype}
    for part in parts:
        results = {size: of_rounds(cells, f"{part} x{size}") for size in options.concurrency}
        beside = {size: of_rounds(cells, f"{settings[0].name} x{size}") for size in options.concurrency}
        summary["parts"][part] = {size: spread([one["rate"] for one in some]) for size, some in results.items()}
        summary["ratios"][part] = {size: spread(ratios(beside[size], some)) for size, some in results.items()}
    show("Medians of the rounds", rows_of(summary))
    return {"model": run.passport.id, "summary": summary}


def measure_round(
    run: Run, setting: ServerSetting, parts: Mapping[str, Any], number: str, reference: Callable[[], Vectors]
) -> None:
    """Start a server with this setting, and measure it and ``parts`` once; nothing if that was done already."""
    options, saved = run.options, run.saved
    if saved.has(*(f"{name} x{size} {number}" for name in (setting.name, *parts) for size in options.concurrency)):
        return
    with run.block():
        repository = run.stack.enter_context(setting.applied_to(options.repository))
        start = time.perf_counter()
        # fp32 on a CPU, as the parts have it; a card runs the export as it is.
        precision = () if options.device == "cuda" else ("--precision", "fp32")
        url = run.serve(repository, "--open-statistics", *precision).grpc_url
        ready_s = time.perf_counter() - start
        loads = [start_load(run, transport, url) for _ in range(options.load_processes)]
        cosine = cosine_to_first({"expected": reference(), "served": loads[0].ready})["served"]
        saved.cell(f"{setting.name} start {number}", lambda: {"seconds": ready_s, "cosine": cosine})
        for size in options.concurrency:
            for part, load in parts.items():
                saved.cell(f"{part} x{size} {number}", partial(load.ask, {"seconds": options.seconds, "rows": size}))
            order = {"seconds": options.seconds, "concurrency": size, "rows": options.rows}
            # A single caller needs a single process.
            active = loads if size > 1 else loads[:1]
            saved.cell(f"{setting.name} x{size} {number}", partial(measured, active, url, order))


def summary_of(setting: ServerSetting, sizes: Sequence[int], cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    starts = of_rounds(cells, f"{setting.name} start")
    cosine = min(one["cosine"] for one in starts)
    at = {size: point(of_rounds(cells, f"{setting.name} x{size}")) for size in sizes}
    best = max(one["rate"]["median"] for one in at.values())
    return {
        "name": setting.name,
        "setting": asdict(setting),
        "ready_s": median_of(starts, "seconds"),
        "cosine": cosine,
        "valid": cosine >= LEAST_COSINE,
        "at": at,
        "full_at": min(size for size, one in at.items() if one["rate"]["median"] >= SATURATED * best),
    }


def point(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of one cell, with the server's times of each step and the use of a card."""
    return {
        "rate": spread([run["rate"] for run in runs]),
        "latency_ms": {key: median_of((run["latency_ms"] for run in runs), key) for key in ("p50", "p95", "p99")},
        "mean_ms": median_of(runs, "mean_ms"),
        "server_ms": {
            step: {
                stage: statistics.median(run["models"][step]["mean_ms"].get(stage, 0.0) for run in runs)
                for stage in ("queue", "compute_infer")
            }
            for step in (DEFAULT_NAMES.preprocess, DEFAULT_NAMES.encoder)
        },
        "share_batched": median_of((run["models"][DEFAULT_NAMES.encoder] for run in runs), "share_batched"),
        "gpu": {key: median_of((run["gpu"] for run in runs), key) for key in runs[0]["gpu"]},
    }


def rows_of(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {
        f"{part} x{size}": {"images/s": rate["median"], "ensemble / part": summary["ratios"][part][size]["median"]}
        for part, sizes in summary["parts"].items()
        for size, rate in sizes.items()
    }
    for one in summary["settings"]:
        name = f"{one['name']}{'' if one['valid'] else ', INVALID'}"
        for size, found in one["at"].items():
            rows[f"{name} x{size}"] = {
                "images/s": found["rate"]["median"],
                "p50 ms": found["latency_ms"]["p50"],
                "p99 ms": found["latency_ms"]["p99"],
                "decode ms": found["server_ms"][DEFAULT_NAMES.preprocess]["compute_infer"],
                "queue ms": found["server_ms"][DEFAULT_NAMES.encoder]["queue"],
                "model ms": found["server_ms"][DEFAULT_NAMES.encoder]["compute_infer"],
                "share batched": found["share_batched"],
                "ready after s": one["ready_s"],
                "least cosine": one["cosine"],
            }
    return rows

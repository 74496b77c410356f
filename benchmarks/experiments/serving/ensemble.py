"""What does the ensemble cost beside its parts, and which settings suit it?

The parts are a bare ONNX Runtime session on ready pixels, which is the upper limit, and open_clip's batched PyTorch
loop, which decodes too. All embed the same JPEG files, in turn in every round; the parts get batches in place of
callers. Beside the callers' times are Triton's own counters: what each step took, and which images shared a run.
``--offered`` adds an open loop at shares of the best rate. Options of the server with several values measure every
combination, each on a server of its own; ``--device cuda`` measures an NVIDIA card, with its power.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from benchmarks.fixtures.bare_encoder import Vectors, reference_vectors
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.harness.experiment import MODEL, PHOTOS, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import LEAST_COSINE, cosine_to_first, median_of, of_rounds, ratios, spread
from benchmarks.load.loops import OPEN_TIMES
from benchmarks.load.triton_statistics import measured
from preprocess_ensemble.contract import ENCODER

PARTS: Final = ("session", "pytorch")
SATURATED: Final = 0.95
"""The server is full at the least number of callers that reaches this share of the best rate."""
SETTINGS: Final = (
    option("--device", choices=("cpu", "cuda"), help="of the encoder; never fall back to the other"),
    option("--tf32", action="store_true", help="let CUDA round the inputs of fp32 products"),
    option("--graphs", action="store_true", help="CUDA graphs; on a CPU fixed batch sizes"),
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
"""The options of :meth:`ServerSetting.every`."""


@experiment(
    REPOSITORY,
    MODEL,
    PHOTOS,
    *SETTINGS,
    option("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="measured beside the ensemble"),
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32, 128], help="callers, or images in a batch"),
    option("--rows", type=int, default=1, help="images in a request"),
    option("--load-processes", type=int, default=1, help="processes that share the callers"),
    option("--offered", type=float, nargs="*", default=[], help="shares of the best rate, for an open loop"),
    rounds(3),
    seconds(4.0, "per system, number of callers and round"),
    option("--reference", type=Path, metavar="REPOSITORY", help="fp32 export to compare vectors with (default: this)"),
    option("--tensorrt-cache", type=Path, metavar="DIR", help="serve with TensorRT; keeps engines here"),
    option("--start-timeout-s", type=float, help="of the server"),
    option("--name", default="ensemble", help="of the result file"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every part and every setting in turn."""
    run.name = run.options.name
    settings = ServerSetting.every(run.options)
    options = run.options
    cells = len(options.concurrency) * (len(options.parts) + len(settings))
    saved = run.checkpoint(total=options.rounds * (cells + len(settings) * (1 + len(options.offered))))
    parts = {name: run.load(name, name=name) for name in options.parts}
    reference = cache(lambda: reference_vectors(options.reference or options.repository, run.files))
    for number in run.rounds:
        for setting in settings:
            measure_round(run, setting, parts if setting is settings[0] else {}, f"round {number}", reference)
    served = [summary_of(setting, options.concurrency, options.offered, saved.cells) for setting in settings]
    summary: dict[str, Any] = {"settings": served, "parts": {}, "ratios": {}, "precision": run.passport.precision}
    for size in options.concurrency:
        found = {part: of_rounds(saved.cells, f"{part} x{size}") for part in parts}
        for part, results in found.items():
            summary["parts"].setdefault(part, {})[size] = spread([one["rate"] for one in results])
            of_ensemble = of_rounds(saved.cells, f"{settings[0].name} x{size}")
            summary["ratios"].setdefault(part, {})[size] = spread(ratios(of_ensemble, results))
    print_summary(summary)
    return {"model": run.passport.id, "summary": summary}


def measure_round(
    run: Run, setting: ServerSetting, parts: Mapping[str, Any], number: str, reference: Callable[[], Vectors]
) -> None:
    """Start a server with this setting, and measure it and ``parts`` once; nothing if that was done already."""
    options, saved = run.options, run.saved
    assert saved is not None
    closed = {size: f"{setting.name} x{size} {number}" for size in options.concurrency}
    opened = {share: f"{setting.name} offered {share:g} {number}" for share in options.offered}
    if saved.has(
        *closed.values(), *opened.values(), *(f"{part} x{size} {number}" for part in parts for size in closed)
    ):
        return
    with run.block():
        repository = run.stack.enter_context(setting.applied_to(options.repository))
        start = time.perf_counter()
        url = run.serve(repository, *server_options(options)).grpc_url
        ready_s = time.perf_counter() - start
        loads = [run.load("transport", url, name=f"load {n}") for n in range(options.load_processes)]
        cosine = cosine_to_first({"expected": reference(), "served": loads[0].ready["vectors"]})["served"]
        saved.cell(f"{setting.name} start {number}", lambda: {"seconds": ready_s, "cosine": cosine})
        for size, name in closed.items():
            for part, worker in parts.items():
                saved.cell(f"{part} x{size} {number}", partial(worker.ask, {"seconds": options.seconds, "rows": size}))
            order = {"seconds": options.seconds, "concurrency": size, "rows": options.rows}
            # A single caller needs a single process.
            saved.cell(name, partial(measured, loads if size > 1 else loads[:1], url, order))
        best = max(saved.cells[name]["rate"] for name in closed.values())
        for share, name in opened.items():
            # Each round draws its own times; a median over repetitions of one draw would describe that draw only.
            order = {"rate": share * best, "seconds": OPEN_TIMES * options.seconds, "seed": int(number.split()[1])}
            saved.cell(name, partial(measured, loads[:1], url, order))


def server_options(options: Any) -> list[str]:
    """The options of ``clip-serve``: fp32 on a CPU, as the parts have it; a card runs the export as it is."""
    found = ["--open-statistics", *(() if options.device == "cuda" else ("--precision", "fp32"))]
    if options.start_timeout_s is not None:
        found += ["--start-timeout-s", str(options.start_timeout_s)]
    if options.tensorrt_cache:
        found += ["--tensorrt", "--tensorrt-cache", str(options.tensorrt_cache)]
    return found


def summary_of(
    setting: ServerSetting, sizes: Sequence[int], shares: Sequence[float], cells: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Medians over the rounds of one setting, by number of callers and by offered share."""
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
        "offered": {share: point(of_rounds(cells, f"{setting.name} offered {share:g}")) for share in shares},
    }


def point(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of one cell, with the server's times of each step and the use of a card."""
    steps = {
        step: {
            stage: statistics.median(run["models"][step]["mean_ms"].get(stage, 0.0) for run in runs)
            for stage in ("queue", "compute_infer")
        }
        for step in ("clip_preprocess", ENCODER)
    }
    used: dict[str, float] = {}
    if all("gpu" in run for run in runs):
        samples = [sample for run in runs for sample in run["gpu"]["samples"]]
        for key in ("watts", "gpu_percent", "memory_mb"):
            if values := [sample[key] for sample in samples if key in sample]:
                used[key] = statistics.median(values)
        if joules := [run["gpu"]["images_per_joule"] for run in runs if run["gpu"]["images_per_joule"]]:
            used["images_per_joule"] = statistics.median(joules)
    return {
        "rate": spread([run["rate"] for run in runs]),
        "latency_ms": {key: median_of((run["latency_ms"] for run in runs), key) for key in ("p50", "p95", "p99")},
        "mean_ms": median_of(runs, "mean_ms"),
        "server_ms": steps,
        "share_batched": median_of((run["models"][ENCODER] for run in runs), "share_batched"),
        **({"gpu": used} if used else {}),
    }


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print a row for each part, number of callers and setting."""
    rows = [
        (f"{part} x{size}", f"{rate['median']:.1f}", *[""] * 6, f"{summary['ratios'][part][size]['median']:.3f}")
        for part, sizes in summary["parts"].items()
        for size, rate in sizes.items()
    ]
    for one in summary["settings"]:
        for what, found in (*one["at"].items(), *one["offered"].items()):
            label = f"{one['name']}, offered {what:g}" if isinstance(what, float) else f"{one['name']} x{what}"
            latency = (f"{found['latency_ms'][key]:.0f}" for key in ("p50", "p99"))
            decode, encode = found["server_ms"]["clip_preprocess"], found["server_ms"][ENCODER]
            steps = (decode["compute_infer"], encode["queue"], encode["compute_infer"])
            texts = (f"{ms:.1f}" for ms in steps)
            rows.append(
                (label, f"{found['rate']['median']:.1f}", *latency, *texts, f"{found['share_batched']:.0%}", "")
            )
        verdict = "" if one["valid"] else " INVALID"
        print(f"{one['name']}: ready after {one['ready_s']:.1f} s, least cosine {one['cosine']:.6f}{verdict}")
    headings = ("", "images/s", "p50 ms", "p99 ms", "decode ms", "queue ms", "model ms", "batched", "ensemble / part")
    show("Medians of the rounds", headings, rows)

"""How long does one answer take, and when is the server saturated?

Measures the cold start, one caller with 1 to 32 images per request, 1 to 128 callers with one image each, and an open
loop at shares of the saturated rate, which shows the latency that independent callers meet. Next to the caller's times
are the times of each step by the server's own counters.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.fixtures.bare_encoder import reference_vectors
from benchmarks.fixtures.server_setting import SERVER_OPTIONS, ServerSetting
from benchmarks.harness.experiment import PHOTOS, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import cosine_to_first, median_of, of_rounds
from benchmarks.load.triton_statistics import measured

SATURATED: Final = 0.95
"""The server is saturated at the least concurrency that reaches this share of the best rate."""
OFFERED: Final = (0.5, 0.8, 0.95)
"""Shares of the saturated rate that the open loop offers."""
OPEN_TIMES: Final = 3
"""Length of an open loop over that of a closed one: rare bursts make its p95, and near saturation a queue grows slowly
to its full length."""
STEPS: Final = ("clip_preprocess", "clip_encoder")


def saturation(curve: Sequence[Mapping[str, Any]]) -> int:
    """The least ``concurrency`` of ``curve`` whose ``rate`` is within 5 % of the best."""
    best = max(point["rate"] for point in curve)
    return int(min(point["concurrency"] for point in curve if point["rate"] >= SATURATED * best))


def _point(runs: Sequence[Mapping[str, Any]], **where: float) -> dict[str, Any]:
    """Medians over the rounds of one cell, including the server's times of each step."""
    latency = {key: median_of((run["latency_ms"] for run in runs), key) for key in ("p50", "p95", "p99")}
    if all("mean_ms" in run for run in runs):
        # Over the same requests as the server's means, so that their difference is the time outside the steps.
        latency["mean"] = median_of(runs, "mean_ms")
    steps = {}
    for step in STEPS:
        means = [run["models"][step]["mean_ms"] for run in runs]
        steps[step] = {stage: statistics.median(one.get(stage, 0.0) for one in means) for stage in means[0]}
    used = {"gpu": _card_use([run["gpu"] for run in runs])} if all("gpu" in run for run in runs) else {}
    return {**where, "rate": median_of(runs, "rate"), "latency_ms": latency, "server_ms": steps, **used}


def _card_use(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Power, utilisation and memory of the card, medians over samples and rounds; some cards lack some counters."""
    used = {
        key: statistics.median(values)
        for key in ("watts", "gpu_percent", "memory_mb")
        if (values := [sample[key] for run in runs for sample in run["samples"] if key in sample])
    }
    per_joule = [run["images_per_joule"] for run in runs if run["images_per_joule"] is not None]
    return {**used, **({"images_per_joule": statistics.median(per_joule)} if per_joule else {})}


@experiment(
    REPOSITORY,
    option("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32], help="images per request of one caller"),
    option("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128], help="numbers of callers"),
    option("--request-rows", type=int, default=1, help="images in each request of several callers"),
    option("--load-processes", type=int, default=1, help="processes that share these callers"),
    option("--offered", type=float, nargs="*", default=OFFERED, help="shares of the best rate, for the open loop"),
    rounds(3),
    seconds(4.0, "per cell and round"),
    PHOTOS,
    option("--reference", type=Path, metavar="REPOSITORY", help="fp32 export to compare vectors with"),
    option("--tensorrt-cache", type=Path, metavar="DIR", help="serve with TensorRT; keeps engines here"),
    option("--start-timeout-s", type=float, help="of the server"),
    *SERVER_OPTIONS,
)
def measure(run: Run) -> dict[str, Any]:
    """Measure curves by rows per request, by concurrency and by offered load."""
    options = run.options
    setting = ServerSetting.from_arguments(options)
    per_round = len(options.rows) + len(options.concurrency) + len(options.offered)
    checkpoint = run.checkpoint(total=1 + options.rounds * per_round)
    start_options = ["--open-statistics"]
    if options.start_timeout_s is not None:
        start_options += ["--start-timeout-s", str(options.start_timeout_s)]
    if options.tensorrt_cache:
        start_options += ["--tensorrt", "--tensorrt-cache", str(options.tensorrt_cache)]
    served = run.stack.enter_context(setting.applied_to(options.repository))
    start = time.perf_counter()
    server = run.serve(served, *start_options)
    cold = checkpoint.cell("cold start", lambda: {"seconds": time.perf_counter() - start})
    workers = [run.load("transport", server.grpc_url, name=f"load {n}") for n in range(options.load_processes)]
    vectors = [worker.ready["vectors"] for worker in workers]
    checked = {}
    if options.reference is not None:
        expected = reference_vectors(options.reference, run.files)
        checked = {"cosine": cosine_to_first({"reference": expected, "server": vectors[0]})["server"]}

    def ask(order: Mapping[str, float]) -> dict[str, Any]:
        # Only the curve by concurrency needs more than one process.
        load = workers if order.get("concurrency", 1) > 1 else workers[:1]
        return measured(load, server.grpc_url, {"seconds": options.seconds, **order})

    by_rows = {f"{rows} images a request,": {"rows": rows} for rows in options.rows}
    by_size = {f"x{size}": {"concurrency": size, "rows": options.request_rows} for size in options.concurrency}
    found = run.in_rounds({name: partial(ask, order) for name, order in {**by_rows, **by_size}.items()})
    by_concurrency = [_point(found[name], concurrency=order["concurrency"]) for name, order in by_size.items()]
    full = max(point["rate"] for point in by_concurrency)
    for number in run.rounds:
        for share in options.offered:
            # Each round draws its own times; a median over repetitions of one draw would describe that draw only.
            order = {"rate": share * full, "seed": number, "seconds": OPEN_TIMES * options.seconds}
            checkpoint.cell(f"offered {share:.0%} round {number}", partial(ask, order))
    summary = {
        "cold_start_s": cold["seconds"],
        "request_bytes": {"median": statistics.median(map(len, run.files)), "fp32_tensor": 3 * 224 * 224 * 4},
        "by_rows": [_point(found[name], **order) for name, order in by_rows.items()],
        "by_concurrency": by_concurrency,
        "saturated_at": saturation(by_concurrency),
        "by_offered": [
            _point(of_rounds(checkpoint.cells, f"offered {share:.0%}"), share=share, offered=share * full)
            for share in options.offered
        ],
        **checked,
        "setting": asdict(setting),
        "precision": run.passport.precision,
    }
    rows = []
    for kind, unit in (("by_rows", "rows"), ("by_concurrency", "concurrency"), ("by_offered", "share")):
        for point in summary[kind]:
            encoder, decoder = point["server_ms"]["clip_encoder"], point["server_ms"]["clip_preprocess"]
            latency = (f"{point['latency_ms'][name]:.0f}" for name in ("p50", "p95", "p99"))
            steps = (decoder["compute_infer"], encoder["queue"], encoder["compute_infer"])
            rows.append((f"{unit} {point[unit]:g}", f"{point['rate']:.1f}", *latency, *(f"{ms:.1f}" for ms in steps)))
    headings = ("", "images/s", "p50 ms", "p95 ms", "p99 ms", "decode ms", "queue ms", "model ms")
    show("One caller, growing requests; then growing concurrency; then an open loop", headings, rows)
    print(f"cold start {summary['cold_start_s']:.1f} s, saturated at concurrency {summary['saturated_at']}")
    return {"summary": summary}

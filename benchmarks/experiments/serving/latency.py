"""How long does one answer take, and when is the server full? ``python -m benchmarks latency``.

Cold start; one caller with 1 to 32 images a request; 1 to 128 callers with one image each, and the concurrency at which
more callers only wait longer; what the server says that each step took, beside what the caller saw; the bytes of a
request. An open loop at shares of the saturated rate shows the latency that independent callers meet.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.harness.checkpoint import Checkpoint
from benchmarks.harness.results import RESULTS
from benchmarks.harness.worker import Worker
from benchmarks.load.triton_statistics import measured
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.testing.sample_photos import write_thumbnails
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SATURATED: Final = 0.95
"""The server is full at the least concurrency that reaches this share of the best rate."""
OFFERED: Final = (0.5, 0.8, 0.95)
"""Shares of the saturated rate that the open loop offers."""
OPEN_TIMES: Final = 3
"""An open loop lasts so many times as long as a closed one: its p95 is made by the rare moments when many call at once,
and near saturation a queue takes long to become as long as it will be."""
STEPS: Final = ("clip_preprocess", "clip_encoder")


def saturation(curve: Sequence[Mapping[str, Any]]) -> int:
    """The least ``concurrency`` of ``curve`` whose ``rate`` is within 5 % of the best."""
    best = max(point["rate"] for point in curve)
    return int(min(point["concurrency"] for point in curve if point["rate"] >= SATURATED * best))


def _point(runs: Sequence[Mapping[str, Any]], **where: float) -> dict[str, Any]:
    """Medians over the rounds of one cell, the server's breakdown included."""
    latency = {name: statistics.median(run["latency_ms"][name] for run in runs) for name in ("p50", "p95", "p99")}
    steps = {
        step: {
            stage: statistics.median(run["models"][step]["mean_ms"].get(stage, 0.0) for run in runs)
            for stage in runs[0]["models"][step]["mean_ms"]
        }
        for step in STEPS
    }
    means = [run["mean_ms"] for run in runs if "mean_ms" in run]
    if means:
        # Of as many requests as the server's steps are means of, so that what they leave is the rest.
        latency["mean"] = statistics.median(means)
    return {**where, "rate": statistics.median(run["rate"] for run in runs), "latency_ms": latency, "server_ms": steps}


def measure(
    checkpoint: Checkpoint,
    repository: Path,
    *,
    rows: Sequence[int],
    concurrencies: Sequence[int],
    rounds: int,
    seconds: float,
) -> dict[str, Any]:
    """Fill the checkpoint and return curves by rows a request, by concurrency and by offered load."""
    with ExitStack() as stack:
        photos = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_thumbnails(photos)
        sizes = [path.stat().st_size for path in photos.iterdir()]
        begun = time.perf_counter()
        server = stack.enter_context(serving(repository, *QUIET, "--open-statistics"))
        cold = checkpoint.cell("cold start", lambda: {"seconds": time.perf_counter() - begun})
        options = ("--url", server.grpc_url, "--photos", str(photos), "--repository", str(repository))
        worker = stack.enter_context(Worker("load", "benchmarks.load.worker", "transport", *options))

        def cell(name: str, **order: float) -> None:
            checkpoint.cell(name, lambda: measured(worker, server.grpc_url, {"seconds": seconds, **order}))

        numbers = range(1, rounds + 1)
        for number in numbers:
            for count in rows:
                cell(f"{count} images a request, round {number}", rows=count, concurrency=1)
            for size in concurrencies:
                cell(f"x{size} round {number}", concurrency=size)
        by_concurrency = [
            _point([checkpoint.cells[f"x{size} round {n}"] for n in numbers], concurrency=size)
            for size in concurrencies
        ]
        full = max(point["rate"] for point in by_concurrency)
        for number in numbers:
            for share in OFFERED:
                # Other moments in each round: a median over repetitions of one draw would be that draw's.
                order = {"rate": share * full, "seed": number, "seconds": OPEN_TIMES * seconds}
                cell(f"offered {share:.0%} round {number}", **order)
    return {
        "cold_start_s": cold["seconds"],
        "request_bytes": {"median": statistics.median(sizes), "fp32_tensor": 3 * 224 * 224 * 4},
        "by_rows": [
            _point([checkpoint.cells[f"{count} images a request, round {n}"] for n in numbers], rows=count)
            for count in rows
        ],
        "by_concurrency": by_concurrency,
        "saturated_at": saturation(by_concurrency),
        "by_offered": [
            _point(
                [checkpoint.cells[f"offered {share:.0%} round {n}"] for n in numbers], share=share, offered=share * full
            )
            for share in OFFERED
        ],
    }


def main() -> None:
    """Measure, print, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="per cell and round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    plan = {
        "rows": arguments.rows,
        "concurrencies": arguments.concurrency,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
    }
    passport = installed_passport(arguments.repository)
    total = 1 + arguments.rounds * (len(arguments.rows) + len(arguments.concurrency) + len(OFFERED))
    checkpoint = Checkpoint("latency", {**plan, "model": passport and passport.id}, total=total)
    summary = measure(checkpoint, arguments.repository, **plan)

    table = Table(title="One caller, growing requests; then growing concurrency; then an open loop")
    for heading in ("", "images/s", "p50 ms", "p95 ms", "p99 ms", "decode ms", "queue ms", "model ms"):
        table.add_column(heading, justify="right")
    for kind, unit in (("by_rows", "rows"), ("by_concurrency", "concurrency"), ("by_offered", "share")):
        for point in summary[kind]:
            encoder, decoder = point["server_ms"]["clip_encoder"], point["server_ms"]["clip_preprocess"]
            latency = (f"{point['latency_ms'][name]:.0f}" for name in ("p50", "p95", "p99"))
            steps = (decoder["compute_infer"], encoder["queue"], encoder["compute_infer"])
            table.add_row(f"{unit} {point[unit]:g}", f"{point['rate']:.1f}", *latency, *(f"{ms:.1f}" for ms in steps))
    Console().print(table)
    print(f"cold start {summary['cold_start_s']:.1f} s, full at concurrency {summary['saturated_at']}")
    print(f"kept in {checkpoint.finish({'summary': summary}, arguments.results)}")


if __name__ == "__main__":
    main()

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
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.fixtures.server_setting import ServerSetting, add_server_options
from benchmarks.harness.checkpoint import CHECKPOINTS, Checkpoint
from benchmarks.harness.results import RESULTS
from benchmarks.harness.rounds import cosine_to_first
from benchmarks.harness.worker import Worker
from benchmarks.load.reference import reference_vectors
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
AS_IT_IS: Final = ServerSetting()
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
    point = {**where, "rate": statistics.median(run["rate"] for run in runs), "latency_ms": latency, "server_ms": steps}
    if all("gpu" in run for run in runs):
        point["gpu"] = _card_use([run["gpu"] for run in runs])
    return point


def _card_use(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the card used, medians over samples and rounds; cards tell more or less."""
    used = {
        key: statistics.median(values)
        for key in ("watts", "gpu_percent", "memory_mb")
        if (values := [sample[key] for run in runs for sample in run["samples"] if key in sample])
    }
    per_joule = [run["images_per_joule"] for run in runs if run["images_per_joule"] is not None]
    return {**used, **({"images_per_joule": statistics.median(per_joule)} if per_joule else {})}


def measure(
    checkpoint: Checkpoint,
    repository: Path,
    *,
    rows: Sequence[int],
    concurrencies: Sequence[int],
    rounds: int,
    seconds: float,
    offered: Sequence[float] = OFFERED,
    request_rows: int = 1,
    load_processes: int = 1,
    setting: ServerSetting = AS_IT_IS,
    server_options: Sequence[str] = (),
    photos: Path | None = None,
    reference: Path | None = None,
) -> dict[str, Any]:
    """Fill the checkpoint and return curves by rows a request, by concurrency and by offered load.

    The requests of the curve by concurrency carry ``request_rows`` images and come from ``load_processes``. ``photos``
    is a folder of JPEG files (default: thumbnails of 256 px), and ``reference`` the repository of the fp32 export that
    the vectors are compared with.
    """
    with ExitStack() as stack:
        if photos is None:
            photos = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_thumbnails(photos)
        sizes = [path.stat().st_size for path in photos.iterdir()]
        served = stack.enter_context(setting.applied_to(repository))
        start = time.perf_counter()
        server = stack.enter_context(serving(served, *QUIET, "--open-statistics", *server_options))
        cold = checkpoint.cell("cold start", lambda: {"seconds": time.perf_counter() - start})
        options = ("--url", server.grpc_url, "--photos", str(photos), "--repository", str(repository))
        workers = [
            stack.enter_context(Worker(f"load {number}", "benchmarks.load.worker", "transport", *options))
            for number in range(load_processes)
        ]
        vectors = [worker.ready["vectors"] for worker in workers]
        checked = {}
        if reference is not None:
            expected = reference_vectors(reference, photos)
            checked = {"cosine": cosine_to_first({"reference": expected, "server": vectors[0]})["server"]}

        def cell(name: str, **order: float) -> None:
            # Only the curve by concurrency needs more than one process.
            load = workers if order.get("concurrency", 1) > 1 else workers[0]
            checkpoint.cell(name, lambda: measured(load, server.grpc_url, {"seconds": seconds, **order}))

        numbers = range(1, rounds + 1)
        for number in numbers:
            for count in rows:
                cell(f"{count} images a request, round {number}", rows=count, concurrency=1)
            for size in concurrencies:
                cell(f"x{size} round {number}", concurrency=size, rows=request_rows)
        by_concurrency = [
            _point([checkpoint.cells[f"x{size} round {n}"] for n in numbers], concurrency=size)
            for size in concurrencies
        ]
        full = max(point["rate"] for point in by_concurrency)
        for number in numbers:
            for share in offered:
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
            for share in offered
        ],
        **checked,
    }


def main() -> None:
    """Measure, print, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32], help="of one caller's requests")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--request-rows", type=int, default=1, help="images in each request of several callers")
    parser.add_argument("--load-processes", type=int, default=1, help="that share these callers")
    parser.add_argument("--offered", type=float, nargs="*", default=OFFERED, help="shares of the best rate, open loop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="per cell and round")
    parser.add_argument("--photos", type=Path, metavar="DIR", help="JPEG files (default: thumbnails, made here)")
    parser.add_argument("--reference", type=Path, metavar="REPOSITORY", help="fp32 export to compare vectors with")
    parser.add_argument("--tensorrt-cache", type=Path, metavar="DIR", help="serve with TensorRT; engines are kept here")
    parser.add_argument("--start-timeout-s", type=float, help="of the server")
    parser.add_argument("--checkpoints", type=Path, default=CHECKPOINTS, metavar="DIR")
    parser.add_argument("--results", type=Path, default=RESULTS)
    add_server_options(parser)
    arguments = parser.parse_args()
    plan = {
        "rows": arguments.rows,
        "concurrencies": arguments.concurrency,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "offered": arguments.offered,
        "request_rows": arguments.request_rows,
        "load_processes": arguments.load_processes,
    }
    setting = ServerSetting.from_arguments(arguments)
    server_options = []
    if arguments.start_timeout_s is not None:
        server_options += ["--start-timeout-s", str(arguments.start_timeout_s)]
    if arguments.tensorrt_cache:
        server_options += ["--tensorrt", "--tensorrt-cache", str(arguments.tensorrt_cache)]
    passport = installed_passport(arguments.repository)
    total = 1 + arguments.rounds * (len(arguments.rows) + len(arguments.concurrency) + len(arguments.offered))
    checkpoint = Checkpoint(
        "latency",
        {**plan, "setting": asdict(setting), "model": passport and passport.id},
        arguments.checkpoints,
        total=total,
    )
    summary = measure(
        checkpoint,
        arguments.repository,
        **plan,
        setting=setting,
        server_options=server_options,
        photos=arguments.photos,
        reference=arguments.reference,
    )
    summary |= {"setting": asdict(setting), "precision": passport and passport.precision}

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

"""How long should a batch wait for company, and how many instances? ``python -m benchmarks queue_delay``.

The encoder's ``max_queue_delay_microseconds`` x instances x concurrency, one image a request. Triton's own statistics
tell how many images really shared a run, and in what batches. The recommendation is derived from the figures by
:func:`recommend`, not written by hand.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.fixtures.server_setting import ServerSetting, add_session_options
from benchmarks.harness.checkpoint import CHECKPOINTS, Checkpoint
from benchmarks.harness.results import RESULTS
from benchmarks.harness.worker import Worker
from benchmarks.load.triton_statistics import measured
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.testing.sample_photos import write_thumbnails
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AS_IT_IS: Final = ServerSetting()
TIE: Final = 0.03
"""Settings whose images per second or latencies differ by less than this share are equal on any machine."""


def recommend(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Choose delay and instances from cells of ``delay_us``, ``instances``, ``concurrency``, ``rate`` and ``p50_ms``.

    First throughput at the highest concurrency: what ties with the best. Of those, what answers a lone caller soonest,
    or ties with it; of those, the fewest instances, then the shortest delay. Two settings tie where their medians
    differ by less than :data:`TIE`, or where their rounds (``rates``, ``p50s_ms``) overlap: the noise is as large.
    """
    highest = max(cell["concurrency"] for cell in cells)
    lowest = min(cell["concurrency"] for cell in cells)
    by_setting: dict[tuple[int, int], dict[int, Mapping[str, Any]]] = {}
    for cell in cells:
        by_setting.setdefault((cell["instances"], cell["delay_us"]), {})[cell["concurrency"]] = cell
    most = max((at[highest] for at in by_setting.values()), key=lambda cell: cell["rate"])
    fast = {setting: at for setting, at in by_setting.items() if _as_fast(at[highest], most)}
    soonest = min((at[lowest] for at in fast.values()), key=lambda cell: cell["p50_ms"])
    instances, delay_us = min(setting for setting, at in fast.items() if _as_soon(at[lowest], soonest))
    chosen = fast[instances, delay_us]
    return {
        "instances": instances,
        "max_queue_delay_microseconds": delay_us,
        "why": (
            f"{chosen[highest]['rate']:.1f} images/s at concurrency {highest} (best of all: {most['rate']:.1f}) and "
            f"{chosen[lowest]['p50_ms']:.0f} ms at concurrency {lowest} (best of these: {soonest['p50_ms']:.0f} ms)"
        ),
    }


def _as_fast(cell: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    return bool(cell["rate"] >= (1 - TIE) * best["rate"] or max(cell["rates"]) >= min(best["rates"]))


def _as_soon(cell: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    return bool(cell["p50_ms"] <= (1 + TIE) * best["p50_ms"] or min(cell["p50s_ms"]) <= max(best["p50s_ms"]))


def measure(
    checkpoint: Checkpoint,
    repository: Path,
    *,
    delays_us: Sequence[int],
    instances: Sequence[int],
    concurrencies: Sequence[int],
    rounds: int,
    seconds: float,
    setting: ServerSetting = AS_IT_IS,
    photos: Path | None = None,
) -> list[dict[str, Any]]:
    """Fill the checkpoint and return one cell for each setting and concurrency, medians over the rounds."""
    with tempfile.TemporaryDirectory() as scratch:
        if photos is None:
            photos = Path(scratch)
            write_thumbnails(photos)
        for number in range(1, rounds + 1):
            for count in instances:
                for delay_us in delays_us:
                    names = {size: f"{count} x {delay_us} us x{size} round {number}" for size in concurrencies}
                    if checkpoint.has(*names.values()):
                        continue

                    with ExitStack() as stack:
                        changed = replace(setting, encoders=count, delay_us=delay_us)
                        served = stack.enter_context(changed.applied_to(repository))
                        server = stack.enter_context(serving(served, *QUIET, "--open-statistics"))
                        options = ("--url", server.grpc_url, "--photos", str(photos), "--repository", str(repository))
                        worker = stack.enter_context(Worker("load", "benchmarks.load.worker", "transport", *options))
                        for size, name in names.items():
                            order = {"seconds": seconds, "concurrency": size}
                            checkpoint.cell(name, partial(measured, worker, server.grpc_url, order))
    return [
        _median(
            [checkpoint.cells[f"{count} x {delay_us} us x{size} round {number}"] for number in range(1, rounds + 1)],
            instances=count,
            delay_us=delay_us,
            concurrency=size,
        )
        for count in instances
        for delay_us in delays_us
        for size in concurrencies
    ]


def _median(runs: Sequence[Mapping[str, Any]], **setting: int) -> dict[str, Any]:
    batches: Counter[int] = Counter()
    for run in runs:
        batches.update({int(size): count for size, count in run["models"][ENCODER]["batches"].items()})
    return {
        **setting,
        "rate": statistics.median(run["rate"] for run in runs),
        "rates": [run["rate"] for run in runs],
        "p50_ms": statistics.median(run["latency_ms"]["p50"] for run in runs),
        "p50s_ms": [run["latency_ms"]["p50"] for run in runs],
        "p99_ms": statistics.median(run["latency_ms"]["p99"] for run in runs),
        "share_batched": statistics.median(run["models"][ENCODER]["share_batched"] for run in runs),
        "batches": {str(size): batches[size] for size in sorted(batches)},
    }


def main() -> None:
    """Measure, print, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--delays-us", type=int, nargs="+", default=[0, 1000, 10_000, 100_000])
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="per cell and round")
    parser.add_argument("--photos", type=Path, metavar="DIR", help="JPEG files (default: thumbnails, made here)")
    parser.add_argument("--checkpoints", type=Path, default=CHECKPOINTS, metavar="DIR")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--decoders", type=int, metavar="N", help="instances of the preprocessor")
    add_session_options(parser)
    arguments = parser.parse_args()
    plan = {
        "delays_us": arguments.delays_us,
        "instances": arguments.instances,
        "concurrencies": arguments.concurrency,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
    }
    passport = installed_passport(arguments.repository)
    total = len(arguments.delays_us) * len(arguments.instances) * len(arguments.concurrency) * arguments.rounds
    setting = ServerSetting.from_arguments(arguments)
    identity = {"setting": asdict(setting), "model": passport and passport.id}
    checkpoint = Checkpoint("queue_delay", {**plan, **identity}, arguments.checkpoints, total=total)
    cells = measure(checkpoint, arguments.repository, **plan, setting=setting, photos=arguments.photos)
    advice = recommend(cells)

    table = Table(title="Images per second (share of images that shared a run)")
    table.add_column("instances, delay")
    for size in arguments.concurrency:
        table.add_column(f"x{size}", justify="right")
    for count in arguments.instances:
        for delay_us in arguments.delays_us:
            row = [cell for cell in cells if (cell["instances"], cell["delay_us"]) == (count, delay_us)]
            shown = (f"{cell['rate']:.1f} ({cell['share_batched']:.0%})" for cell in row)
            table.add_row(f"{count}, {delay_us / 1000:g} ms", *shown)
    Console().print(table)
    print(
        f"recommended: {advice['instances']} instance(s), {advice['max_queue_delay_microseconds']} us: {advice['why']}"
    )
    print(f"kept in {checkpoint.finish({'summary': {'cells': cells, 'recommended': advice}}, arguments.results)}")


if __name__ == "__main__":
    main()

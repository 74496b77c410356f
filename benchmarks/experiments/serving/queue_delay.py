"""How long should a batch wait for more images, on how many instances?

Measures the encoder's ``max_queue_delay_microseconds`` x instances x concurrency, one image per request. Triton's own
statistics tell how many images shared a run, and in what batches. :func:`recommend` derives the recommendation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from benchmarks.fixtures.server_setting import DECODERS, ServerSetting, session_options
from benchmarks.harness.experiment import PHOTOS, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import median_of, of_rounds
from benchmarks.load.triton_statistics import measured
from preprocess_ensemble.contract import ENCODER

TIE: Final = 0.03
"""Settings whose images per second or latencies differ by less than this share are equal on any machine."""


def recommend(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Choose delay and instances from cells of ``delay_us``, ``instances``, ``concurrency``, ``rate`` and ``p50_ms``.

    First come the settings that tie with the best throughput at the highest concurrency; of those, the settings that
    tie with the shortest latency of a single caller; of those, the fewest instances, then the shortest delay. Two
    settings tie if their medians differ by less than :data:`TIE`, or if their rounds (``rates``, ``p50s_ms``) overlap:
    the noise is as large.
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


@experiment(
    REPOSITORY,
    option("--delays-us", type=int, nargs="+", default=[0, 1000, 10_000, 100_000], help="microseconds to wait"),
    option("--instances", type=int, nargs="+", default=[1, 2], help="of the encoder"),
    option("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64], help="numbers of callers"),
    rounds(2),
    seconds(3.0, "per cell and round"),
    PHOTOS,
    DECODERS,
    *session_options(),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every setting on a server of its own."""
    options = run.options
    common = ServerSetting.from_arguments(options)
    settings = [(count, delay_us) for count in options.instances for delay_us in options.delays_us]
    checkpoint = run.checkpoint(total=len(settings) * len(options.concurrency) * options.rounds)
    for number in run.rounds:
        for count, delay_us in settings:
            names = {size: f"{count} x {delay_us} us x{size} round {number}" for size in options.concurrency}
            if checkpoint.has(*names.values()):
                continue
            setting = replace(common, encoders=count, delay_us=delay_us)
            with run.block():
                changed = run.stack.enter_context(setting.applied_to(options.repository))
                url = run.serve(changed, "--open-statistics").grpc_url
                worker = run.load("transport", url)
                for size, name in names.items():
                    order = {"seconds": options.seconds, "concurrency": size}
                    checkpoint.cell(name, partial(measured, [worker], url, order))
    cells = []
    for count, delay_us in settings:
        for size in options.concurrency:
            medians = _medians(of_rounds(checkpoint.cells, f"{count} x {delay_us} us x{size}"))
            cells.append({"instances": count, "delay_us": delay_us, "concurrency": size, **medians})
    advice = recommend(cells)
    rows = []
    for count, delay_us in settings:
        row = [cell for cell in cells if (cell["instances"], cell["delay_us"]) == (count, delay_us)]
        shown = (f"{cell['rate']:.1f} ({cell['share_batched']:.0%})" for cell in row)
        rows.append((f"{count}, {delay_us / 1000:g} ms", *shown))
    headings = ("instances, delay", *(f"x{size}" for size in options.concurrency))
    show("Images per second (share of the images that shared a run)", headings, rows)
    delay_us = advice["max_queue_delay_microseconds"]
    print(f"recommended: {advice['instances']} instance(s), {delay_us} us: {advice['why']}")
    return {"summary": {"cells": cells, "recommended": advice}}


def _medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    batches: Counter[int] = Counter()
    for run in runs:
        batches.update({int(size): count for size, count in run["models"][ENCODER]["batches"].items()})
    return {
        "rate": median_of(runs, "rate"),
        "rates": [run["rate"] for run in runs],
        "p50_ms": median_of((run["latency_ms"] for run in runs), "p50"),
        "p50s_ms": [run["latency_ms"]["p50"] for run in runs],
        "p99_ms": median_of((run["latency_ms"] for run in runs), "p99"),
        "share_batched": median_of((run["models"][ENCODER] for run in runs), "share_batched"),
        "batches": {str(size): batches[size] for size in sorted(batches)},
    }

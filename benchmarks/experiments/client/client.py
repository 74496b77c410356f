"""How fast is the client next to tritonclient and perf_analyzer?

ClipClient, tritonclient's asyncio class and perf_analyzer load the same server in a closed loop, each from a process of
its own, one after the other in every round. All send the same photos unchanged, in calls of the same number of rows,
and read the same four outputs. No process is pinned, so each shares the cores with the server. For the other two a call
is a request. ClipClient packs the images of concurrent callers into requests of up to 32 rows: with one image per
caller that is its main difference, and with 32 rows per call the requests are alike. perf_analyzer builds its requests
before it measures and ignores the answers; the other two start from the files' bytes and end with arrays. A model that
does no work shows the clients; with the real encoder all should be as fast as the encoder. CPU time is that of the
load generator, without the server's.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.serving.perf_analyzer import Unstable, analyze, find_or_install, write_input
from benchmarks.fixtures.null_repository import write_null_repository
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from preprocess_ensemble.contract import ENSEMBLE

Cell = tuple[int, int]

ADAPTERS: Final = {"ClipClient": "client", "tritonclient": "tritonclient"}
SYSTEMS: Final = (*ADAPTERS, "perf_analyzer")


def measure_perf_analyzer(url: str, data: Path, order: dict[str, Any], rate: float) -> dict[str, Any]:
    """The same load from perf_analyzer; its CPU time over what it achieved in all the time that it ran.

    It measures in three windows or more until they agree; each is about half as long as the others measure, at
    ``rate``.
    """
    requests = max(1, round(rate * order["seconds"] / 2 / order["rows"]))
    load = {key: order[key] for key in ("concurrency", "rows")}
    installed = find_or_install()  # a child process too, whose CPU time does not count
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    try:
        figures = analyze(
            installed, model=ENSEMBLE, url=url, data=data, requests=requests, stability_percent=20, **load
        )
    except Unstable:
        return {"rate": None}  # for this round
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    achieved = figures["images_per_second"]
    return {
        "rate": achieved,
        "latency_ms": {"p50": figures["p50_ms"], "p99": figures["p99_ms"]},
        "cpu_us_per_image": 1e6 * cpu / (achieved * took),
    }


def measure_model(run: Run, model: str, cells: list[Cell], rounds: range) -> dict[str, list[dict[str, Any]]]:
    """Measure all systems in turn, round after round, with one encoder; return the results by cell and system."""
    data = run.scratch / "input.json"
    write_input(data, run.files)
    rates: dict[Cell, float] = {}
    with run.block():
        null = write_null_repository(run.scratch / "null") if model == "null" else None
        url = run.serve(null, "--open-statistics").grpc_url  # perf_analyzer reads statistics.
        workers = {system: run.load(adapter, url, name=system) for system, adapter in ADAPTERS.items()}

        def measured(cell: Cell, system: str) -> dict[str, Any]:
            order = {"concurrency": cell[0], "rows": cell[1], "seconds": run.options.seconds}
            if system in workers:
                result = workers[system].ask(order)
                rates[cell] = result["rate"]
            else:
                # After an interruption the run may continue with perf_analyzer, without a rate.
                rate = rates.get(cell) or workers["ClipClient"].ask(order)["rate"]
                result = measure_perf_analyzer(url, data, order, rate)
            return {"offered_in_flight": cell[0] * cell[1], **result}

        every = [(cell, system) for cell in cells for system in SYSTEMS]
        return run.in_rounds({named(model, *one): partial(measured, *one) for one in every}, rounds)


def named(model: str, cell: Cell, system: str) -> str:
    """The name of a measurement."""
    return f"{model}, {cell[0]} x {cell[1]}, {system}"


def summarize(measured: Mapping[str, Any], model: str, cells: list[Cell]) -> dict[str, Any]:
    """Medians over the rounds, and ClipClient's rate over perf_analyzer's within each round; None without figures."""

    def median(values: Iterable[float]) -> float | None:
        known = list(values)
        return statistics.median(known) if known else None

    found: dict[str, Any] = {}
    for cell in cells:
        of = {system: measured[named(model, cell, system)] for system in SYSTEMS}
        pairs = zip(of["ClipClient"], of["perf_analyzer"], strict=True)
        stable = {name: [one for one in results if one["rate"] is not None] for name, results in of.items()}
        found[f"{cell[0]} x {cell[1]}"] = {
            "to_perf_analyzer": median(ours["rate"] / one["rate"] for ours, one in pairs if one["rate"]),
            "images_per_second": {name: median(one["rate"] for one in runs) for name, runs in stable.items()},
            "cpu_us_per_image": {
                name: median(one["cpu_us_per_image"] for one in runs) for name, runs in stable.items()
            },
            "p50_ms": {name: median(one["latency_ms"]["p50"] for one in runs) for name, runs in stable.items()},
        }
    return found


def _text(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


@experiment(
    REPOSITORY,
    option("--models", nargs="+", choices=("null", "real"), default=["null", "real"], help="encoders"),
    option("--concurrency", type=int, nargs="+", default=[1, 16, 64], help="numbers of callers"),
    option("--rows", type=int, nargs="+", default=[1, 32], help="images per call"),
    rounds(3, "with the null encoder"),
    option("--real-rounds", type=int, default=2, help="with the real encoder"),
    option("--real-in-flight", type=int, default=64, help="most images in flight with the real encoder, which is slow"),
    seconds(2.5, "per client and round"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure with the null encoder and with the real one."""
    options = run.options
    run.checkpoint()
    headings = ("callers x rows", *(f"{name}: images/s, CPU us" for name in SYSTEMS), "to perf_analyzer")
    summaries: dict[str, Any] = {}
    for model in options.models:
        most = options.real_in_flight if model == "real" else math.inf
        every = ((concurrency, rows) for rows in options.rows for concurrency in options.concurrency)
        cells = [cell for cell in every if math.prod(cell) <= most]
        rounds = run.rounds if model == "null" else range(1, options.real_rounds + 1)
        summaries[model] = summarize(measure_model(run, model, cells, rounds), model, cells)
        lines = []
        for cell, line in summaries[model].items():
            rates, costs = line["images_per_second"], line["cpu_us_per_image"]
            pairs = (f"{_text(rates[name])}, {_text(costs[name])}" for name in SYSTEMS)
            lines.append((cell, *pairs, _text(line["to_perf_analyzer"], 2)))
        show(f"{model} encoder, medians of the rounds", headings, lines, width=140)
    return {"summary": summaries}

"""What every benchmark shares: workers in processes of their own, interleaved rounds, a journal that a stopped run
continues from, and the check that all systems do the same work.

The machine is noisy, so no system is measured alone: in every round each system runs once, in turn, and a figure is the
median over rounds. Ratios compare systems of the same run, taken within each round. That helps against noise that
meets all systems alike; other work on the same cores does not (see ``BUSY``).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.harness.environment import LOAD_BEFORE, environment, output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager, ExitStack
    from types import TracebackType

    from typing_extensions import Self

RESULTS: Final = Path(__file__).parents[1] / "results"
JOURNALS: Final = Path("build") / "benchmarks"
"""Where runs that were stopped keep what they have measured."""
LEAST_COSINE: Final = 0.9999
"""Every row of a comparison must reach this, image by image, to the first system's vectors, or it is invalid."""
BUSY: Final = 0.25
"""A load of so much a core before anything is measured means that somebody else works on this machine."""


class WorkerFailed(RuntimeError):
    """A worker process ended before it gave its result."""


class Worker:
    """One system under test, in a process of its own that loads once and measures on request.

    The process runs ``python -m <module> <arguments>`` and speaks lines of JSON: ``{"ready": ...}`` once it is warm,
    then one object for each line that it reads, which holds the seconds to measure. ``cores`` pins it. The constructor
    does not wait: workers that are made one after another start at the same time.
    """

    def __init__(
        self, name: str, module: str, *arguments: str, python: str | Path = sys.executable, cores: Iterable[int] = ()
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if cores := set(cores):
            os.sched_setaffinity(self._process.pid, cores)

    @cached_property
    def ready(self) -> dict[str, Any]:
        """What the worker said once it was warm; waits for it."""
        return self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()

    def measure(self, seconds: float) -> dict[str, Any]:
        """Let the worker run for about ``seconds`` and return what it counted."""
        return self.ask({"seconds": seconds})

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send one order, ``seconds`` and whatever else this worker knows, and return its answer."""
        assert self.ready
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.name}: ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Journal:
    """What one run has measured so far, on disk, so that the same command continues after it was stopped.

    A journal belongs to one experiment with one ``plan`` at one commit; with another it starts anew, since what other
    code measured does not belong into one table. ``total`` is the number of cells, for the remaining time.
    :meth:`finish` turns it into the result.
    """

    def __init__(
        self, experiment: str, plan: Mapping[str, Any], directory: Path = JOURNALS, *, total: int | None = None
    ) -> None:
        self.experiment = experiment
        self._total = total
        self._seconds: list[float] = []
        self.plan = json.loads(json.dumps(plan))
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{experiment}.jsonl"
        self.cells: dict[str, dict[str, Any]] = {}
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        complete = [json.loads(line) for line in lines if line.endswith("}")]
        begun = {"plan": self.plan, "commit": output("git", "rev-parse", "HEAD")}
        if complete and complete[0] == begun:
            self.cells = {line["cell"]: line["result"] for line in complete[1:]}
            _say(f"{experiment}: {len(self.cells)} measurements are here already; delete {self._path} to start anew")
        else:
            self._path.write_text(json.dumps(begun) + "\n")
        if LOAD_BEFORE > BUSY * len(os.sched_getaffinity(0)):
            _say(
                f"{experiment}: the load average was {LOAD_BEFORE} before; PyTorch's threads wait for each other at "
                "every operator, so a busy machine slows it more than the others, and ratios to it mislead"
            )

    def cell(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what ``name`` measured before, or measure it now."""
        if name not in self.cells:
            begun = time.perf_counter()
            self.cells[name] = measure()
            self._seconds.append(time.perf_counter() - begun)
            with self._path.open("a") as file:
                file.write(json.dumps({"cell": name, "result": self.cells[name]}) + "\n")
            rate = self.cells[name].get("rate")
            figure = f" {rate:8.1f} images/s" if rate is not None else " done"
            _say(f"{self.experiment} {self._progress()} {name:<44}{figure}")
        return self.cells[name]

    def _progress(self) -> str:
        """How many cells there are, and how long the others take if they are as long as those of this process."""
        if self._total is None:
            return f"{len(self.cells)}"
        left_s = (self._total - len(self.cells)) * statistics.mean(self._seconds)
        return f"{len(self.cells)}/{self._total}, {left_s / 60:.1f} min left "

    def has(self, *names: str) -> bool:
        """Whether all of these are measured, so that nothing need be started for them."""
        return all(name in self.cells for name in names)

    def finish(self, result: Mapping[str, Any], directory: Path = RESULTS) -> Path:
        """Write the result with the plan, the environment and every measurement; the journal's work is done."""
        path = write_result(self.experiment, {"plan": self.plan, **result, "cells": self.cells}, directory)
        self._path.unlink()
        return path


def started(stack: ExitStack, contexts: Mapping[str, AbstractContextManager[Any]]) -> dict[str, Any]:
    """Enter all ``contexts`` at once, each on a thread; ``stack`` leaves them. Returns name -> what it gave."""
    with ThreadPoolExecutor(max(1, len(contexts))) as threads:
        futures = {name: threads.submit(context.__enter__) for name, context in contexts.items()}
    for name, future in futures.items():
        if future.exception() is None:
            stack.push(contexts[name].__exit__)
    return {name: future.result() for name, future in futures.items()}


def interleave(workers: Iterable[Worker], *, rounds: int, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """Measure each worker once per round, in turn; return name -> its results in order of the rounds."""
    workers = list(workers)
    results: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for number in range(1, rounds + 1):
        for worker in workers:
            result = worker.measure(seconds)
            results[worker.name].append(result)
            _say(f"round {number}/{rounds}  {worker.name:<28} {result['rate']:8.1f} images/s")
    return results


def cosine_to_first(vectors: Mapping[str, Any]) -> dict[str, float]:
    """Name -> the least cosine of any of its vectors (N, D) to the first system's vector of the same image."""
    unit = {name: _unit(np.asarray(rows, dtype=np.float64)) for name, rows in vectors.items()}
    first = next(iter(unit.values()))
    return {name: float((first * rows).sum(axis=1).min()) for name, rows in unit.items()}


def _unit(rows: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    lengths: np.ndarray[Any, np.dtype[np.float64]] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return lengths


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum of ``values``."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def percentiles(latencies_ms: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 of ``latencies_ms``; all equal where there is only one."""
    if len(latencies_ms) < 2:
        return dict.fromkeys(("p50", "p95", "p99"), latencies_ms[0])
    cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def write_result(experiment: str, result: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Keep ``result`` with the environment as ``<experiment>-<date>-<commit>.json`` and return the path."""
    record = {"experiment": experiment, "environment": environment(), **result}
    day = record["environment"]["time"][:10]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{experiment}-{day}-{record['environment']['commit'] or 'unknown'}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

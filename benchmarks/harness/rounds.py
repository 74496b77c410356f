"""Interleaved rounds, the check that all systems do the same work, and the statistics over rounds.

Machines are noisy, so no system is measured alone: in every round each system runs once, in turn, and a result is the
median over rounds. Ratios compare systems of the same run, within each round. That helps against noise that affects
all systems alike; it does not help if other work takes the same cores (see :data:`~benchmarks.harness.checkpoint.BUSY`).
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.harness.checkpoint import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.harness.worker import Worker

LEAST_COSINE: Final = 0.9999
"""Each vector of a system must reach this cosine to the first system's vector of the same image, or the row is invalid."""


def interleave(workers: Iterable[Worker], *, rounds: int, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """Measure each worker once per round, in turn; return name -> its results in order of the rounds."""
    workers = list(workers)
    results: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for number in range(1, rounds + 1):
        for worker in workers:
            result = worker.measure(seconds)
            results[worker.name].append(result)
            say(f"round {number}/{rounds}  {worker.name:<28} {result['rate']:8.1f} images/s")
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

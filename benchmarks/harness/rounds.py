"""Interleaved rounds, the check that all systems do the same work, and the statistics over rounds.

Machines are noisy, so no system is measured alone: in every round each system runs once, in turn, and a result is the
median over rounds. Ratios compare systems of the same run, within each round. That helps against noise that affects
all systems alike; it does not help if other work takes the same cores (see ``BUSY`` in ``checkpoint``).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

LEAST_COSINE: Final = 0.9999
"""A system is valid if each of its vectors reaches this cosine to the first system's vector of the same image."""


def cosine_to_first(vectors: Mapping[str, Any]) -> dict[str, float]:
    """Name -> the least cosine of any of its vectors (N, D) to the first system's vector of the same image."""
    exact = {name: np.asarray(rows, dtype=np.float64) for name, rows in vectors.items()}
    unit = {name: rows / np.linalg.norm(rows, axis=1, keepdims=True) for name, rows in exact.items()}
    first = next(iter(unit.values()))
    return {name: float((first * rows).sum(axis=1).min()) for name, rows in unit.items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum of ``values``."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def percentiles(latencies_ms: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 of ``latencies_ms``; all equal if there is only one."""
    if len(latencies_ms) < 2:
        return dict.fromkeys(("p50", "p95", "p99"), latencies_ms[0])
    cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def ratios(of: Iterable[Mapping[str, Any]], to: Iterable[Mapping[str, Any]]) -> list[float]:
    """Results of two systems -> the ratio of their ``rate`` in each round, in which both met the same machine."""
    return [one["rate"] / other["rate"] for one, other in zip(of, to, strict=True)]


def of_rounds(cells: Mapping[str, dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The results of the cells ``"NAME round 1"``, ``"NAME round 2"`` and so on."""
    keys = (f"{name} round {number}" for number in itertools.count(1))
    return [cells[key] for key in itertools.takewhile(cells.__contains__, keys)]


def median_of(results: Iterable[Mapping[str, Any]], key: str) -> float:
    """The median of one value of all ``results``."""
    return float(statistics.median(result[key] for result in results))

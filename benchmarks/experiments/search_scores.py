"""How often does a search say that nothing clearly matches, of simulated scores?

No trained weights are needed: the cosines of a text with 20,000 photos are drawn from a normal distribution, with a
standard deviation of 0.03 around a mean that differs from text to text by 0.02. Each match of a query scores higher by
some standard deviations. Measures also how often ``--strict`` finds a fall of the scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.harness.experiment import Run, experiment, option
from benchmarks.harness.results import show
from clip_client.search.scores import MOST_BEATEN_BY, MOST_RANKS, NEUTRAL, first_fall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

PHOTOS: Final = 20_000
MATCHES: Final = (0, 1, 10, 200, 10_000, 20_000)
LIFTS: Final = (2, 3, 4, 6)
"""Standard deviations by which matches score higher."""
_SPREAD: Final = 0.03
_BETWEEN_TEXTS: Final = 0.02


@experiment(option("--queries", type=int, default=200, help="queries of each kind"))
def measure(run: Run) -> Mapping[str, Any]:
    random = np.random.default_rng(0)
    found = {
        (matches, lift): _shares(random, matches, lift, run.options.queries)
        for matches in MATCHES
        for lift in (LIFTS if matches else (0,))
    }
    shares = {f"{matches:,} by {lift}": one for (matches, lift), one in found.items()}
    show(f"of {PHOTOS:,} photos, matches by standard deviations: shares of the queries", shares)
    return {"plan": run.plan, "cells": [{"matches": key[0], "lift": key[1], **one} for key, one in found.items()]}


def _shares(random: np.random.Generator, matches: int, lift: float, queries: int) -> dict[str, float]:
    unclear = falls = 0
    neutral = np.empty(0)
    for number in range(queries):
        if number % 20 == 0:
            neutral = np.stack([_best(_scores(random)) for _ in NEUTRAL])
        scores = _scores(random)
        scores[:matches] += lift * _SPREAD
        unclear += bool((np.mean(neutral >= _best(scores), axis=0) >= MOST_BEATEN_BY).all())
        falls += first_fall(np.sort(scores)[: -MOST_RANKS - 2 : -1].tolist()) is not None
    return {"unclear": unclear / queries, "falls": falls / queries}


def _scores(random: np.random.Generator) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = random.normal(0.17, _BETWEEN_TEXTS) + _SPREAD * random.standard_normal(PHOTOS)
    return scores


def _best(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the best score, and the same less the mean: what NeutralTexts.is_unclear compares."""
    return np.array([scores.max(), scores.max() - scores.mean()])

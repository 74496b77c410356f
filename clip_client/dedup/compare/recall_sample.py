"""Measures which share of the alike pairs have a cell in common, by an exact search on a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.cells import CELLS_PER_VECTOR
from clip_client.dedup.compare.similarity_join import alike_pairs
from clip_client.dedup.types import RecallEstimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clip_client.dedup.compare.cells import Cells

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

LEAST_RECALL: Final = 0.995
"""Share of alike pairs that must have a cell in common."""

_PAIRS_PER_ROW: Final = 16
"""Alike rows of a sampled row that are looked up in the cells; a scene of a thousand photos has many more."""
_BLOCK_ROWS: Final = 4096
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: products with it order the rows as if at random (Knuth, volume 3, 6.4)."""
Z_95: Final = 1.959964
"""The 97.5th percentile of the normal distribution."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecallSample:
    """Sampled rows, and some of the rows that are alike to them."""

    vectors: Vectors
    """(S, D) sampled rows."""
    counts: NDArray[np.int64]
    """(S,), how many rows are alike to each."""
    sampled: Indices
    """(P,), the sampled row of each pair that was kept."""
    others: Vectors
    """(P, D), the alike row of each pair."""
    priorities: NDArray[np.uint64]
    """(P,); the lowest of a sampled row are kept."""

    @classmethod
    def find(
        cls,
        vectors: Vectors,
        rows: Indices,
        sampled: Indices,
        threshold: float,
        *,
        ids: NDArray[np.int64] | None = None,
        projected: Vectors | None = None,
    ) -> RecallSample:
        """Compare the ``sampled`` rows of ``vectors`` with ``rows``.

        ``ids`` tell the rows of all vectors apart if these are only some; ``projected`` is what a
        :class:`.Projection` returned.
        """
        names = np.arange(len(vectors)) if ids is None else ids
        found = [cls._empty(vectors[sampled])]
        for start in range(0, len(rows), _BLOCK_ROWS):
            some = rows[start : start + _BLOCK_ROWS]
            shorts = None if projected is None else (projected[some], projected[sampled])
            a, b = alike_pairs(vectors, some, sampled, threshold, shorts)
            is_other = names[some[a]] != names[sampled[b]]
            a, b = some[a[is_other]], b[is_other]
            if len(a):
                priorities = names[a].astype(np.uint64) * _MIX
                kept = _lowest(b, priorities)
                found.append(
                    cls(
                        vectors=found[0].vectors,
                        counts=np.bincount(b, minlength=len(sampled)),
                        sampled=b[kept],
                        others=vectors[a[kept]],
                        priorities=priorities[kept],
                    )
                )
        return cls.combine(found)

    @classmethod
    def _empty(cls, vectors: Vectors) -> RecallSample:
        nothing = np.empty(0)
        return cls(
            vectors=vectors,
            counts=np.zeros(len(vectors), np.int64),
            sampled=nothing.astype(np.intp),
            others=vectors[:0],
            priorities=nothing.astype(np.uint64),
        )

    @classmethod
    def combine(cls, parts: Sequence[RecallSample]) -> RecallSample:
        """Return what comparing the same sampled rows with the rows of all ``parts`` would have returned."""
        sampled = np.concatenate([part.sampled for part in parts])
        priorities = np.concatenate([part.priorities for part in parts])
        kept = _lowest(sampled, priorities)
        return cls(
            vectors=parts[0].vectors,
            counts=np.sum([part.counts for part in parts], axis=0),
            sampled=sampled[kept],
            others=np.concatenate([part.others for part in parts])[kept],
            priorities=priorities[kept],
        )

    @property
    def telling(self) -> int:
        """Number of sampled rows that have an alike row."""
        return int(np.count_nonzero(self.counts))

    def choose_count(self, cells: Cells) -> tuple[RecallEstimate, int]:
        """Return the recall with the fewest cells per vector that suffice, and how many these are."""
        for count in CELLS_PER_VECTOR:
            estimate = self.estimate(cells, count)
            if estimate.recall >= LEAST_RECALL:
                break
        return estimate, count

    def estimate(self, cells: Cells, count: int) -> RecallEstimate:
        """Return the recall if each vector goes into its ``count`` nearest of ``cells``.

        It is the smaller of two figures: the share of all pairs, and the mean share over the sampled rows. In the
        second a scene of a thousand photos weighs no more than any other photo.
        """
        if not self.telling:
            return RecallEstimate(method="cells", recall=1.0, recall_95=(0.0, 1.0), pairs=0)
        is_found = self._share_a_cell(cells, count)
        telling = self.counts > 0
        looked_up = np.bincount(self.sampled, minlength=len(self.counts))[telling]
        shares = np.bincount(self.sampled, weights=is_found, minlength=len(self.counts))[telling] / looked_up
        recall = min(float(shares.mean()), float(np.average(shares, weights=self.counts[telling])))
        # The draws are the rows: the pairs of one scene are found or missed together.
        interval = wilson_interval(recall * self.telling, self.telling)
        return RecallEstimate(method="cells", recall=recall, recall_95=interval, pairs=int(self.counts.sum()))

    def _share_a_cell(self, cells: Cells, count: int) -> NDArray[np.bool_]:
        parts = len(cells.numbers)
        rows, theirs = cells.assign(self.vectors, count)
        pairs, others = cells.assign(self.others, count)
        is_shared = np.isin(self.sampled[pairs] * parts + others, rows * parts + theirs)
        found = np.zeros(len(self.sampled), dtype=bool)
        found[pairs[is_shared]] = True
        return found


def _lowest(sampled: Indices, priorities: NDArray[np.uint64]) -> Indices:
    """Return the positions of the pairs to keep: of each sampled row, those of the lowest priorities."""
    order = np.lexsort((priorities, sampled))
    firsts = np.searchsorted(sampled[order], sampled[order])
    kept: Indices = order[np.arange(len(order)) - firsts < _PAIRS_PER_ROW]
    return kept


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score (JASA 22, 1927); (0, 1) without trials.

    It holds its 95 % for few trials and for shares near 1, where the usual normal interval is far too narrow (Brown,
    Cai and DasGupta, Statistical Science 16, 2001). The trials count as independent. ``successes`` is no whole number
    if each trial counts with a share.
    """
    if not trials:
        return 0.0, 1.0
    share, z2 = successes / trials, Z_95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    # If nothing was missed, the upper end is 1, which rounding may hide.
    return max(0.0, centre - half), min(1.0, max(share, centre + half))

"""Joins similar vectors when there are too many to compare all pairs: compares only vectors that share a cell.

Each run measures how often similar vectors share no cell, by an exact search on a sample, and tries more cells per
vector until that is rare.

In a trained model, two vectors that have nothing in common have a cosine of about 0.6. k-means would leave a large
topic in a few cells that hold most of the pairs. So vectors are divided by their directions from the mean of all: seen
from there, those of different pictures have little in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.compare.similarity_join import UnionFind, alike_links, alike_pairs, fit_projection, usable_rows
from clip_client.dedup.types import Indices, RecallEstimate, Vectors

EXACT_ROWS: Final = 50_000
"""Up to this many rows, all pairs are compared, which takes about 4 seconds on two cores."""
ALL_COMPARED: Final = RecallEstimate(method="exact", recall=1.0, recall_95=(1.0, 1.0), pairs=0)

LEAST_RECALL: Final = 0.995
_CELLS_PER_VECTOR: Final = (4, 6, 8)
"""Tried in this order. With 2 or 3, too few similar vectors have a cell in common."""
_POINTS_PER_PART: Final = 32
"""Vectors per part that k-means learns from; more change little and take most of the time."""

_SAMPLE: Final = 5000
"""Rows whose similar rows are found exactly, to measure the recall: little of the work with a million rows. If a tenth
of them have a similar row, 2 missed are 0.4 %."""
_PAIRS_PER_ROW: Final = 16
"""Similar rows of a sampled row that are looked up in the cells; a scene of a thousand photos has many more."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: products with it order the rows as if at random (Knuth, volume 3, 6.4)."""
_COMPARED_AT_ONCE: Final = 4096
_ASSIGNED_AT_ONCE: Final = 16_384
_Z_95: Final = 1.959964
"""The 97.5th percentile of the normal distribution."""


def join_vectors(
    union_find: UnionFind, vectors: Vectors, threshold: float, *, exact_rows: int = EXACT_ROWS
) -> RecallEstimate:
    """Join the unit rows of ``vectors``, (N, D) float32, whose cosine is at least ``threshold``; none of NaN."""
    rows = usable_rows(vectors)
    projection = fit_projection(vectors, rows, threshold)
    projected = None if projection is None else projection(vectors)
    if len(rows) <= exact_rows:
        union_find.join(*alike_links(rows, vectors, threshold, projected=projected))
        return ALL_COMPARED
    sample = np.sort(np.random.default_rng(0).choice(rows, sample_size(len(rows)), replace=False))
    cells = fit_cells(vectors[sample], len(rows), threshold)
    sampled = np.random.default_rng(2).permutation(rows)[:_SAMPLE]
    estimate, count = RecallSample.find(vectors, rows, sampled, threshold, projected=projected).choose_count(cells)
    links = [
        alike_links(rows[members], vectors, threshold, projected=projected)
        for members in _members(vectors, rows, cells, count)
    ]
    # All at once, because each call of join passes over the labels of all rows.
    union_find.join(*(np.concatenate(side) for side in zip(*links, strict=True)))
    return estimate


def _members(vectors: Vectors, rows: Indices, cells: Cells, count: int) -> list[Indices]:
    found = []
    for start in range(0, len(rows), _ASSIGNED_AT_ONCE):
        positions, numbers = cells.assign(vectors[rows[start : start + _ASSIGNED_AT_ONCE]], count)
        found.append((positions + start, numbers))
    positions, numbers = (np.concatenate(side) for side in zip(*found, strict=True))
    order = np.argsort(numbers, kind="stable")
    return np.split(positions[order], np.flatnonzero(np.diff(numbers[order])) + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """Parts of the space that k-means found, some of them merged; arrays only, so that other processes can use them."""

    centre: Vectors
    directions: Vectors
    """(K, D), unit rows: the middle of each part, seen from ``centre``."""
    numbers: Indices
    """(K,), the number of each part's cell, below K."""

    def assign(self, vectors: Vectors, count: int) -> tuple[Indices, Indices]:
        """Return positions in the unit ``vectors``, (N, D), and their ``count`` nearest cells, both (M,), each once."""
        nearest = np.sort(self.numbers[_nearest(_seen_from(self.centre, vectors), self.directions, count)], axis=1)
        is_new = np.diff(nearest, axis=1, prepend=-1) > 0
        return np.nonzero(is_new)[0], nearest[is_new]


def sample_size(rows: int) -> int:
    return min(rows, _parts(rows) * _POINTS_PER_PART)


def fit_cells(sample: Vectors, rows: int, threshold: float) -> Cells:
    """Divide the space for ``rows`` unit vectors, alike from ``threshold`` on; ``sample`` (N, D) is a random part."""
    import faiss

    parts = min(_parts(rows), len(sample))
    centre = sample.mean(axis=0)
    seen = _seen_from(centre, sample)
    points = {"min_points_per_centroid": 1, "max_points_per_centroid": len(seen)}
    kmeans = faiss.Kmeans(seen.shape[1], parts, niter=8, seed=1, spherical=True, **points)
    kmeans.train(seen)
    directions = np.ascontiguousarray(kmeans.centroids)
    nearest = _nearest(seen, directions, 1)[:, 0]
    return Cells(centre=centre, directions=directions, numbers=_merge_scenes(sample, nearest, parts, threshold))


def _parts(rows: int) -> int:
    # Finding the nearest parts then takes about as long as comparing inside cells; both grow with the power 1.5.
    return max(1, math.isqrt(rows))


def _merge_scenes(sample: Vectors, nearest: Indices, parts: int, threshold: float) -> Indices:
    """Return the number of each part's cell: k-means divides one scene of a thousand photos into several parts."""
    middles = np.full((parts, sample.shape[1]), np.nan, dtype=np.float32)
    order = np.argsort(nearest, kind="stable")
    used, starts = np.unique(nearest[order], return_index=True)
    for part, members in zip(used.tolist(), np.split(order, starts[1:]), strict=True):
        middle = sample[members].mean(axis=0)
        middle /= np.linalg.norm(middle)
        if np.median(sample[members] @ middle) >= threshold:
            middles[part] = middle
    merged = UnionFind(parts)
    merged.join(*alike_links(usable_rows(middles), middles, threshold))
    return merged.labels


def _seen_from(centre: Vectors, vectors: Vectors) -> Vectors:
    seen = vectors - centre
    seen /= np.maximum(np.linalg.norm(seen, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return seen


def _nearest(seen: Vectors, directions: Vectors, count: int) -> Indices:
    import faiss

    _, nearest = faiss.knn(seen, directions, min(count, len(directions)), metric=faiss.METRIC_INNER_PRODUCT)
    return cast("Indices", nearest)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecallSample:
    """Sampled rows (S, D), how many rows are alike to each (S,), and some of these pairs (P,), by lowest priorities."""

    vectors: Vectors
    counts: NDArray[np.int64]
    sampled: Indices
    others: Vectors
    priorities: NDArray[np.uint64]

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
        """Compare ``sampled`` rows with ``rows``; ``ids`` tell the rows of all vectors apart if these are only some."""
        names = np.arange(len(vectors)) if ids is None else ids
        counts = np.zeros(len(sampled), dtype=np.int64)
        kept = (rows[:0], rows[:0])
        for start in range(0, len(rows), _COMPARED_AT_ONCE):
            some = rows[start : start + _COMPARED_AT_ONCE]
            shorts = None if projected is None else (projected[some], projected[sampled])
            others, which = alike_pairs(vectors, some, sampled, threshold, shorts)
            is_other = names[some[others]] != names[sampled[which]]
            others, which = some[others[is_other]], which[is_other]
            counts += np.bincount(which, minlength=len(sampled))
            which, others = np.concatenate([kept[0], which]), np.concatenate([kept[1], others])
            lowest = _lowest(which, _priorities(names[others]))
            kept = which[lowest], others[lowest]
        return cls(
            vectors=vectors[sampled],
            counts=counts,
            sampled=kept[0],
            others=vectors[kept[1]],
            priorities=_priorities(names[kept[1]]),
        )

    @classmethod
    def combine(cls, parts: Sequence[RecallSample]) -> RecallSample:
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

    def choose_count(self, cells: Cells) -> tuple[RecallEstimate, int]:
        for count in _CELLS_PER_VECTOR:
            estimate = self.estimate(cells, count)
            if estimate.recall >= LEAST_RECALL:
                break
        return estimate, count

    def estimate(self, cells: Cells, count: int) -> RecallEstimate:
        """Return the recall if each vector goes into its ``count`` nearest of ``cells``.

        It is the smaller of two figures: the share of all pairs, and the mean share over the sampled rows. In the
        second a scene of a thousand photos weighs no more than any other photo.
        """
        telling = self.counts > 0
        if not telling.any():
            return RecallEstimate(method="cells", recall=1.0, recall_95=(0.0, 1.0), pairs=0)
        is_found = self._share_a_cell(cells, count)
        looked_up = np.bincount(self.sampled, minlength=len(self.counts))[telling]
        shares = np.bincount(self.sampled, weights=is_found, minlength=len(self.counts))[telling] / looked_up
        recall = min(float(shares.mean()), float(np.average(shares, weights=self.counts[telling])))
        # The draws are the rows: the pairs of one scene are found or missed together.
        interval = wilson_interval(recall * len(shares), len(shares))
        return RecallEstimate(method="cells", recall=recall, recall_95=interval, pairs=int(self.counts.sum()))

    def _share_a_cell(self, cells: Cells, count: int) -> NDArray[np.bool_]:
        parts = len(cells.numbers)
        rows, theirs = cells.assign(self.vectors, count)
        pairs, others = cells.assign(self.others, count)
        is_shared = np.isin(self.sampled[pairs] * parts + others, rows * parts + theirs)
        found = np.zeros(len(self.sampled), dtype=bool)
        found[pairs[is_shared]] = True
        return found


def _priorities(names: NDArray[np.int64]) -> NDArray[np.uint64]:
    return names.astype(np.uint64) * _MIX


def _lowest(sampled: Indices, priorities: NDArray[np.uint64]) -> Indices:
    order = np.lexsort((priorities, sampled))
    firsts = np.searchsorted(sampled[order], sampled[order])
    return cast("Indices", order[np.arange(len(order)) - firsts < _PAIRS_PER_ROW])


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score (JASA 22, 1927); (0, 1) without trials.

    For shares near 1, the normal interval is far too narrow (Brown, Cai and DasGupta, Statistical Science 16, 2001).
    """
    if not trials:
        return 0.0, 1.0
    share, z2 = successes / trials, _Z_95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    # If nothing was missed, the upper end is 1, which rounding may hide.
    return max(0.0, centre - half), min(1.0, max(share, centre + half))

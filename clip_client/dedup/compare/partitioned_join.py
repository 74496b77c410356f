"""Joins alike vectors when there are too many to compare each with each.

k-means divides the vectors into cells, each vector goes into its nearest few cells, and the vectors inside a cell are
compared with each other. Two alike vectors are missed only if they have no cell in common. Each run measures how often
that happens, by an exact search on a sample, and tries more cells per vector until it is rare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.projection import project
from clip_client.dedup.compare.similarity_join import alike_links, alike_pairs, join_alike, usable_rows
from clip_client.dedup.compare.union_find import UnionFind
from clip_client.dedup.types import RecallEstimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

EXACT_ROWS: Final = 50_000
"""Up to this many rows, each is compared with each, which takes about 4 seconds on two cores."""

LEAST_RECALL: Final = 0.995
"""Share of alike pairs that must have a cell in common."""

_CELLS_PER_VECTOR: Final = (2, 3, 4, 6, 8)
"""Tried in this order; the number of comparisons grows with the square."""
_POINTS_PER_CELL: Final = 32
"""Vectors per cell that k-means learns from; more change little and take most of the time."""
_ITERATIONS: Final = 8
_SAMPLE: Final = 1000
"""Rows whose alike rows are found exactly in one batch, to measure the recall."""
_TELLING_ROWS: Final = 400
"""Batches stop once this many sampled rows have an alike one: 2 missed of 400 are 0.5 %."""
_MOST_SAMPLED: Final = 5000
"""Batches stop at this many sampled rows, which is little of the work with a million rows."""
_BLOCK_ROWS: Final = 4096
_Z: Final = 1.96
"""95 % of a normal distribution lie within this many standard deviations."""


EXACT: Final = RecallEstimate(method="exact", recall=1.0, recall_95=(1.0, 1.0), pairs=0)


def join_vectors(
    union_find: UnionFind, vectors: Vectors, threshold: float, *, exact_rows: int = EXACT_ROWS, seed: int = 0
) -> RecallEstimate:
    """Join the rows of ``vectors`` whose cosine similarity is at least ``threshold``.

    ``vectors`` is (N, D) float32 of unit rows, or NaN for a row that is joined with none. Up to ``exact_rows`` rows
    each is compared with each.
    """
    rows = usable_rows(vectors)
    projected = project(vectors, rows, threshold, seed=seed)
    if len(rows) <= exact_rows:
        join_alike(union_find, rows, vectors, threshold, projected=projected)
        return EXACT
    nearest = _nearest_cells(vectors, rows, threshold, seed)
    needs = _needs_of_sample(vectors, rows, nearest, threshold, seed, projected)
    for count in _CELLS_PER_VECTOR:
        estimate = _estimate(needs, count)
        if estimate.recall >= LEAST_RECALL:
            break
    links = [
        alike_links(rows[members], vectors, threshold, projected=projected) for members in _members(nearest[:, :count])
    ]
    # All at once, because each call of join passes over the labels of all rows.
    union_find.join(np.concatenate([left for left, _ in links]), np.concatenate([right for _, right in links]))
    return estimate


def _nearest_cells(vectors: Vectors, rows: Indices, threshold: float, seed: int) -> NDArray[np.int32]:
    """Return the numbers of each row's nearest cells, nearest first.

    k-means divides one scene of a thousand photos into several cells. Cells whose centres are alike are merged.
    """
    import faiss

    dimension, cells = vectors.shape[1], round(2 * len(rows) ** 0.5)
    sample = np.random.default_rng(seed).choice(rows, min(len(rows), cells * _POINTS_PER_CELL), replace=False)
    points = {"min_points_per_centroid": 1, "max_points_per_centroid": _POINTS_PER_CELL}
    kmeans = faiss.Kmeans(dimension, cells, niter=_ITERATIONS, seed=seed + 1, spherical=True, **points)
    kmeans.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    nearest = np.empty((len(rows), _CELLS_PER_VECTOR[-1]), dtype=np.int32)
    for start in range(0, len(rows), _BLOCK_ROWS):
        some = slice(start, start + _BLOCK_ROWS)
        nearest[some] = kmeans.index.search(np.ascontiguousarray(vectors[rows[some]]), nearest.shape[1])[1]
    centres = np.ascontiguousarray(kmeans.centroids)
    merged = UnionFind(cells)
    join_alike(merged, usable_rows(centres), centres, threshold)
    whole: NDArray[np.int32] = merged.labels[nearest].astype(np.int32)
    return whole


def _needs_of_sample(
    vectors: Vectors,
    rows: Indices,
    nearest: NDArray[np.int32],
    threshold: float,
    seed: int,
    projected: Vectors | None,
) -> NDArray[np.int64]:
    """Return what :func:`_pairs_by_need` returns for those of the sampled rows that have alike rows."""
    order = np.random.default_rng(seed + 2).permutation(len(rows))[:_MOST_SAMPLED]
    batches = []
    telling = 0
    for start in range(0, len(order), _SAMPLE):
        needs = _pairs_by_need(vectors, rows, nearest, threshold, order[start : start + _SAMPLE], projected)
        batches.append(needs[needs.any(axis=1)])
        telling += len(batches[-1])
        if telling >= _TELLING_ROWS:
            break
    return np.concatenate(batches)


def _estimate(needs: NDArray[np.int64], count: int) -> RecallEstimate:
    """Return the recall with ``count`` cells per vector.

    It is the smaller of two figures: the share of all pairs, and the mean share over the sampled rows. In the second
    a scene of a thousand photos weighs no more than any other photo.
    """
    pairs, found = needs.sum(axis=1), needs[:, : count + 1].sum(axis=1)
    if not len(pairs):
        return RecallEstimate(method="cells", recall=1.0, recall_95=(0.0, 1.0), pairs=0)
    recall = min(float((found / pairs).mean()), float(found.sum() / pairs.sum()))
    # The draws are the rows: the pairs of one scene are found or missed together.
    interval = _wilson(recall, len(pairs))
    return RecallEstimate(method="cells", recall=recall, recall_95=interval, pairs=int(pairs.sum()))


def _pairs_by_need(
    vectors: Vectors,
    rows: Indices,
    nearest: NDArray[np.int32],
    threshold: float,
    sample: Indices,
    projected: Vectors | None,
) -> NDArray[np.int64]:
    """Count, for each row of ``sample``, its alike rows by how many cells per vector they need to share one.

    Returns (len(sample), cells + 2); the last column counts those that share none.
    """
    cells = nearest.shape[1]
    # A cell that is the i-th of one vector and the j-th of the other is shared once both are in max(i, j) cells.
    both = np.maximum.outer(np.arange(1, cells + 1), np.arange(1, cells + 1)).astype(np.int8)
    sampled = rows[sample]
    needs = np.zeros(len(sample) * (cells + 2), dtype=np.int64)
    for start in range(0, len(rows), _BLOCK_ROWS):
        some = rows[start : start + _BLOCK_ROWS]
        a, b = alike_pairs(
            vectors, some, sampled, threshold, None if projected is None else (projected[some], projected[sampled])
        )
        others = a + start != sample[b]
        a, b = a[others] + start, b[others]
        shared = nearest[a][:, :, None] == nearest[sample[b]][:, None, :]
        need = np.where(shared, both, cells + 1).min(axis=(1, 2), initial=cells + 1)
        needs += np.bincount(b * (cells + 2) + need, minlength=len(needs))
    return needs.reshape(len(sample), cells + 2)


def _wilson(share: float, draws: int) -> tuple[float, float]:
    """Return the 95 % interval of a ``share`` that was seen in ``draws`` draws (Wilson 1927)."""
    shrink = 1 + _Z**2 / draws
    middle = (share + _Z**2 / (2 * draws)) / shrink
    half = _Z / shrink * (share * (1 - share) / draws + _Z**2 / (4 * draws**2)) ** 0.5
    # If nothing was missed, the upper end is 1, which rounding may hide.
    return max(0.0, middle - half), min(1.0, max(share, middle + half))


def _members(nearest: NDArray[np.int32]) -> list[Indices]:
    """Return the positions in each cell."""
    cells = nearest.ravel()
    order = np.argsort(cells, kind="stable")
    starts = np.flatnonzero(np.diff(cells[order], prepend=-1))
    # Each row once, although several of its cells may have been merged.
    return [np.unique(members) for members in np.split(order // nearest.shape[1], starts[1:])]

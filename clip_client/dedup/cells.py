"""Comparing vectors when there are too many to compare all with all.

k-means cuts the vectors into cells, each vector is put into its nearest few, and all are compared with all inside each
cell. Two alike vectors are missed only where they have no cell in common; how often that happens is measured against
an exact search on a sample, in every run, and more cells per vector are tried until it is rare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.joining import Joining, join_alike, usable_rows, where

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

EXACT_ROWS: Final = 50_000
"""Up to here all are compared with all, which takes some 15 seconds on two cores."""

LEAST_RECALL: Final = 0.995
"""Share of the alike pairs that must have a cell in common."""

_CELLS_PER_VECTOR: Final = (2, 4, 8)
"""Tried in turn."""
_POINTS_PER_CELL: Final = 32
"""Vectors per cell that k-means learns from; more changes little and takes most of the time."""
_ITERATIONS: Final = 8
_SAMPLE: Final = 500
"""Rows whose neighbours are searched exactly to measure the recall."""
_BLOCK_ROWS: Final = 16_384


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How the vectors were compared."""

    method: str
    """``"exact"`` or ``"cells"``."""
    recall: float
    """Share of alike pairs that were compared; 1 for ``"exact"``, else measured."""
    pairs: int
    """Alike pairs in the sample that ``recall`` was measured on; 0 where nothing was measured."""


def join_vectors(
    joining: Joining, vectors: Vectors, threshold: float, *, exact_rows: int = EXACT_ROWS, seed: int = 0
) -> Coverage:
    """Join the rows of ``vectors``, (N, D) unit rows or NaN, whose cosine similarity is at least ``threshold``."""
    rows = usable_rows(vectors)
    if len(rows) <= exact_rows:
        join_alike(joining, rows, vectors, threshold)
        return Coverage(method="exact", recall=1.0, pairs=0)
    nearest = _nearest_cells(vectors, rows, threshold, seed)
    coverage = Coverage(method="cells", recall=0.0, pairs=0)
    for count in _CELLS_PER_VECTOR:
        coverage = _measure(vectors, rows, nearest[:, :count], threshold, seed)
        if coverage.recall >= LEAST_RECALL:
            break
    for members in _members(nearest[:, :count]):
        join_alike(joining, rows[members], vectors, threshold)
    return coverage


def _nearest_cells(vectors: Vectors, rows: Indices, threshold: float, seed: int) -> NDArray[np.int32]:
    """Return the numbers of each row's nearest cells, nearest first.

    k-means puts many centres where many vectors are, and cuts one scene of a thousand photos into pieces. Cells whose
    centres are alike themselves are one cell.
    """
    import faiss

    dimension, cells = vectors.shape[1], round(2 * len(rows) ** 0.5)
    sample = np.random.default_rng(seed).choice(rows, min(len(rows), cells * _POINTS_PER_CELL), replace=False)
    kmeans = faiss.Kmeans(
        dimension, cells, niter=_ITERATIONS, seed=seed + 1, spherical=True, max_points_per_centroid=_POINTS_PER_CELL,
        min_points_per_centroid=1,
    )  # fmt: skip
    kmeans.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    nearest = np.empty((len(rows), max(_CELLS_PER_VECTOR)), dtype=np.int32)
    for start in range(0, len(rows), _BLOCK_ROWS):
        some = slice(start, start + _BLOCK_ROWS)
        nearest[some] = kmeans.index.search(np.ascontiguousarray(vectors[rows[some]]), nearest.shape[1])[1]
    centres = np.ascontiguousarray(kmeans.centroids)
    merged = Joining(cells)
    join_alike(merged, usable_rows(centres), centres, threshold)
    whole: NDArray[np.int32] = merged.labels[nearest].astype(np.int32)
    return whole


def _measure(vectors: Vectors, rows: Indices, nearest: NDArray[np.int32], threshold: float, seed: int) -> Coverage:
    """Search the neighbours of a sample among all rows; count the pairs that have a cell in common.

    The smaller of two figures counts: the share of all pairs, and the mean share over the sampled rows that have
    neighbours, in which a scene of a thousand photos weighs no more than any other photo.
    """
    sample = np.random.default_rng(seed + 2).choice(len(rows), min(len(rows), _SAMPLE), replace=False)
    sampled = vectors[rows[sample]]
    pairs, together = np.zeros(len(sample), dtype=np.int64), np.zeros(len(sample), dtype=np.int64)
    for start in range(0, len(rows), _BLOCK_ROWS):
        some = slice(start, start + _BLOCK_ROWS)
        a, b = where(vectors[rows[some]] @ sampled.T >= threshold)
        others = a + start != sample[b]
        a, b = a[others] + start, b[others]
        shared = (nearest[a][:, :, None] == nearest[sample[b]][:, None, :]).any(axis=(1, 2))
        pairs += np.bincount(b, minlength=len(sample))
        together += np.bincount(b[shared], minlength=len(sample))
    if not pairs.any():
        return Coverage(method="cells", recall=1.0, pairs=0)
    per_row = (together[pairs > 0] / pairs[pairs > 0]).mean()
    recall = min(float(per_row), float(together.sum() / pairs.sum()))
    return Coverage(method="cells", recall=recall, pairs=int(pairs.sum()))


def _members(nearest: NDArray[np.int32]) -> list[Indices]:
    """Return the positions in each cell."""
    cells = nearest.ravel()
    order = np.argsort(cells, kind="stable")
    starts = np.flatnonzero(np.diff(cells[order], prepend=-1))
    # Once each: several of a row's cells may have become one.
    return [np.unique(members) for members in np.split(order // nearest.shape[1], starts[1:])]

"""Divides vectors into cells, so that only those that have a cell in common need to be compared.

Vectors of a trained model lie close together: two that have nothing in common have a cosine of about 0.6, and topics
have very uneven sizes. k-means would leave a large topic in a few cells that hold most of the pairs, because the middle
of a topic is near to all of its vectors. So vectors are divided by their directions from the mean of all: seen from
there, those of different topics, and of different pictures of one topic, have little in common.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.similarity_join import alike_links, usable_rows
from clip_client.dedup.compare.union_find import UnionFind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

CELLS_PER_VECTOR: Final = (4, 6, 8)
"""To be tried in this order. With 2 or 3, too few alike vectors have a cell in common."""

_POINTS_PER_PART: Final = 32
"""Vectors per part that k-means learns from; more change little and take most of the time."""
_ITERATIONS: Final = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """Parts of the space that k-means found, some of them merged; arrays only, so that other processes can use them."""

    centre: Vectors
    """(D,), the mean of the vectors."""
    directions: Vectors
    """(K, D), unit rows: the middle of each part, seen from ``centre``."""
    numbers: Indices
    """(K,), the number of each part's cell, below K."""

    def assign(self, vectors: Vectors, count: int) -> tuple[Indices, Indices]:
        """Return the cells of unit ``vectors``, (N, D): positions in ``vectors`` and cell numbers, both (M,).

        A vector goes into the cells of the ``count`` parts that are nearest to it. No pair occurs twice.
        """
        nearest = np.sort(self.numbers[_nearest(_seen_from(self.centre, vectors), self.directions, count)], axis=1)
        is_new = np.diff(nearest, axis=1, prepend=-1) > 0
        return np.nonzero(is_new)[0], nearest[is_new]


def sample_size(rows: int) -> int:
    """Return how many of ``rows`` vectors :func:`fit_cells` should learn from."""
    return min(rows, _parts(rows) * _POINTS_PER_PART)


def fit_cells(sample: Vectors, rows: int, threshold: float, *, seed: int = 0) -> Cells:
    """Divide the space for ``rows`` unit vectors, of which ``sample`` (N, D) is a random part.

    Vectors of cosine similarity >= ``threshold`` are alike.
    """
    import faiss

    parts = min(_parts(rows), len(sample))
    centre = sample.mean(axis=0)
    seen = _seen_from(centre, sample)
    points = {"min_points_per_centroid": 1, "max_points_per_centroid": len(seen)}
    kmeans = faiss.Kmeans(seen.shape[1], parts, niter=_ITERATIONS, seed=seed + 1, spherical=True, **points)
    kmeans.train(seen)
    directions = np.ascontiguousarray(kmeans.centroids)
    nearest = _nearest(seen, directions, 1)[:, 0]
    return Cells(centre=centre, directions=directions, numbers=_merge_scenes(sample, nearest, parts, threshold))


def _parts(rows: int) -> int:
    # Finding the nearest parts then takes about as long as comparing inside cells; both grow with the power 1.5.
    return max(1, math.isqrt(rows))


def _merge_scenes(sample: Vectors, nearest: Indices, parts: int, threshold: float) -> Indices:
    """Return the number of each part's cell: k-means divides one scene of a thousand photos into several parts.

    Parts are merged if their middles are alike and most of their vectors are alike to the middle. ``nearest``, (N,), is
    the part of each row of ``sample``.
    """
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
    """Return the directions of ``vectors``, (N, D), from ``centre``, as unit rows."""
    seen = vectors - centre
    seen /= np.maximum(np.linalg.norm(seen, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return seen


def _nearest(seen: Vectors, directions: Vectors, count: int) -> Indices:
    """Return the numbers of the ``count`` nearest of ``directions``, nearest first: (N, at most ``count``)."""
    import faiss

    _, nearest = faiss.knn(seen, directions, min(count, len(directions)), metric=faiss.METRIC_INNER_PRODUCT)
    found: Indices = nearest
    return found

"""Joins alike rows into connected components, without storing all pairs.

Components only divide the work for ``star_groups``. If a camera takes 20,000 photos of one scene, they have 2e8 pairs.
Each pair takes at most the time of one dot product, and no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.union_find import UnionFind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

BLOCK_ROWS: Final = 1024
"""Rows per block: the products of two blocks take 4 MB, their pairs at most 40 MB."""

_SLACK: Final = 1e-5
"""The error of float32 block products. Components are found with a threshold that is lower by this much: one that is
too large only costs time, because the groups inside it are found in float64."""

_CLUSTER_ROWS: Final = 4096
"""With this many rows it pays to find dense clusters before all pairs are multiplied."""
_PIVOTS: Final = 32
"""Dense clusters to look for; each costs one product per row."""

_DENSE_ROWS: Final = 64
"""Smaller clusters are not refined by a second search from their middle."""

_PAIR_COST: Final = 128
"""The product of one pair, fetched alone, takes as long as this many in a product of whole blocks."""


_PROJECTED_ROWS: Final = 4096
"""With fewer rows, finding the directions takes longer than they save."""

_WIDTHS: Final = (32, 64, 128)
"""Numbers per row, tried in this order; more save little."""
_SAMPLE: Final = 2048
"""Rows to find the directions from, and others to try each width with."""
_MOST_LEFT: Final = 1e-4
"""Share of the unlike pairs that may remain: fetching the rows of one takes as long as a thousand short products."""
_ORDINARY: Final = 0.75
"""Share of the rows that have to meet this; the others may be frames of one scene."""
_PROJECTED_AT_ONCE: Final = 65_536


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """Makes vectors shorter, so that their products are upper bounds; arrays only, so that other processes can use it.

    Most products in an all-pairs comparison are of vectors that have nothing in common. The rotation makes the first
    directions carry as much of the vectors' length as possible. Split a rotated vector into ``(x1, x2)``: by the
    Cauchy-Schwarz inequality ``x @ y <= x1 @ y1 + |x2| |y2|``. So rows ``(x1, |x2|)`` of 64 numbers instead of 512
    exclude most pairs for an eighth of the work, and never an alike one. The remaining pairs are multiplied in full.
    """

    rotation: Vectors
    """(D, D), orthogonal."""
    width: int

    def __call__(self, vectors: Vectors) -> Vectors:
        """Return (N, width) float32 for ``vectors``, (N, D).

        The product of two rows is at least that of the same rows of ``vectors``, but for rounding (1e-6).
        """
        projected = np.empty((len(vectors), self.width), dtype=np.float32)
        for start in range(0, len(vectors), _PROJECTED_AT_ONCE):
            some = slice(start, start + _PROJECTED_AT_ONCE)
            rotated = vectors[some] @ self.rotation
            projected[some, :-1] = rotated[:, : self.width - 1]
            # Computed from the cut part itself: one minus the rest would be mostly rounding.
            projected[some, -1] = np.linalg.norm(rotated[:, self.width - 1 :], axis=1)
        return projected


def fit_projection(vectors: Vectors, rows: Indices, threshold: float, *, seed: int = 0) -> Projection | None:
    """Find a projection for vectors such as ``rows`` of ``vectors``, (N, D); None if it would save no time."""
    if len(rows) < _PROJECTED_ROWS:
        return None
    chosen = np.random.default_rng(seed).choice(rows, 2 * _SAMPLE, replace=False)
    sample, others = vectors[chosen[:_SAMPLE]], vectors[chosen[_SAMPLE:]]
    # The directions in which the rows are longest on average, longest first.
    _, directions = np.linalg.eigh(sample.T.astype(np.float64) @ sample)
    rotation = np.ascontiguousarray(directions[:, ::-1], dtype=np.float32)
    unlike = others @ others.T < threshold
    for width in _WIDTHS:
        if 2 * width > vectors.shape[1]:
            return None
        projection = Projection(rotation=rotation, width=width)
        short = projection(others)
        left = np.sort(((short @ short.T >= threshold) & unlike).sum(axis=1))
        if left[: round(_ORDINARY * len(left))].mean() <= _MOST_LEFT * len(left):
            return projection
    return None


def components(vectors: Vectors, threshold: float, *, block_rows: int = BLOCK_ROWS) -> list[Indices]:
    """Return the connected components of rows whose cosine similarity is at least ``threshold``, of two rows or more.

    ``vectors`` is (N, D) float32 with unit rows; a row with NaN is in no component. A component may include pairs that
    miss the threshold by less than the error of float32.
    """
    union_find = UnionFind(len(vectors))
    union_find.join(*alike_links(usable_rows(vectors), vectors, threshold, block_rows=block_rows))
    return union_find.components()


def usable_rows(vectors: Vectors) -> Indices:
    """Return the rows without NaN."""
    # A sum is NaN where any element is, and takes no memory of the size of all vectors.
    return np.flatnonzero(np.isfinite(vectors.sum(axis=1)))


def alike_links(
    rows: Indices,
    vectors: Vectors,
    threshold: float,
    *,
    projected: Vectors | None = None,
    block_rows: int = BLOCK_ROWS,
) -> tuple[Indices, Indices]:
    """Compare all of ``rows`` of ``vectors`` with each other; return pairs that connect each component.

    There are fewer of them than ``rows``, however many pairs are alike. ``projected`` is what a :class:`Projection`
    returned for ``vectors``.
    """
    if len(rows) < 2:
        return rows[:0], rows[:0]
    inside = UnionFind(len(rows))
    if len(rows) >= _CLUSTER_ROWS:
        clusters = _dense_clusters(vectors[rows], threshold)
        # Sort the rows by cluster: a block inside one cluster needs no products.
        order = np.argsort(clusters, kind="stable")
        rows = rows[order]
        starts = np.flatnonzero(np.diff(clusters[order], prepend=-1))
        inside.labels = np.repeat(starts, np.diff(starts, append=len(rows)))
    short = None if projected is None else projected[rows]
    for first, second in block_pairs(len(rows), block_rows):
        if _is_one_cluster(inside.labels[first], inside.labels[second]):
            continue
        shorts = None if short is None else (short[first], short[second])
        left, right = alike_pairs(vectors, rows[first], rows[second], threshold - _SLACK, shorts)
        inside.join(left + first.start, right + second.start)
    linked = np.flatnonzero(inside.labels != np.arange(len(rows)))
    return rows[linked], rows[inside.labels[linked]]


def alike_pairs(
    vectors: Vectors, left: Indices, right: Indices, threshold: float, shorts: tuple[Vectors, Vectors] | None
) -> tuple[Indices, Indices]:
    """Return the positions in ``left`` and ``right`` of all pairs of rows that are alike.

    ``shorts`` are the projections of both.
    """
    if shorts is not None:
        a, b = where(shorts[0] @ shorts[1].T >= threshold - _SLACK)
        if len(a) * _PAIR_COST <= len(left) * len(right):
            alike = np.einsum("ij,ij->i", vectors[left[a]], vectors[right[b]]) >= threshold
            return a[alike], b[alike]
    one = vectors[left]
    # BLAS does half the work if both operands are the same array.
    other = one if np.array_equal(left, right) else vectors[right]
    return where(one @ other.T >= threshold)


def block_pairs(rows: int, block_rows: int = BLOCK_ROWS) -> Iterator[tuple[slice, slice]]:
    """Yield each pair of blocks of rows once, including each block with itself."""
    starts = range(0, rows, block_rows)
    for first in starts:
        for second in starts[first // block_rows :]:
            yield slice(first, min(first + block_rows, rows)), slice(second, min(second + block_rows, rows))


def where(true: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Return rows and columns of the true elements of a matrix; ``np.nonzero`` takes 25 times as long if few are."""
    rows, columns = np.divmod(np.flatnonzero(true), true.shape[1])
    return rows, columns


def _dense_clusters(vectors: Vectors, threshold: float) -> Indices:
    """Label rows by cluster: the rows alike to the first one, then those alike to the first one left, and so on."""
    clusters = UnionFind(len(vectors))
    alone = np.ones(len(vectors), dtype=bool)
    for _ in range(_PIVOTS):
        pivot = int(alone.argmax())
        if not alone[pivot]:
            break
        near = np.flatnonzero(vectors @ vectors[pivot] >= threshold - _SLACK)
        clusters.join(near, np.full(len(near), pivot))
        alone[near] = False
        alone[pivot] = False
        if len(near) >= _DENSE_ROWS:
            # The pivot may lie anywhere in its cluster; the row in the middle is alike to most of it.
            middle = near[(vectors[near] @ vectors[near].mean(axis=0)).argmax()]
            near = np.flatnonzero(vectors @ vectors[middle] >= threshold - _SLACK)
            clusters.join(near, np.full(len(near), middle))
            alone[near] = False
    return clusters.labels


def _is_one_cluster(first: Indices, second: Indices) -> bool:
    return bool(first[0] == second[-1] and (first == first[0]).all() and (second == first[0]).all())

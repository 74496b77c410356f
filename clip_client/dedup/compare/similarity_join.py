"""Joins similar rows into connected components, without storing all pairs: 20,000 photos of a scene have 2e8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.types import Indices, Vectors

_BLOCK_ROWS: Final = 1024
"""Rows per block: the products of two blocks take 4 MB, their pairs at most 40 MB."""

_SLACK: Final = 1e-5
"""Error of float32 block products. The threshold of components is lower by this: their groups are found in float64."""

_CLUSTER_ROWS: Final = 4096
"""Least number of rows for which dense clusters are sought before all pairs are multiplied."""
_PIVOTS: Final = 32
"""Dense clusters to look for; each costs one product per row."""

_DENSE_ROWS: Final = 64
"""Smaller clusters are not refined by a second search from their middle."""

_PAIR_COST: Final = 128
"""The product of one pair, fetched alone, takes as long as this many in a product of whole blocks."""

_PROJECTED_ROWS: Final = 4096
"""Fewest rows for which the directions save more time than it takes to find them."""

_WIDTHS: Final = (32, 64, 128)
"""Numbers per row, tried in this order; more save little."""
_SAMPLE: Final = 2048
"""Rows to find the directions from, and others to try each width with."""
_MOST_LEFT: Final = 1e-4
"""Share of the unlike pairs that may remain: fetching the rows of one takes as long as a thousand short products."""
_ORDINARY: Final = 0.75
"""Share of the rows that have to meet this; the others may be frames of one scene."""
_PROJECTED_AT_ONCE: Final = 65_536


class UnionFind:
    def __init__(self, rows: int) -> None:
        self.labels: Indices = np.arange(rows)

    def join(self, left: Indices, right: Indices) -> None:
        """Join the pairs (``left``, ``right``), both (N,), in rounds, without a Python loop over pairs."""
        while True:
            a, b = self.labels[left], self.labels[right]
            unequal = a != b
            if not unequal.any():
                return
            left, right, a, b = left[unequal], right[unequal], a[unequal], b[unequal]
            hooks = np.arange(len(self.labels))
            np.minimum.at(hooks, np.maximum(a, b), np.minimum(a, b))
            while not np.array_equal(hooks, followed := hooks[hooks]):
                hooks = followed
            self.labels = hooks[self.labels]

    def components(self) -> list[Indices]:
        return equal_runs(self.labels)


def equal_runs(values: NDArray[Any]) -> list[Indices]:
    """Return the positions, in ascending order, of each value that occurs more than once; sorted by value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(order) else order
    sizes = np.diff(starts, append=len(order))
    # Most values occur once and must not cost a step in Python.
    many = sizes > 1
    return [
        order[start : start + size] for start, size in zip(starts[many].tolist(), sizes[many].tolist(), strict=True)
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """Makes vectors shorter, so that their products are upper bounds; arrays only, for other processes.

    The rotation makes the first directions carry as much of the vectors' length as possible. Split a rotated vector
    into ``(x1, x2)``: by the Cauchy-Schwarz inequality ``x @ y <= x1 @ y1 + |x2| |y2|``. So rows ``(x1, |x2|)`` of 64
    numbers instead of 512 exclude most pairs for an eighth of the work, and never a similar one.
    """

    rotation: Vectors
    """(D, D), orthogonal."""
    width: int

    def __call__(self, vectors: Vectors) -> Vectors:
        """Return (N, width) float32 for ``vectors``, (N, D): products are upper bounds, but for rounding (1e-6)."""
        projected = np.empty((len(vectors), self.width), dtype=np.float32)
        for start in range(0, len(vectors), _PROJECTED_AT_ONCE):
            some = slice(start, start + _PROJECTED_AT_ONCE)
            rotated = vectors[some] @ self.rotation
            projected[some, :-1] = rotated[:, : self.width - 1]
            # Computed from the cut part itself: one minus the rest would be mostly rounding.
            projected[some, -1] = np.linalg.norm(rotated[:, self.width - 1 :], axis=1)
        return projected


def fit_projection(vectors: Vectors, rows: Indices, threshold: float) -> Projection | None:
    """Find a projection for vectors such as ``rows`` of ``vectors``, (N, D); None if it would save no time."""
    if len(rows) < _PROJECTED_ROWS:
        return None
    chosen = np.random.default_rng(0).choice(rows, 2 * _SAMPLE, replace=False)
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


def usable_rows(vectors: Vectors) -> Indices:
    # A sum is NaN where any element is, and takes no memory of the size of all vectors.
    return np.flatnonzero(np.isfinite(vectors.sum(axis=1)))


def alike_links(
    rows: Indices, vectors: Vectors, threshold: float, *, projected: Vectors | None = None
) -> tuple[Indices, Indices]:
    """Compare ``rows`` of ``vectors`` with each other; return pairs that connect each component, fewer than rows."""
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
    for first, second in block_pairs(len(rows)):
        cluster = inside.labels[first.start]
        if (inside.labels[first] == cluster).all() and (inside.labels[second] == cluster).all():
            continue
        shorts = None if short is None else (short[first], short[second])
        left, right = alike_pairs(vectors, rows[first], rows[second], threshold - _SLACK, shorts)
        inside.join(left + first.start, right + second.start)
    linked = np.flatnonzero(inside.labels != np.arange(len(rows)))
    return rows[linked], rows[inside.labels[linked]]


def alike_pairs(
    vectors: Vectors, left: Indices, right: Indices, threshold: float, shorts: tuple[Vectors, Vectors] | None
) -> tuple[Indices, Indices]:
    """Return the positions in ``left`` and ``right`` of all pairs that are alike; ``shorts`` are their projections."""
    if shorts is not None:
        a, b = where(shorts[0] @ shorts[1].T >= threshold - _SLACK)
        if len(a) * _PAIR_COST <= len(left) * len(right):
            alike = np.einsum("ij,ij->i", vectors[left[a]], vectors[right[b]]) >= threshold
            return a[alike], b[alike]
    one = vectors[left]
    # BLAS does half the work if both operands are the same array.
    other = one if np.array_equal(left, right) else vectors[right]
    return where(one @ other.T >= threshold)


def block_pairs(rows: int) -> Iterator[tuple[slice, slice]]:
    blocks = [slice(start, min(start + _BLOCK_ROWS, rows)) for start in range(0, rows, _BLOCK_ROWS)]
    yield from combinations_with_replacement(blocks, 2)


def where(true: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Return rows and columns of the true elements of a matrix; ``np.nonzero`` takes 25 times as long if few are."""
    return np.divmod(np.flatnonzero(true), true.shape[1])


def _dense_clusters(vectors: Vectors, threshold: float) -> Indices:
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

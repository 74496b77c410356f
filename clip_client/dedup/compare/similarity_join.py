"""Joins alike rows into connected components, without storing all pairs.

Components only divide the work for ``star_groups``. If a camera takes 20,000 photos of one scene, they have 2e8 pairs.
Each pair takes at most the time of one dot product, and no memory.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.union_find import UnionFind, equal_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]
    ComparePairs = Callable[[Vectors, Indices, Indices, float, tuple[Vectors, Vectors] | None], tuple[Indices, Indices]]

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

_PENDING_PAIRS: Final = 1 << 18
"""Pairs of hashes that are joined at once: each call passes over the labels of all rows, each pair takes 16 bytes."""


def components(vectors: Vectors, threshold: float, *, block_rows: int = BLOCK_ROWS) -> list[Indices]:
    """Return the connected components of rows whose cosine similarity is at least ``threshold``, of two rows or more.

    ``vectors`` is (N, D) float32 with unit rows; a row with NaN is in no component. A component may include pairs that
    miss the threshold by less than the error of float32.
    """
    union_find = UnionFind(len(vectors))
    join_alike(union_find, usable_rows(vectors), vectors, threshold, block_rows=block_rows)
    return union_find.components()


def usable_rows(vectors: Vectors) -> Indices:
    """Return the rows without NaN."""
    # A sum is NaN where any element is, and takes no memory of the size of all vectors.
    return np.flatnonzero(np.isfinite(vectors.sum(axis=1)))


def join_alike(
    union_find: UnionFind,
    rows: Indices,
    vectors: Vectors,
    threshold: float,
    *,
    projected: Vectors | None = None,
    block_rows: int = BLOCK_ROWS,
) -> None:
    """Compare all of ``rows`` of ``vectors`` with each other and join those that are alike."""
    union_find.join(*alike_links(rows, vectors, threshold, projected=projected, block_rows=block_rows))


def alike_links(
    rows: Indices,
    vectors: Vectors,
    threshold: float,
    *,
    projected: Vectors | None = None,
    block_rows: int = BLOCK_ROWS,
    compare: ComparePairs | None = None,
) -> tuple[Indices, Indices]:
    """Compare all of ``rows`` of ``vectors`` with each other; return pairs that connect each component.

    There are fewer of them than ``rows``, however many pairs are alike. ``projected`` is what
    :func:`clip_client.dedup.compare.projection.project` returned for ``vectors``. ``compare`` does what
    :func:`alike_pairs` does, with other hardware.
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
        left, right = (compare or alike_pairs)(vectors, rows[first], rows[second], threshold - _SLACK, shorts)
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


def join_hashes(
    union_find: UnionFind,
    rows: Indices,
    hashes: NDArray[np.uint64],
    most_bits: int,
    *,
    pairs_at_once: int = _PENDING_PAIRS,
) -> None:
    """Join those of ``rows`` whose ``hashes`` differ in at most ``most_bits`` of 64 bits."""
    if len(rows) < 2:
        return
    # Equal hashes are compared once.
    distinct, first_rows, which = np.unique(hashes[rows], return_index=True, return_inverse=True)
    union_find.join(rows, rows[first_rows[which]])
    inside = UnionFind(len(distinct))
    for runs in equal_bands(distinct, most_bits):
        pending = _PendingPairs(inside, pairs_at_once)
        for members in runs:
            for first, second in block_pairs(len(members)):
                left, right = members[first], members[second]
                if not _is_one_cluster(inside.labels[left], inside.labels[right]):
                    a, b = where(bits_that_differ(distinct[left][:, None], distinct[right][None, :]) <= most_bits)
                    pending.add(left[a], right[b])
        pending.join()
    union_find.join(rows[first_rows], rows[first_rows[inside.labels]])


def equal_bands(hashes: NDArray[np.uint64], most_bits: int) -> Iterator[list[Indices]]:
    """Yield, for each of ``most_bits + 1`` bands of 64-bit hashes, the positions of hashes that agree in the band.

    Two hashes that differ in at most ``most_bits`` bits agree in at least one band, so only hashes that agree in a band
    have to be compared (multi-index hashing: Norouzi, Punjani, Fleet 2012).
    """
    edges = np.linspace(0, 64, most_bits + 2).astype(int)
    for low, high in itertools.pairwise(edges.tolist()):
        yield equal_runs((hashes >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1))


class _PendingPairs:
    """Collects pairs and joins many at once, without those whose rows are joined already."""

    def __init__(self, union_find: UnionFind, at_once: int) -> None:
        self._union_find = union_find
        self._at_once = at_once
        self._pairs: list[tuple[Indices, Indices]] = []
        self._count = 0

    def add(self, left: Indices, right: Indices) -> None:
        labels = self._union_find.labels
        unequal = labels[left] != labels[right]
        if unequal.any():
            self._pairs.append((left[unequal], right[unequal]))
            self._count += np.count_nonzero(unequal)
        if self._count >= self._at_once:
            self.join()

    def join(self) -> None:
        if self._count:
            left, right = zip(*self._pairs, strict=True)
            self._union_find.join(np.concatenate(left), np.concatenate(right))
        self._pairs, self._count = [], 0


def where(true: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Return rows and columns of the true elements of a matrix; ``np.nonzero`` takes 25 times as long if few are."""
    rows, columns = np.divmod(np.flatnonzero(true), true.shape[1])
    return rows, columns


def bits_that_differ(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the Hamming distance of two arrays of 64-bit hashes, element by element."""
    # Sideways addition; numpy 1 has no function that counts bits.
    x = first ^ second
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((x * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint8)


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

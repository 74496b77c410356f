"""Which rows hang together: connected components of everything that is alike, without ever storing all pairs.

Components are only the unit of work for ``star_groups``. A camera that fired all night gives 2e8
pairs of 20,000 photos; here they cost time, one product each at most, but never memory.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.union_find import UnionFind, equal_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

BLOCK_ROWS: Final = 1024
"""Rows per block: the products of two blocks take 4 MB, their pairs at most 40 MB."""

_SLACK: Final = 1e-5
"""What float32 block products may be off. Components are found with that much less: a too large one costs work only,
since the stars inside it are decided in float64."""

_HOT_ROWS: Final = 4096
"""From here on it pays to look for a clump first, before all pairs are multiplied."""
_PIVOTS: Final = 32
"""Clumps that are looked for; each costs one product per row."""

_DENSE_ROWS: Final = 64
"""A clump of fewer rows is not worth a second look."""

_FEW_PAIRS: Final = 4096
"""So many pairs of two blocks are multiplied one by one; where more are left, whole blocks are as fast."""

_BITS: Final = 64

_PENDING_PAIRS: Final = 1 << 18
"""Pairs of hashes that are joined at once: each call goes over the labels of all rows, each pair takes 16 bytes."""


def components(vectors: Vectors, threshold: float, *, block_rows: int = BLOCK_ROWS) -> list[Indices]:
    """Find which rows hang together through pairs with cosine similarity >= ``threshold``, comparing all with all.

    ``vectors`` is (N, D) of unit rows; a row that holds NaN hangs together with nothing. A component may be too large
    by pairs that are below the threshold by less than float32 can tell.
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
    rows: Indices, vectors: Vectors, threshold: float, *, projected: Vectors | None = None, block_rows: int = BLOCK_ROWS
) -> tuple[Indices, Indices]:
    """Compare all of ``rows`` of ``vectors`` with each other; return pairs that join what hangs together.

    These are fewer than ``rows``, however many pairs are alike. ``sketch`` is what
    :func:`clip_client.dedup.compare.projection.make_sketch` made of ``vectors``.
    """
    if len(rows) < 2:
        return rows[:0], rows[:0]
    inside = UnionFind(len(rows))
    if len(rows) >= _HOT_ROWS:
        clusters = _dense_clusters(vectors[rows], threshold)
        # Clumps stand together from here on, so that blocks of one clump need no products.
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

    ``shorts`` are the rows' sketches.
    """
    if shorts is not None:
        a, b = where(shorts[0] @ shorts[1].T >= threshold - _SLACK)
        if len(a) <= _FEW_PAIRS:
            alike = np.einsum("ij,ij->i", vectors[left[a]], vectors[right[b]]) >= threshold
            return a[alike], b[alike]
    one = vectors[left]
    # The same rows are given as the same array, since that halves the work.
    other = one if np.array_equal(left, right) else vectors[right]
    return where(one @ other.T >= threshold)


def block_pairs(rows: int, block_rows: int = BLOCK_ROWS) -> Iterator[tuple[slice, slice]]:
    """Yield each two blocks of rows once, a block with itself too."""
    starts = range(0, rows, block_rows)
    for first in starts:
        for second in starts[first // block_rows :]:
            yield slice(first, min(first + block_rows, rows)), slice(second, min(second + block_rows, rows))


def join_hashes(union_find: UnionFind, rows: Indices, hashes: NDArray[np.uint64], most_bits: int) -> None:
    """Join those of ``rows`` whose ``hashes`` differ in at most ``most_bits`` of 64 bits, compared exactly.

    Two such hashes agree in at least one of ``most_bits + 1`` bands, so only hashes with a band in common are compared
    (multi-index hashing: Norouzi, Punjani, Fleet 2012). Equal hashes are compared once.
    """
    if len(rows) < 2:
        return
    distinct, first_rows, which = np.unique(hashes[rows], return_index=True, return_inverse=True)
    union_find.join(rows, rows[first_rows[which]])
    inside = UnionFind(len(distinct))
    edges = np.linspace(0, _BITS, most_bits + 2).astype(int)
    for low, high in itertools.pairwise(edges.tolist()):
        band = (distinct >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1)
        pending = _PendingPairs(inside)
        for members in equal_runs(band):
            for first, second in block_pairs(len(members)):
                left, right = members[first], members[second]
                if not _is_one_cluster(inside.labels[left], inside.labels[right]):
                    a, b = where(bits_that_differ(distinct[left][:, None], distinct[right][None, :]) <= most_bits)
                    pending.add(left[a], right[b])
        pending.join()
    union_find.join(rows[first_rows], rows[first_rows[inside.labels]])


class _PendingPairs:
    """Pairs on their way into a :class:`Joining`, some at a time, and none that it has joined already."""

    def __init__(self, union_find: UnionFind) -> None:
        self._union_find = union_find
        self._pairs: list[tuple[Indices, Indices]] = []
        self._count = 0

    def add(self, left: Indices, right: Indices) -> None:
        labels = self._union_find.labels
        unequal = labels[left] != labels[right]
        if unequal.any():
            self._pairs.append((left[unequal], right[unequal]))
            self._count += np.count_nonzero(unequal)
        if self._count >= _PENDING_PAIRS:
            self.join()

    def join(self) -> None:
        if self._count:
            left, right = zip(*self._pairs, strict=True)
            self._union_find.join(np.concatenate(left), np.concatenate(right))
        self._pairs, self._count = [], 0


def where(true: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Return the rows and columns where a matrix is true: ``np.nonzero``, 25 times faster where that is rare."""
    rows, columns = np.divmod(np.flatnonzero(true), true.shape[1])
    return rows, columns


def bits_that_differ(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the Hamming distance of two arrays of 64-bit hashes, element by element."""
    # The usual sideways addition; numpy 1 has no count of bits.
    x = first ^ second
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((x * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint8)


def _dense_clusters(vectors: Vectors, threshold: float) -> Indices:
    """Label rows by clumps: what is alike with one row, then what is alike with the first one left over, and so on."""
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
            # The first row met lies anywhere in its clump; the one in the middle is alike to most of it.
            middle = near[(vectors[near] @ vectors[near].mean(axis=0)).argmax()]
            near = np.flatnonzero(vectors @ vectors[middle] >= threshold - _SLACK)
            clusters.join(near, np.full(len(near), middle))
            alone[near] = False
    return clusters.labels


def _is_one_cluster(first: Indices, second: Indices) -> bool:
    return bool(first[0] == second[-1] and (first == first[0]).all() and (second == first[0]).all())

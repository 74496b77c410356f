"""Finds 64-bit perceptual hashes that differ in few bits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.similarity_join import UnionFind, equal_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from clip_client.dedup.types import Hashes, Indices


HASH_BITS: Final = 3
"""Bits of 64 in which the perceptual hashes of alike photos may differ. In a collection of 23.5 million pictures hashes
that differ in 3 bits at most belonged to the same picture "with high probability" (czkawka, issue 61)."""
_BANDS: Final = 4
_BAND_BITS: Final = 64 // _BANDS
_PAIRS_AT_ONCE: Final = 1 << 19
"""Pairs that are compared at once; each takes about 50 bytes."""


class HashIndex:
    """Finds all hashes that differ in few bits from others (multi-index hashing: Norouzi, Punjani, Fleet 2012).

    To find what differs in at most n bits, n + 1 is divided among 4 bands of 16 bits. In one of the bands, two such
    hashes differ in fewer bits than its share. So each band is looked up with every choice of fewer bits flipped.
    """

    def __init__(self, hashes: Hashes) -> None:
        """Sort ``hashes``, (N,), by each band."""
        self._hashes = hashes
        self._bands: list[tuple[Indices, Indices]] = []
        """The order by a band, and where each value of the band begins in it."""
        for band in range(_BANDS):
            values = _values(hashes, band)
            order = np.argsort(values, kind="stable")
            self._bands.append((order, np.searchsorted(values[order], np.arange(2**_BAND_BITS + 1))))

    def near(self, hashes: Hashes, most_bits: int) -> Iterator[tuple[Indices, Indices, NDArray[np.uint8]]]:
        """Yield the positions in ``hashes`` and in the index of all pairs that differ in at most ``most_bits``.

        The third array has the bits that differ. A pair may come once for each band.
        """
        for band, (order, starts) in enumerate(self._bands):
            # (M,); none if the share of the band is 0
            flips = _flips((most_bits + _BANDS - band) // _BANDS)
            values = _values(hashes, band)
            at_once = max(1, _PAIRS_AT_ONCE // max(1, len(flips)))
            for begin in range(0, len(hashes) if len(flips) else 0, at_once):
                wanted = (values[begin : begin + at_once, np.newaxis] ^ flips).ravel()
                sizes = starts[wanted + 1] - starts[wanted]
                hits = np.flatnonzero(sizes)
                pairs = np.cumsum(sizes[hits])
                for some in np.split(hits, np.flatnonzero(np.diff(pairs // _PAIRS_AT_ONCE)) + 1):
                    left = begin + np.repeat(some // len(flips), sizes[some])
                    firsts = np.repeat(starts[wanted[some]] - np.cumsum(sizes[some]) + sizes[some], sizes[some])
                    right = order[firsts + np.arange(len(left))]
                    bits = bits_that_differ(hashes[left], self._hashes[right])
                    near = bits <= most_bits
                    yield left[near], right[near], bits[near]


def join_hashes(union_find: UnionFind, rows: Indices, hashes: Hashes, most_bits: int) -> None:
    """Join those of ``rows`` whose ``hashes`` differ in at most ``most_bits`` of 64 bits."""
    distinct, first_rows, which = np.unique(hashes[rows], return_index=True, return_inverse=True)
    union_find.join(rows, rows[first_rows[which]])
    inside = UnionFind(len(distinct))
    for left, right, _ in HashIndex(distinct).near(distinct, most_bits):
        inside.join(left, right)
    union_find.join(rows[first_rows], rows[first_rows[inside.labels]])


def hash_parts(hashes: Hashes, most_bits: int, most_rows: int) -> Iterator[Indices]:
    """Yield positions of 64-bit hashes; two that differ in at most ``most_bits`` bits are together at least once.

    They agree in at least one of ``most_bits + 1`` bands. A part has about ``most_rows`` hashes, or as many as agree in
    a band.
    """
    if len(hashes) <= most_rows:
        yield np.arange(len(hashes))
        return
    edges = np.linspace(0, 64, most_bits + 2).astype(int)
    for low, high in itertools.pairwise(edges.tolist()):
        runs = equal_runs((hashes >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1))
        ends = np.cumsum([len(run) for run in runs]).tolist()
        for _, part in itertools.groupby(zip(ends, runs, strict=True), lambda one: one[0] // most_rows):
            yield np.concatenate([run for _, run in part])


def bits_that_differ(first: Hashes, second: Hashes) -> NDArray[np.uint8]:
    """Return the Hamming distance of two arrays of 64-bit hashes, element by element."""
    # Sideways addition; numpy 1 has no function that counts bits.
    x = first ^ second
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((x * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint8)


def _values(hashes: Hashes, band: int) -> Indices:
    return ((hashes >> np.uint64(band * _BAND_BITS)) & np.uint64(2**_BAND_BITS - 1)).astype(np.intp)


def _flips(count: int) -> Indices:
    """Return all numbers with fewer than ``count`` bits set."""
    chosen = (bits for size in range(count) for bits in itertools.combinations(range(_BAND_BITS), size))
    return np.array([sum(1 << bit for bit in bits) for bits in chosen], dtype=np.intp)

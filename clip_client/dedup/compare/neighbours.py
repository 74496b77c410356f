"""Finds photos near each other by vectors, hashes or times. Each filter pairs a photo with a limited number."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.compare.similarity_join import UnionFind, equal_runs, usable_rows
from clip_client.dedup.types import Hashes, Indices, Mask, Vectors

NEIGHBOURS: Final = 8
"""Other photos that one filter pairs a photo with, at most; later photos may add themselves to it."""

ALIGNED_FROM: Final = 0.85
"""Least cosine similarity at which two photos are worth aligning; the alignment decides."""

WIDE_BITS: Final = 8
"""Bits of 64 by which perceptual hashes may differ, in the best of eight orientations. Measured on 26 sample photos:
turned and mirrored ones differ in at most 8 bits (one of brick in 10), crops by 5 % in 2 to 16, by 10 % in 8 to 22."""

_EXACT_ROWS: Final = 20_000
"""Up to this many vectors, all pairs are compared, in 3 seconds on two cores; above, those in the nearest cells."""
_CELLS_SEARCHED: Final = 8
_POINTS_PER_CELL: Final = 32
_ROWS_AT_ONCE: Final = 4096

HASH_BITS: Final = 3
"""Bits of 64 in which the perceptual hashes of similar photos may differ. In a collection of 23.5 million pictures,
hashes that differ in 3 bits at most belonged to the same picture "with high probability" (czkawka, issue 61)."""
_BANDS: Final = 4
_BAND_BITS: Final = 64 // _BANDS
_PAIRS_AT_ONCE: Final = 1 << 19
"""Pairs that are compared at once; each takes about 50 bytes."""
_OWN: Final = np.arange(8) % 2 == 1
"""The odd ones of the eight frequencies of a direction: they change their sign if the picture is mirrored."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Vectors, hashes and pixels by which rows are compared; element i of each array is about row i."""

    vectors: Vectors
    """(N, D), unit rows; NaN for a row without a usable vector."""
    pixels: Indices
    """(N,), equal for rows of equal pixels."""
    hashes: Hashes
    has_hash: Mask
    """(N,), False for a row without a usable hash."""

    @classmethod
    def of_pixels(cls, pixels: Sequence[int]) -> Evidence:
        count = len(pixels)
        vectors = np.full((count, 1), np.nan, np.float32)
        return cls(vectors, np.array(pixels), np.zeros(count, np.uint64), np.zeros(count, np.bool_))

    def of(self, rows: Indices) -> Evidence:
        return Evidence(self.vectors[rows], self.pixels[rows], self.hashes[rows], self.has_hash[rows])


def candidate_pairs(
    evidence: Evidence,
    *,
    least_cosine: float,
    inner_hashes: Hashes,
    cameras: NDArray[np.object_],
    taken_ms: NDArray[np.float64],
    representatives: Indices,
    named: Indices,
    exact_rows: int = _EXACT_ROWS,
) -> Indices:
    """Return the pairs of rows that may show the same picture, (P, 2), each once and the lower row first.

    - the nearest neighbours by vector, from a cosine of ``least_cosine`` on;
    - the nearest of the rows whose perceptual hashes or ``inner_hashes`` (N,) differ in at most :data:`WIDE_BITS` bits,
      turned and mirrored in all ways. An inner hash is 0 for a photo without a border;
    - photos of one of the ``cameras`` (N,) whose ``taken_ms`` (N,) are equal; NaN if the time is not known;
    - any two of the rows ``named`` (M,).

    ``representatives`` (N,) holds the row that is paired in place of each row: itself, or a row with the same pixels.
    """
    first, second = np.triu_indices(len(named), k=1)
    found = (
        near_by_vectors(evidence.vectors, least_cosine, exact_rows),
        near_by_hashes(*with_inner_hashes(np.flatnonzero(evidence.has_hash), evidence.hashes, inner_hashes)),
        _by_capture_time(cameras, taken_ms),
        [(named[first], named[second])],
    )
    pairs = [np.empty((0, 2), dtype=np.intp)]
    for left, right in itertools.chain.from_iterable(found):
        both = np.sort(np.stack([representatives[left], representatives[right]], axis=1), axis=1)
        pairs.append(np.unique(both[both[:, 0] < both[:, 1]], axis=0))
    return cast("Indices", np.unique(np.concatenate(pairs), axis=0))


def orientations(hashes: Hashes) -> Iterator[Hashes]:
    """Yield the perceptual hashes (N,) of the pictures in each of the eight orientations, the first as they are.

    A mirrored picture has the same frequencies, the odd ones with the other sign, and in a turned one rows and columns
    change places. The bits are those of the frequencies above the median. The median is nearly zero, so a bit changes
    with the sign, except that of a frequency that is hardly there.
    """
    bits = np.unpackbits(hashes.astype(">u8").view(np.uint8)).reshape(-1, 8, 8).astype(bool)
    for turned in (bits, bits.transpose(0, 2, 1)):
        for rows in (np.zeros(8, dtype=bool), _OWN):
            for columns in (np.zeros(8, dtype=bool), _OWN):
                changed = turned ^ rows[:, None] ^ columns
                # The lowest frequency is the mean, which has no sign to change.
                yield np.packbits(changed.reshape(-1, 64), axis=1).view(">u8").ravel().astype(np.uint64)


def near_by_vectors(vectors: Vectors, least: float, exact_rows: int = _EXACT_ROWS) -> Iterator[tuple[Indices, Indices]]:
    """Yield rows of ``vectors`` (N, D), and the nearest other rows of each with at least the cosine ``least``."""
    import faiss

    rows = usable_rows(vectors)
    if len(rows) < 2:
        return
    dimension = vectors.shape[1]
    cells = round(2 * len(rows) ** 0.5)
    kind = "Flat" if len(rows) <= exact_rows else f"IVF{cells},SQfp16"
    index: Any = faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)
    if len(rows) > exact_rows:
        index.nprobe = _CELLS_SEARCHED
        index.cp.min_points_per_centroid = 1  # no warning about a small sample
        sample = np.random.default_rng(0).choice(rows, min(len(rows), cells * _POINTS_PER_CELL), replace=False)
        index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        index.add(np.ascontiguousarray(vectors[rows[start : start + _ROWS_AT_ONCE]]))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        cosines, nearest = index.search(np.ascontiguousarray(vectors[some]), NEIGHBOURS + 1)  # itself is one of them
        near, column = np.nonzero((cosines >= least) & (nearest >= 0))
        yield some[near], rows[nearest[near, column]]


def with_inner_hashes(rows: Indices, hashes: Hashes, inner_hashes: Hashes) -> tuple[Indices, Hashes]:
    bordered = rows[inner_hashes[rows] != 0]
    return np.concatenate([rows, bordered]), np.concatenate([hashes[rows], inner_hashes[bordered]])


def near_by_hashes(rows: Indices, hashes: Hashes, part: int = 0, parts: int = 1) -> Iterator[tuple[Indices, Indices]]:
    """Yield pairs of ``rows`` whose ``hashes`` are near, also turned or mirrored; a pair may come twice."""
    # Equal hashes are looked up once: a scene of thousands of frames would otherwise be compared with itself.
    distinct, firsts, which = np.unique(hashes, return_index=True, return_inverse=True)
    first_rows = rows[firsts]
    if part == 0:
        yield rows, first_rows[which.reshape(-1)]
    index = HashIndex(distinct)
    for start in range(0, len(distinct), _ROWS_AT_ONCE)[part::parts]:
        found = np.empty(0, dtype=np.intp)
        for turned in orientations(distinct[start : start + _ROWS_AT_ONCE]):
            for left, right, bits in index.near(turned, WIDE_BITS):
                # One number per pair, the nearest of each hash first.
                pairs = ((start + left) * (WIDE_BITS + 1) + bits) * len(distinct) + right
                other = start + left != right  # a symmetric picture is its own mirror image
                found = np.unique(np.concatenate([found, pairs[other]]))
                left_of = found // ((WIDE_BITS + 1) * len(distinct))
                found = found[np.arange(len(found)) - np.searchsorted(left_of, left_of) < NEIGHBOURS]
        yield first_rows[found // ((WIDE_BITS + 1) * len(distinct))], first_rows[found % len(distinct)]


def _by_capture_time(cameras: NDArray[np.object_], taken_ms: NDArray[np.float64]) -> Iterator[tuple[Indices, Indices]]:
    dated = np.flatnonzero(np.isfinite(taken_ms))
    _, camera = np.unique(cameras[dated].astype(str), return_inverse=True)
    moments = np.stack([camera.reshape(-1), taken_ms[dated]], axis=1)
    _, moment = np.unique(moments, axis=0, return_inverse=True)
    for run in equal_runs(moment.reshape(-1)):
        rows = dated[run]
        for step in range(1, min(NEIGHBOURS, len(rows) - 1) + 1):
            yield rows[:-step], rows[step:]


class HashIndex:
    """Finds all hashes that differ in few bits from others (multi-index hashing: Norouzi, Punjani, Fleet 2012).

    To find what differs in at most n bits, n + 1 is divided among 4 bands of 16 bits. In one of the bands, two such
    hashes differ in fewer bits than its share. So each band is looked up with every choice of fewer bits flipped.
    """

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._bands: list[tuple[Indices, Indices]] = []
        """The order by a band, and where each value of the band begins in it."""
        for band in range(_BANDS):
            values = _values(hashes, band)
            order = np.argsort(values, kind="stable")
            self._bands.append((order, np.searchsorted(values[order], np.arange(2**_BAND_BITS + 1))))

    def near(self, hashes: Hashes, most_bits: int) -> Iterator[tuple[Indices, Indices, NDArray[np.uint8]]]:
        """Yield (positions in ``hashes``, in the index, bits that differ) of near pairs; some pairs come repeatedly."""
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
    distinct, first_rows, which = np.unique(hashes[rows], return_index=True, return_inverse=True)
    union_find.join(rows, rows[first_rows[which]])
    inside = UnionFind(len(distinct))
    for left, right, _ in HashIndex(distinct).near(distinct, most_bits):
        inside.join(left, right)
    union_find.join(rows[first_rows], rows[first_rows[inside.labels]])


def hash_parts(hashes: Hashes, most_bits: int, most_rows: int) -> Iterator[Indices]:
    """Yield positions of 64-bit hashes; those that differ in at most ``most_bits`` bits agree in one of the bands."""
    if len(hashes) <= most_rows:
        yield np.arange(len(hashes))
        return
    for low, high in itertools.pairwise(np.linspace(0, 64, most_bits + 2).astype(int).tolist()):
        runs = equal_runs((hashes >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1))
        ends = np.cumsum([len(run) for run in runs]).tolist()
        for _, part in itertools.groupby(zip(ends, runs, strict=True), lambda one: one[0] // most_rows):
            yield np.concatenate([run for _, run in part])


def bits_that_differ(first: Hashes, second: Hashes) -> NDArray[np.uint8]:
    # Sideways addition; numpy 1 has no function that counts bits.
    x = first ^ second
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((x * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint8)


def _values(hashes: Hashes, band: int) -> Indices:
    return ((hashes >> np.uint64(band * _BAND_BITS)) & np.uint64(2**_BAND_BITS - 1)).astype(np.intp)


def _flips(count: int) -> Indices:
    chosen = (bits for size in range(count) for bits in itertools.combinations(range(_BAND_BITS), size))
    return np.array([sum(1 << bit for bit in bits) for bits in chosen], dtype=np.intp)

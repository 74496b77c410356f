"""Pairs of photos that are worth verifying, found by cheap and wide filters: by their pixels, or by their alignment.

A filter only has to find the pairs: what they show is decided by pixels at full size or by alignment. Each photo is
paired with at most :data:`NEIGHBOURS` others per filter, so the work grows with the number of photos and not with that
of all pairs.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.compare.hamming import HashIndex
from clip_client.dedup.compare.similarity_join import equal_runs, usable_rows
from clip_client.dedup.features.pixel_hash import pixel_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from clip_client.dedup.compare.star_groups import Evidence
    from clip_client.dedup.features.collect import CollectedFeatures
    from clip_client.dedup.files.reading import PhotoReader
    from clip_client.dedup.store.store import Store
    from clip_client.dedup.types import Hashes, Indices, Vectors

NEIGHBOURS: Final = 8
"""Other photos that one filter pairs a photo with, at most; later photos may add themselves to it."""

ALIGNED_FROM: Final = 0.85
"""Cosine similarity from which two photos are worth aligning, which decides."""

WIDE_BITS: Final = 8
"""Bits of 64 by which perceptual hashes may differ, in the best of eight orientations. Measured on 26 sample photos:
turned and mirrored ones differ in at most 8 bits (one of brick in 10), crops by 5 % in 2 to 16, by 10 % in 8 to 22."""

_EXACT_ROWS: Final = 20_000
"""Up to this many vectors, each is compared with each, which takes 3 seconds on two cores; above, with those of the
nearest cells only."""
_CELLS_SEARCHED: Final = 8
_POINTS_PER_CELL: Final = 32
_ROWS_AT_ONCE: Final = 4096

_SAME_PIXELS_BITS: Final = 8
"""Bits of 64 by which the hash of a JPEG decoded at a fraction of its size may differ from that of its pixels in
another format. Measured: 160 pairs of a JPEG and its PNG, made from 20 photos at up to 1,600 pixels, differed in 0 bits
(140 pairs), 2 bits (15) or 4 bits (5, mostly of a brick wall, whose frequencies are all alike)."""
_OWN: Final = np.arange(8) % 2 == 1
"""The odd ones of the eight frequencies of a direction: they change their sign if the picture is mirrored."""


def candidate_pairs(
    evidence: Evidence,
    *,
    least_cosine: float,
    inner_hashes: Hashes,
    cameras: NDArray[np.object_],
    taken_ms: NDArray[np.float64],
    representatives: Indices,
    exact_rows: int = _EXACT_ROWS,
) -> Indices:
    """Return the pairs of rows that may show the same, (P, 2), each once and the lower row first.

    Three kinds of rows are paired:

    - the nearest neighbours by vector, from a cosine of ``least_cosine`` on. Up to ``exact_rows`` vectors, each is
      compared with each;
    - the nearest of the rows whose perceptual hashes or ``inner_hashes`` (N,) differ in at most :data:`WIDE_BITS` bits,
      turned and mirrored in all ways. An inner hash is 0 for a photo without a border;
    - photos of one of the ``cameras`` (N,) whose ``taken_ms`` (N,) are equal; NaN if the time is not known.

    ``representatives`` (N,) holds the row that is paired in place of each row: itself, or a row with the same pixels.
    """
    found = (
        near_by_vectors(evidence.vectors, least_cosine, exact_rows),
        near_by_hashes(*with_inner_hashes(np.flatnonzero(evidence.has_hash), evidence.hashes, inner_hashes)),
        _by_capture_time(cameras, taken_ms),
    )
    pairs = [np.empty((0, 2), dtype=np.intp)]
    for left, right in chain.from_iterable(found):
        both = np.sort(np.stack([representatives[left], representatives[right]], axis=1), axis=1)
        pairs.append(np.unique(both[both[:, 0] < both[:, 1]], axis=0))
    distinct: Indices = np.unique(np.concatenate(pairs), axis=0)
    return distinct


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
    """Return ``rows`` and their ``hashes`` (N,), followed by the rows that have one of ``inner_hashes`` (N,) and it."""
    bordered = rows[inner_hashes[rows] != 0]
    return np.concatenate([rows, bordered]), np.concatenate([hashes[rows], inner_hashes[bordered]])


def near_by_hashes(rows: Indices, hashes: Hashes, part: int = 0, parts: int = 1) -> Iterator[tuple[Indices, Indices]]:
    """Yield some of ``rows`` and, for each, those whose ``hashes`` are nearest, turned and mirrored in all ways.

    Element i of ``hashes`` is about element i of ``rows``, in which a row may stand more than once. A row may be paired
    with itself. Each of the ``parts`` has the pairs of other rows.
    """
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


def number_by_pixels(
    collected: CollectedFeatures, contents: Sequence[str], store: Store, reader: PhotoReader
) -> tuple[Indices, int]:
    """Return (N,) numbers, equal for contents of equal pixels, and how many contents were decoded in full for it.

    Only contents that may have equal pixels are decoded, once per store.
    """
    numbers = np.arange(len(contents))
    rows = np.flatnonzero(collected.are_pictures(contents))
    names = ("width", "height", "perceptual_hash", "is_scaled", "is_flat")
    width, height, *facts = (collected.features.column(name, [contents[row] for row in rows]) for name in names)
    candidates = rows[pixel_candidates(np.stack([width, height], axis=1), *facts)].tolist()
    paths = {contents[row]: collected.copies[contents[row]][0].path for row in candidates}
    hashes, decoded = pixel_hashes(paths, store, reader) if paths else ({}, 0)
    first_with: dict[str, int] = {}
    for row in candidates:
        if pixels := hashes[contents[row]]:
            numbers[row] = first_with.setdefault(pixels, row)
    return numbers, decoded


def pixel_candidates(sizes: NDArray[Any], hashes: Hashes, is_scaled: NDArray[Any], is_flat: NDArray[Any]) -> Indices:
    """Return the rows, ascending, whose pixels may be equal to those of another row.

    ``sizes`` is (N, 2); ``hashes`` holds (N,) perceptual hashes, and ``is_scaled`` which of them were made from a JPEG
    decoded at a fraction of its size. Photos of one size are candidates if their hashes are equal, or if one hash was
    made from scaled pixels and the other was not, and they differ in a few bits. So the frames of a burst, which are
    all scaled, are not decoded, however alike they are. The hash of a picture of nearly one colour (``is_flat``) is
    noise, so any two such pictures of one size, one scaled and one not, are candidates.
    """
    size = np.unique(sizes, axis=0, return_inverse=True)[1].reshape(-1)
    is_candidate = np.zeros(len(hashes), dtype=bool)
    which = np.unique(hashes, return_inverse=True)[1].reshape(-1)
    for rows in equal_runs(size * len(hashes) + which):
        is_candidate[rows] = True
    scaled, whole = np.flatnonzero(is_scaled), np.flatnonzero(~is_scaled)
    for left, right, _ in HashIndex(hashes[whole]).near(hashes[scaled], _SAME_PIXELS_BITS):
        pair = np.stack([scaled[left], whole[right]])
        is_candidate[pair[:, size[pair[0]] == size[pair[1]]]] = True
    flat_scaled, flat_whole = np.flatnonzero(is_flat & is_scaled), np.flatnonzero(is_flat & ~is_scaled)
    is_candidate[flat_scaled[np.isin(size[flat_scaled], size[flat_whole])]] = True
    is_candidate[flat_whole[np.isin(size[flat_whole], size[flat_scaled])]] = True
    return np.flatnonzero(is_candidate)

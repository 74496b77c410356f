"""Selects the photos that may have equal pixels, which are few, so that only they are decoded at full size."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.compare.similarity_join import BLOCK_ROWS, bits_that_differ, equal_bands
from clip_client.dedup.compare.union_find import equal_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Indices = NDArray[np.intp]
    Hashes = NDArray[np.uint64]

_MOST_BITS: Final = 8
"""Bits of 64 by which the hash of a JPEG decoded at a fraction of its size may differ from that of its pixels in
another format. Measured: 160 pairs of a JPEG and its PNG, made from 20 photos at up to 1,600 pixels, differed in 0 bits
(140 pairs), 2 bits (15) or 4 bits (5, mostly of a brick wall, whose frequencies are all alike)."""


def pixel_candidates(sizes: NDArray[Any], hashes: Hashes, is_scaled: NDArray[Any], is_flat: NDArray[Any]) -> Indices:
    """Return the rows, ascending, whose pixels may be equal to those of another row.

    ``sizes`` is (N, 2); ``hashes`` holds (N,) perceptual hashes, and ``is_scaled`` which of them were made from a JPEG
    decoded at a fraction of its size. Photos of one size are candidates if their hashes are equal, or if one hash was
    made from scaled pixels and the other was not, and they differ in a few bits. So the frames of a burst, which are
    all scaled, are not decoded, however alike they are. The hash of a picture of nearly one colour (``is_flat``) is
    noise, so any two such pictures of one size, one scaled and one not, are candidates.
    """
    is_candidate = np.zeros(len(hashes), dtype=bool)
    _, which = np.unique(sizes, axis=0, return_inverse=True)
    for rows in equal_runs(which.reshape(-1)):
        for equal in equal_runs(hashes[rows]):
            is_candidate[rows[equal]] = True
        scaled, whole = rows[is_scaled[rows]], rows[~is_scaled[rows]]
        for left, right in _near(hashes[scaled], hashes[whole]):
            is_candidate[scaled[left]] = True
            is_candidate[whole[right]] = True
        flat_scaled, flat_whole = scaled[is_flat[scaled]], whole[is_flat[whole]]
        if len(flat_scaled) and len(flat_whole):
            is_candidate[flat_scaled] = True
            is_candidate[flat_whole] = True
    return np.flatnonzero(is_candidate)


def _near(first: Hashes, second: Hashes) -> Iterator[tuple[Indices, Indices]]:
    """Yield positions in ``first`` and in ``second`` of hashes that differ in few bits from one of the other array."""
    if not len(first) or not len(second):
        return
    both = np.concatenate([first, second])
    for together in itertools.chain.from_iterable(equal_bands(both, _MOST_BITS)):
        left = together[together < len(first)]
        right = together[together >= len(first)]
        for start in range(0, len(left) if len(right) else 0, BLOCK_ROWS):
            some = left[start : start + BLOCK_ROWS]
            for begin in range(0, len(right), BLOCK_ROWS):
                others = right[begin : begin + BLOCK_ROWS]
                near = bits_that_differ(both[some][:, None], both[others][None, :]) <= _MOST_BITS
                yield some[near.any(axis=1)], others[near.any(axis=0)] - len(first)

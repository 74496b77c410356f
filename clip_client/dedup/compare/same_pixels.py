"""Photos of equal pixels: which contents have to be decoded in full, and which have the same pixels."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.compare.neighbours import HashIndex
from clip_client.dedup.compare.similarity_join import equal_runs
from clip_client.dedup.features.collect import CollectedFeatures
from clip_client.dedup.features.hashes import pixel_hashes
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import Hashes, Indices

_SAME_PIXELS_BITS: Final = 8
"""Bits of 64 by which the hash of a JPEG decoded at a fraction of its size may differ from that of its pixels in
another format. Measured: 160 pairs of a JPEG and its PNG, made from 20 photos at up to 1,600 pixels, differed in 0 bits
(140 pairs), 2 bits (15) or 4 bits (5, mostly of a brick wall, whose frequencies are all alike)."""


def number_by_pixels(collected: CollectedFeatures, store: Store) -> tuple[Indices, int]:
    """Return (N,) numbers, equal for contents of equal pixels, and how many contents were decoded in full for it."""
    contents = collected.contents
    numbers, rows = np.arange(len(contents)), np.flatnonzero(collected.are_pictures)
    names = ("width", "height", "perceptual_hash", "is_scaled", "is_flat")
    width, height, *facts = (collected.column(name)[rows] for name in names)
    candidates = rows[pixel_candidates(np.stack([width, height], axis=1), *facts)].tolist()
    paths = {contents[row]: collected.copies[contents[row]][0].path for row in candidates}
    hashes, decoded = pixel_hashes(paths, store, collected.read, collected.threads) if paths else ({}, 0)
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

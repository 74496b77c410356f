"""Which photos are decoded at full size to compare their pixels."""

from __future__ import annotations

import numpy as np

from clip_client.dedup.compare.equal_pixels import pixel_candidates


def candidates(*photos: tuple[int, int, bool, bool]) -> list[int]:
    """Each photo is (width, hash, is scaled, is flat)."""
    widths, hashes, scaled, flat = (list(column) for column in zip(*photos, strict=True))
    found = pixel_candidates(
        np.array([(width, 3) for width in widths]),
        np.array(hashes, dtype=np.uint64),
        np.array(scaled, dtype=bool),
        np.array(flat, dtype=bool),
    )
    return [int(row) for row in found]


def test_equal_hashes_and_sizes_are_candidates_however_they_were_decoded() -> None:
    assert candidates((4, 7, True, False), (4, 7, True, False), (5, 7, True, False)) == [0, 1]
    assert candidates((4, 7, False, False), (4, 8, False, False)) == []


def test_hashes_of_scaled_and_whole_pixels_may_differ_in_eight_bits() -> None:
    whole = 0x0123_4567_89AB_CDEF
    for wrong in (0xFF, 0xFF << 56, 0x8040_2010_0804_0201, 0x0102_0408_1020_4080):
        assert candidates((4, whole, False, False), (4, whole ^ wrong, True, False)) == [0, 1]
    assert candidates((4, whole, False, False), (4, whole ^ 0x1FF, True, False)) == []
    assert candidates((4, whole, False, False), (5, whole ^ 1, True, False)) == []


def test_a_burst_of_scaled_photos_is_not_decoded() -> None:
    burst = [(4, 1 << bit, True, False) for bit in range(20)]
    assert candidates(*burst) == []
    assert candidates(*burst, (4, 1 << 3, False, False)) == list(range(21))  # two bits from each
    assert candidates(*burst, (4, 0xFFFF << 40, False, False)) == []


def test_nearly_blank_pictures_of_one_size_are_candidates_whatever_their_hashes() -> None:
    flat = [(4, 0, True, True), (4, 2**64 - 1, False, True), (5, 0xFF, True, True), (4, 0xFFFF, False, False)]
    assert candidates(*flat) == [0, 1]


def test_many_photos_in_one_band_are_compared_in_blocks() -> None:
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**40, size=2200, dtype=np.uint64)  # the upper bands are equal
    sizes, scaled = np.full((2200, 2), 4), np.arange(2200) % 2 == 0
    hashes[2199] = hashes[0] ^ np.uint64(0b1011)
    found = pixel_candidates(sizes, hashes, scaled, np.zeros(2200, dtype=bool))
    bits = np.unpackbits((hashes[scaled][:, None] ^ hashes[~scaled][None, :]).view(np.uint8), axis=1)
    near = bits.reshape(1100, 1100, 64).sum(axis=2) <= 8
    assert {0, 2199} <= set(found.tolist())
    assert found.tolist() == sorted([*(np.flatnonzero(near.any(1)) * 2), *(np.flatnonzero(near.any(0)) * 2 + 1)])

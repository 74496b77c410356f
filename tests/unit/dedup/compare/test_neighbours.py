"""Which pairs are worth aligning, and which are worth a comparison of pixels: by hashes, neighbours and times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageOps
from PIL.Image import Transpose

from clip_client.dedup.compare.cells import join_vectors
from clip_client.dedup.compare.neighbours import (
    HASH_BITS,
    NEIGHBOURS,
    WIDE_BITS,
    Evidence,
    candidate_pairs,
    join_hashes,
    near_by_hashes,
    orientations,
)
from clip_client.dedup.compare.same_pixels import pixel_candidates
from clip_client.dedup.compare.similarity_join import UnionFind
from clip_client.dedup.compare.star_groups import CannotLink, star_groups
from clip_client.dedup.features.hashes import inner_hash, perceptual_hash
from tests.fixtures.images.scenes import scene
from tests.fixtures.vectors import clusters
from tests.unit.dedup.compare.comparisons import evidence_of, with_peak_bytes


def candidates(evidence: Evidence, **given: Any) -> Any:
    count = len(evidence.pixels)
    defaults: dict[str, Any] = {
        "least_cosine": 0.5,
        "inner_hashes": np.zeros(count, dtype=np.uint64),
        "cameras": np.full(count, "", dtype=object),
        "taken_ms": np.full(count, np.nan),
        "representatives": np.arange(count),
        "named": np.empty(0, dtype=np.intp),
    }
    return candidate_pairs(evidence, **{**defaults, **given})


def pairs(count: int, *, vectors: Any = None, hashes: Any = None, **given: Any) -> list[tuple[int, int]]:
    """Return the pairs of ``count`` rows; a hash of None says nothing."""
    evidence = evidence_of(np.eye(max(count, 2))[:count] if vectors is None else vectors, hashes=hashes)
    return [(first, second) for first, second in candidates(evidence, **given).tolist()]


@pytest.mark.parametrize("turn", [None, *Transpose])
def test_the_hash_of_a_turned_picture_follows_from_its_own(turn: Transpose | None) -> None:
    picture = scene(3)
    own = np.array([perceptual_hash(picture)], dtype=np.uint64)
    turned = perceptual_hash(picture if turn is None else picture.transpose(turn))
    bits = sorted(bin(int(one[0]) ^ turned).count("1") for one in orientations(own))
    assert bits[0] <= (0 if turn is None else WIDE_BITS)
    assert bits[1] > WIDE_BITS  # and only in one orientation


def test_neighbours_by_vector_are_paired_from_the_threshold_and_without_those_that_have_none() -> None:
    vectors = np.array([[1, 0], [0.6, 0.8], [0, 1], [np.nan, np.nan]], dtype=np.float32)
    assert pairs(4, vectors=vectors, least_cosine=0.7) == [(1, 2)]
    assert pairs(4, vectors=vectors, least_cosine=0.5) == [(0, 1), (1, 2)]


def test_many_vectors_are_looked_up_in_cells() -> None:
    vectors = clusters(seed=0, count=200, size=2, spread=0.05, dimension=16)
    found = pairs(400, vectors=vectors, least_cosine=0.9, exact_rows=9)
    assert set(found) >= {(row, row + 1) for row in range(0, 400, 2)}


def test_hashes_pair_their_nearest_in_any_orientation() -> None:
    hashes = [perceptual_hash(picture) for picture in (scene(0), scene(1), scene(0).transpose(Transpose.ROTATE_90))]
    assert pairs(3, hashes=hashes) == [(0, 2)]
    assert pairs(3, hashes=[*hashes[:2], None]) == []


def test_a_picture_with_a_border_is_paired_by_what_lies_within_it() -> None:
    pictures = [scene(0), scene(1), ImageOps.expand(ImageOps.mirror(scene(0)), 60, "white")]
    hashes = [perceptual_hash(picture) for picture in pictures]
    assert pairs(3, hashes=hashes) == []
    inner_hashes = np.array(list(map(inner_hash, pictures)), dtype=np.uint64)
    assert pairs(3, hashes=hashes, inner_hashes=inner_hashes) == [(0, 2)]


def test_parts_of_a_search_by_hash_find_what_the_whole_does() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64, 4200, dtype=np.uint64)
    hashes[4000:] = hashes[:200] ^ np.uint64(7)

    def found(*part: int) -> set[tuple[int, int]]:
        blocks = near_by_hashes(np.arange(4200), hashes, *part)
        return {pair for left, right in blocks for pair in zip(left.tolist(), right.tolist(), strict=True)}

    assert found() == found(0, 2) | found(1, 2) != found(0, 2)
    assert found() >= {(row, row + 4000) for row in range(200)}


def test_equal_hashes_are_paired_with_the_first_of_them() -> None:
    found = pairs(50, hashes=[perceptual_hash(scene(0))] * 50)
    assert found == [(0, row) for row in range(1, 50)]


def test_20_000_frames_of_one_scene_take_no_memory_for_their_pairs() -> None:
    """Their 2e8 pairs would be 3 GB. They are one component, one group, and few pairs are worth aligning."""
    count = 20_000
    frames = clusters(seed=0, count=1, size=count, spread=0.1, dimension=64)
    hashes = np.uint64(1) << np.random.default_rng(0).integers(0, 64, count).astype(np.uint64)
    evidence = Evidence(frames, np.arange(count), hashes, np.ones(count, dtype=bool))
    alike = UnionFind(count)

    def compare() -> tuple[int, dict[int, list[int]]]:
        join_vectors(alike, frames, 0.98)
        join_hashes(alike, np.arange(count), hashes, HASH_BITS)
        cameras = np.full(count, "a", dtype=object)
        found = candidates(evidence, least_cosine=0.85, cameras=cameras, taken_ms=np.full(count, 5.0))
        return len(found), star_groups(evidence, 0.98, most_bits=HASH_BITS, cannot_link=CannotLink())

    (pairs_to_align, stars), peak_bytes = with_peak_bytes(compare)
    assert [len(rows) for rows in alike.components()] == [count]
    assert {kept: len(members) for kept, members in stars.items()} == {0: count - 1}
    assert pairs_to_align <= 3 * NEIGHBOURS * count
    assert peak_bytes < 100e6


def test_equal_times_of_one_camera_are_paired_up_to_a_cap() -> None:
    cameras = np.array(["a", "a", "b", "", ""], dtype=object)
    times = np.array([5.0, 5.0, 5.0, np.nan, np.nan])
    assert pairs(5, cameras=cameras, taken_ms=times) == [(0, 1)]
    many = pairs(100, cameras=np.full(100, "a", dtype=object), taken_ms=np.full(100, 5.0))
    assert len(many) < 100 * NEIGHBOURS


def test_rows_of_one_picture_are_paired_once_and_never_with_each_other() -> None:
    vectors = np.array([[1, 0]] * 4, dtype=np.float32)
    found = pairs(4, vectors=vectors, representatives=np.array([0, 0, 2, 2]))
    assert found == [(0, 2)]
    assert pairs(0) == pairs(1) == []


def check_pixel_candidates(sizes: Any, hashes: Any, scaled: Any, flat: Any) -> list[int]:
    """Return the rows that are decoded to compare their pixels, after a comparison with their definition."""
    sizes, hashes = np.array([(size, 3) for size in sizes]), np.array(hashes, dtype=np.uint64)
    scaled, flat = np.array(scaled, dtype=bool), np.array(flat, dtype=bool)
    bits = np.unpackbits((hashes[:, None] ^ hashes).view(np.uint8), axis=1).reshape(*[len(hashes)] * 2, 64).sum(axis=2)
    is_pair = (bits == 0) | ((scaled[:, None] != scaled) & ((bits <= 8) | (flat[:, None] & flat)))
    is_pair &= (sizes[:, None] == sizes).all(axis=2) & ~np.eye(len(hashes), dtype=bool)
    found: list[int] = pixel_candidates(sizes, hashes, scaled, flat).tolist()
    assert found == np.flatnonzero(is_pair.any(axis=0)).tolist()
    return found


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(st.integers(4, 5), st.sets(st.integers(0, 63), max_size=9), st.booleans(), st.booleans()), min_size=1
    )
)
def test_pixels_are_compared_of_equal_hashes_and_of_near_ones_where_only_one_is_scaled(
    rows: list[tuple[int, set[int], bool, bool]],
) -> None:
    """A burst, whose frames are all scaled, is not decoded; nearly blank pictures have hashes that say nothing."""
    sizes, flips, scaled, flat = zip(*rows, strict=True)
    check_pixel_candidates(sizes, [sum(1 << bit for bit in bits) for bits in flips], scaled, flat)


def test_many_photos_in_one_band_are_compared_in_blocks() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**40, size=2200, dtype=np.uint64)  # the upper bands are equal
    hashes[2199] = hashes[0] ^ np.uint64(0b1011)
    found = check_pixel_candidates([4] * 2200, hashes, np.arange(2200) % 2 == 0, [False] * 2200)
    assert {0, 2199} <= set(found)

"""Who is kept, who stays apart, and why."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.dedup import Evidence, star_groups
from clip_client.dedup.compare.keep_rules import Candidate, KeepRules
from clip_client.dedup.features.capture_time import CaptureTime
from clip_client.dedup.features.image_features import ImageFeatures

if TYPE_CHECKING:
    from numpy.typing import NDArray


def at_degrees(*angles: float) -> NDArray[np.float32]:
    radians = np.radians(angles)
    vectors: NDArray[np.float32] = np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)
    return vectors


def candidate(path: str = "a.jpg", **more: Any) -> Candidate:
    given: dict[str, Any] = {
        "sha256": "00",
        "size_bytes": 1,
        "mtime_ns": 0,
        "features": ImageFeatures(width=4, height=3),
        **more,
    }
    return Candidate(path=path, **given)


def members(vectors: NDArray[np.float32], threshold: float, **options: Any) -> list[set[int]]:
    return [{star.keep, *star.members} for star in star_groups(vectors, threshold, **options)]


def test_rows_that_are_to_stay_apart_are_never_in_one_group() -> None:
    vectors = at_degrees(0, 1, 2, 3)
    near = float(np.cos(np.radians(5)))
    assert members(vectors, near) == [{0, 1, 2, 3}]
    assert members(vectors, near, cannot_link={0: np.array([2]), 2: np.array([0])}) == [{0, 1}, {2, 3}]
    # Two members that are alike to the kept one, but not to be with each other.
    assert members(vectors, near, cannot_link={1: np.array([2]), 2: np.array([1])}) == [{0, 1, 3}]
    everything = np.arange(4)
    assert members(vectors, near, cannot_link=dict.fromkeys(range(4), everything)) == []


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    angles=st.lists(st.integers(0, 40), min_size=2, max_size=12),
    pairs=st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=12),
)
def test_stars_hold_what_they_promise(angles: list[int], pairs: set[tuple[int, int]]) -> None:
    vectors, threshold = at_degrees(*angles), float(np.cos(np.radians(6)))
    forbidden = {frozenset(pair) for pair in pairs if len(set(pair)) == 2 and max(pair) < len(angles)}
    apart = {
        row: np.array(sorted(other for pair in forbidden if row in pair for other in pair if other != row))
        for row in {row for pair in forbidden for row in pair}
    }
    stars = star_groups(vectors, threshold, cannot_link=apart)
    rows = [row for star in stars for row in (star.keep, *star.members)]
    assert len(rows) == len(set(rows))
    for star in stars:
        assert all(star.keep < row for row in star.members)
        assert all(abs(angles[star.keep] - angles[row]) <= 6 for row in star.members)
        assert not any(frozenset(pair) in forbidden for pair in itertools.combinations((star.keep, *star.members), 2))


def test_equal_pixels_and_hashes_join_what_vectors_do_not() -> None:
    evidence = Evidence(
        vectors=np.concatenate([at_degrees(0, 60), np.full((2, 2), np.nan, np.float32), at_degrees(90)]),
        pixels=np.array([0, 1, 2, 2, 4]),
        hashes=np.array([0b111, 0b110, 0b111, 0b111, 0b111], dtype=np.uint64),
        has_hash=np.array([True, True, False, False, False]),
    )
    found = star_groups(evidence, 0.99, most_bits=1)
    assert [(star.keep, star.members) for star in found] == [(0, (1,)), (2, (3,))]
    assert found[0].similarities[0] == pytest.approx(0.5, abs=1e-6)
    assert np.isnan(found[1].similarities[0])
    assert [star.keep for star in star_groups(evidence, 0.99, most_bits=0)] == [2]


def test_a_group_of_a_night_needs_no_room_for_its_pairs() -> None:
    """5,000 frames of which few are alike to the first: many are kept, in blocks, and none is lost or doubled."""
    random = np.random.default_rng(0)
    vectors = np.ones((5000, 16)) + 0.15 * random.standard_normal((5000, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    stars = star_groups(vectors, 0.985)
    assert len(stars) > 10
    kept = [star.keep for star in stars]
    rows = [row for star in stars for row in (star.keep, *star.members)]
    assert len(rows) == len(set(rows)) > 4000
    for star in stars[:20]:
        to_kept = vectors[list(star.members)].astype(np.float64) @ vectors[kept].astype(np.float64).T
        to_kept[np.array(kept) > np.array(star.members)[:, None]] = -1  # a kept row is better than its members
        assert (to_kept.argmax(axis=1) == kept.index(star.keep)).mean() > 0.99  # but for ties of the sixth decimal


@pytest.mark.parametrize(
    ("rule", "kept", "other", "reason"),
    [
        ("reference", {"is_reference": True}, {}, "in a reference folder"),
        ("companions", {"companions": ("RAW file",)}, {}, "has a RAW file beside it"),
        ("companions", {"features": ImageFeatures(embedded="film")}, {}, "holds more than its picture: film"),
        ("pixels", {"features": ImageFeatures(width=40, height=30)}, {}, "most pixels: 40x30, next 4x3"),
        ("bytes", {"size_bytes": 2000}, {}, "largest file: 2.0 kB, next 1 B"),
        (
            "metadata",
            {"features": ImageFeatures(capture_time=CaptureTime(fields=3))},
            {},
            "most metadata: 3 fields, next 0",
        ),
        (
            "oldest",
            {"features": ImageFeatures(capture_time=CaptureTime(taken_ms=1))},
            {"mtime_ns": 10**9},
            "oldest date",
        ),
        ("newest", {"mtime_ns": 10**9}, {}, "newest date"),
        ("format=heic,jpg", {"path": "z.HEIC"}, {}, "format heic rather than jpg"),
        ("path=*/originals/*", {"path": "x/originals/z.jpg"}, {}, "path matches */originals/*"),
        ("not-path=*WhatsApp*", {"path": "z.jpg"}, {"path": "WhatsApp/a.jpg"}, "path does not match *WhatsApp*"),
    ],
)
def test_each_rule_prefers_and_says_why(rule: str, kept: dict[str, Any], other: dict[str, Any], reason: str) -> None:
    rules = KeepRules([rule])
    best, second = candidate(**{"path": "z.jpg", **kept}), candidate(**other)
    assert rules.rank(best) < rules.rank(second)
    assert rules.reason(best, second) == reason


def test_the_first_rule_that_tells_apart_decides() -> None:
    small, large = candidate("s.heic"), candidate("l.jpg", features=ImageFeatures(width=40, height=30))
    assert KeepRules(["format=heic", "pixels"]).rank(small) < KeepRules(["format=heic", "pixels"]).rank(large)
    assert KeepRules(["pixels", "format=heic"]).rank(large) < KeepRules(["pixels", "format=heic"]).rank(small)


@pytest.mark.parametrize("name", ["biggest", "format=", "pixels=3", "path"])
def test_an_unknown_rule_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="the rules are reference"):
        KeepRules([name])

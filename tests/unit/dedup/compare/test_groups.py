"""From a comparison to the groups of a report: tiers, similarities, what each copy is a copy of, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client.dedup.aligned import Match
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.photo import ImageFeatures, Photo
from clip_client.dedup.types import BURST, EXACT, SAME_PIXELS, SAME_SCENE, SIMILAR, CaptureTime
from tests.unit.dedup.compare.comparisons import grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

# Vectors in a plane whose products are these decimals, so that each test can stand right on a threshold.
A = (1.0, 0.0)
AT_96 = (0.96, 0.28)
AT_80 = (0.8, 0.6)
BELOW = (0.79, 0.6131)
AT_MINUS_28 = (-0.28, 0.96)
NOTHING = (np.nan, np.nan)


def file(path: str, size_bytes: int = 1, **features: Any) -> Photo:
    """A file; of two, the one with more bytes is kept. Those whose names begin alike have the same bytes."""
    return Photo(path=path, sha256=path[:1] * 64, size_bytes=size_bytes, features=ImageFeatures(**features))


def groups(
    files: Sequence[Sequence[Photo]], vectors: Sequence[tuple[float, float]], **more: Any
) -> tuple[DuplicateGroup, ...]:
    return grouped(files, vectors, KeepRules(["bytes"]), similar=0.8, **more)


def photos(*sizes_bytes: int) -> list[list[Photo]]:
    """Contents of one file each, ``a.jpg``, ``b.jpg``, ...; the largest is kept."""
    return [[file(f"{'abcdefgh'[row]}.jpg", size)] for row, size in enumerate(sizes_bytes)]


def paths(group: DuplicateGroup) -> list[str]:
    return [member.path for member in group.members]


def named(group: DuplicateGroup) -> dict[str, tuple[str, str]]:
    """What each member is a closer copy of, and how certain that is."""
    return {member.path: (member.copy_of, member.copy_tier) for member in group.members}


@pytest.mark.parametrize("vector", [A, AT_96, AT_80])
def test_a_similarity_on_the_threshold_reaches_it(vector: tuple[float, float]) -> None:
    files = photos(2, 1)
    (group,) = groups(files, [A, vector])
    kept, member = group.members
    assert (group.tier, kept.tier, kept.similarity, kept.photo, kept.matches) == (SIMILAR, EXACT, 1.0, files[0][0], ())
    assert member.similarity == pytest.approx(vector[0], abs=1e-6)
    match = Match(test="embedding", value=member.similarity, threshold=0.8)
    assert member == Member(photo=files[1][0], similarity=member.similarity, tier=SIMILAR, matches=(match,))


def test_nothing_is_grouped_below_the_threshold_or_against_what_people_decided() -> None:
    for second in (BELOW, NOTHING):
        assert groups(photos(2, 1), [A, second]) == ()
    assert groups(photos(2, 1), [A, A], cannot_link=[[0, 1]]) == ()
    # The sets hold row numbers, whatever the order in which the photos are preferred.
    (group,) = groups(photos(1, 2, 3), [A, A, A], cannot_link=[[0, 2]])
    assert paths(group) == ["c.jpg", "b.jpg"]
    # Equal pixels do not overrule what people decided, nor do two copies of one photo that they told apart.
    assert groups(photos(2, 1), [A, A], pixels=[0, 0], cannot_link=[[0, 1]]) == ()
    (group,) = groups(photos(3, 2, 1), [A, A, A], pixels=[0, 0, 0], cannot_link=[[1, 2]])
    assert paths(group) == ["a.jpg", "b.jpg"]


def test_the_group_has_the_tier_of_its_least_sure_member() -> None:
    (group,) = groups(photos(3, 2, 1), [A, A, AT_80], pixels=[0, 0, 2])
    assert [member.tier for member in group.members] == [EXACT, SAME_PIXELS, SIMILAR]
    assert group.tier == SIMILAR
    # Of equal pixels the vectors have no say.
    (group,) = groups(photos(2, 1), [A, AT_80], pixels=[0, 0])
    assert group.tier == SAME_PIXELS
    assert group.min_similarity == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(
    ("vectors", "pixels", "least", "similarities"),
    [
        # Two members that are each 0.96 from the kept photo are 0.8432 from each other.
        ([A, AT_96, (0.96, -0.28)], [0, 1, 2], 0.96**2 - 0.28**2, [("b.jpg", 0.96), ("c.jpg", 0.96)]),
        ([AT_96, NOTHING, A], [0, 0, 2], 0.96, [("c.jpg", 0.96), ("b.jpg", 1)]),
        ([NOTHING, NOTHING], [0, 0], 1, [("b.jpg", 1)]),
    ],
)
def test_the_smallest_similarity_is_that_of_any_two_photos_whose_vectors_say_something(
    vectors: Any, pixels: list[int], least: float, similarities: list[tuple[str, float]]
) -> None:
    (group,) = groups(photos(3, 2, 1)[: len(vectors)], vectors, pixels=pixels)
    assert group.min_similarity == pytest.approx(least, abs=1e-6)
    assert [(member.path, round(member.similarity, 6)) for member in group.members[1:]] == similarities


def test_the_best_photo_is_kept_and_the_others_follow_by_similarity() -> None:
    (group,) = groups(photos(1, 9, 2, 3), [A, AT_96, AT_80, A])
    assert paths(group) == ["b.jpg", "d.jpg", "a.jpg", "c.jpg"]
    assert (group.keep, group.reason) == ("b.jpg", "largest file: 9 B, next 3 B")


def test_each_component_is_cut_into_groups_of_its_own() -> None:
    found = groups(photos(4, 3, 2, 1), [A, A, A, A], components=[[0, 3], [1, 2]])
    assert [paths(group) for group in found] == [["a.jpg", "d.jpg"], ["b.jpg", "c.jpg"]]
    # A chain is no group: the last is alike to the second, but not to the kept one.
    (group,) = groups(photos(3, 2, 1), [A, AT_80, AT_MINUS_28])
    assert paths(group) == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize(
    ("hashes", "hash_bits", "bits"),
    [([0b111, 0b100], 2, 2), ([0b111, 0b100], 1, None), ([0b111, None], 2, None), ([None, 0b111], 16, None)],
)
def test_hashes_group_up_to_their_bits(hashes: list[int | None], hash_bits: int, bits: int | None) -> None:
    found = groups(photos(2, 1), [A, AT_MINUS_28], hashes=hashes, hash_bits=hash_bits)
    expected = [] if bits is None else [(Match(test="perceptual hash", value=bits, threshold=hash_bits),)]
    assert [group.members[1].matches for group in found] == expected
    assert all(group.members[1].tier == group.tier == SIMILAR for group in found)


def test_a_member_says_every_test_that_it_passed() -> None:
    (group,) = groups(
        photos(3, 2, 1), [A, AT_96, AT_MINUS_28], pixels=[0, 0, 2], hashes=[0b11, 0b01, 0b11], hash_bits=1
    )
    _, pixels, only_hash = group.members
    assert pixels.matches == (
        Match(test="pixels", value=1, threshold=1),
        Match(test="perceptual hash", value=1, threshold=1),
        Match(test="embedding", value=pixels.similarity, threshold=0.8),
    )
    assert [match.test for match in only_hash.matches] == ["perceptual hash"]
    for hashes in ([0b1, None], [None, 0b1]):  # a hash that says nothing is no match
        (group,) = groups(photos(2, 1), [A, AT_96], hashes=hashes, hash_bits=4)
        assert [match.test for match in group.members[1].matches] == ["embedding"]


def test_files_of_the_same_bytes_are_one_group_without_any_model() -> None:
    twins = [file("a.jpg", 9), file("a2.jpg"), file("a3.jpg")]
    (group,) = groups([twins, [file("d.jpg")]], [NOTHING, A], components=[])
    assert paths(group) == ["a.jpg", "a2.jpg", "a3.jpg"]
    assert (group.tier, group.min_similarity) == (EXACT, 1.0)
    assert [(member.similarity, member.matches) for member in group.members] == [
        (1.0, ()),
        *[(1.0, (Match(test="bytes", value=1, threshold=1),))] * 2,
    ]


def test_copies_of_one_content_are_in_one_group_only() -> None:
    twins = [file("a.jpg", 9), file("a2.jpg", 9)]
    (group,) = groups([twins, [file("c.jpg")]], [A, A])
    assert paths(group) == ["a.jpg", "a2.jpg", "c.jpg"]
    # A content that its component left alone has its own copies still.
    (group,) = groups([twins, [file("c.jpg")]], [A, AT_MINUS_28])
    assert paths(group) == ["a.jpg", "a2.jpg"]


def test_a_copy_of_another_photo_than_the_kept_one_names_its_original() -> None:
    """One of another frame of a burst: two files of its bytes, and one of its pixels."""
    contents = [
        [file("a.jpg", 9)],
        [file("b.jpg", 8), file("b copy.jpg", 8)],
        [file("c.png", 7)],
        [file("d.jpg")],
        [file("e.jpg", 2), file("e copy.jpg", 2)],
    ]
    (group,) = groups(contents, [A, AT_96, AT_96, AT_96, AT_96], pixels=[0, 1, 1, 3, 4])
    assert {path: of for path, of in named(group).items() if of != ("", "")} == {
        "b copy.jpg": ("b.jpg", EXACT),
        "c.png": ("b.jpg", SAME_PIXELS),
        "e copy.jpg": ("e.jpg", EXACT),
    }
    (group,) = groups([[file("a.jpg", 9), file("a copy.jpg", 9)], [file("b.png")]], [A, A], pixels=[0, 0])
    assert set(named(group).values()) == {("", "")}, "copies of the kept photo name no other"


@pytest.mark.parametrize("change", [{"width": 8}, {"height": 8}, {"format": "PNG"}, {}])
def test_frames_of_a_burst_have_one_form_and_other_pixels(change: dict[str, Any]) -> None:
    form = {"width": 4, "height": 3, "format": "JPEG"}
    frames = [
        [file(f"{name}.jpg", size, **form | more, capture_time=CaptureTime(taken_ms=taken_ms, has_sub_second=True))]
        for name, size, taken_ms, more in (("a", 3, 0, {}), ("b", 2, 120, change), ("c", 1, 120, {}))
    ]
    (group,) = groups(frames, [A, A, A], pixels=[0, 1, 0])
    shots = {member.path: member.other_shot for member in group.members}
    assert shots == {"a.jpg": "", "b.jpg": SAME_SCENE if change else BURST, "c.jpg": ""}

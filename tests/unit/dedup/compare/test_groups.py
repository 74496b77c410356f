"""From a comparison to the groups of a report: tiers, similarities, what each copy is a copy of, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client.dedup.aligned import Alignment, Match
from clip_client.dedup.alignment.proofs import Proofs
from clip_client.dedup.compare.cannot_link import CannotLink
from clip_client.dedup.compare.groups import Compared, make_groups
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.photo import ImageFeatures, Photo
from clip_client.dedup.types import (
    BURST,
    EDITED,
    EXACT,
    SAME_PIXELS,
    SAME_SCENE,
    SIMILAR,
    CaptureTime,
    Thresholds,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# Vectors in a plane whose products are these decimals, so that each test can stand right on a threshold.
A = (1.0, 0.0)
AT_96 = (0.96, 0.28)
AT_80 = (0.8, 0.6)
AT_MINUS_28 = (-0.28, 0.96)
NOTHING = (np.nan, np.nan)

EDITED_COPY = Alignment(
    tier=EDITED,
    changes=("brighter",),
    lost=(),
    transform=(1, 0, 0, 0, 1, 0),
    residual=0,
    region=None,
    region_share=0,
)

THRESHOLDS = Thresholds(similar=0.8, source="", recommended=True)


def candidate(path: str, **more: Any) -> Photo:
    """A file; of two, the one with more bytes is kept."""
    given: dict[str, Any] = {
        "sha256": path[:1] * 64,
        "size_bytes": 1,
        "mtime_ns": 0,
        "features": ImageFeatures(),
        **more,
    }
    return Photo(path=path, **given)


def groups(
    files: Sequence[Sequence[Photo]],
    vectors: Sequence[tuple[float, float]],
    *,
    pixels: Sequence[int] | None = None,
    hashes: Sequence[int | None] | None = None,
    hash_bits: int = -1,
    components: Sequence[Sequence[int]] | None = None,
    cannot_link: Sequence[Sequence[int]] = (),
    thresholds: Thresholds = THRESHOLDS,
    edited: Collection[tuple[int, int]] = (),
) -> list[DuplicateGroup]:
    """Make the groups of contents whose ``files`` come best first; by default all of them hang together.

    ``edited`` has pairs of a photo and a copy of it that alignment proves.
    """
    count = len(files)
    known = [None] * count if hashes is None else list(hashes)
    comparison = Compared(
        candidates=dict(enumerate(files)),
        vectors=np.array(vectors, dtype=np.float32),
        pixels=np.arange(count) if pixels is None else np.array(pixels),
        hashes=np.array([one or 0 for one in known], dtype=np.uint64),
        has_hash=np.array([one is not None for one in known]),
        hash_bits=hash_bits,
        components=[np.array(rows) for rows in ([range(count)] if components is None else components)],
        cannot_link=CannotLink(np.array(rows) for rows in cannot_link),
        rules=KeepRules(["bytes"]),
    )
    if edited:
        proofs = Proofs(
            lambda kept, rows: [EDITED_COPY if (kept, row) in edited else None for row in rows], comparison.may_share
        )
        paired = {row: dict.fromkeys(set(range(count)) - {row}, "vectors") for row in range(count)}
        proofs.prove(paired, range(count))
        comparison = replace(comparison, proofs=proofs)
    return make_groups(comparison, thresholds)


def photos(*sizes_bytes: int) -> list[list[Photo]]:
    """Contents of one file each, ``a.jpg``, ``b.jpg``, ...; the largest is kept."""
    return [[candidate(f"{'abcdefgh'[row]}.jpg", size_bytes=size)] for row, size in enumerate(sizes_bytes)]


def paths(group: DuplicateGroup) -> list[str]:
    return [member.path for member in group.members]


@pytest.mark.parametrize("vector", [A, AT_96, AT_80])
def test_a_similarity_on_the_threshold_reaches_it(vector: tuple[float, float]) -> None:
    (group,) = groups(photos(2, 1), [A, vector])
    assert (group.tier, group.members[1].tier) == (SIMILAR, SIMILAR)
    assert (group.members[0].tier, group.members[0].similarity) == (EXACT, 1.0)
    assert group.members[1].similarity == pytest.approx(vector[0], abs=1e-6)
    (match,) = group.members[1].matches
    assert (match.test, match.value, match.threshold) == ("embedding", group.members[1].similarity, 0.8)


def test_below_the_threshold_there_is_no_group() -> None:
    assert groups(photos(2, 1), [A, (0.79, 0.6131)]) == []
    assert groups(photos(2, 1), [A, NOTHING]) == []


def test_the_group_has_the_tier_of_its_least_sure_member() -> None:
    (group,) = groups(photos(3, 2, 1), [A, A, AT_80], pixels=[0, 0, 2])
    assert [member.tier for member in group.members] == [EXACT, SAME_PIXELS, SIMILAR]
    assert group.tier == SIMILAR
    # Of equal pixels the vectors have no say.
    (group,) = groups(photos(2, 1), [A, AT_80], pixels=[0, 0])
    assert group.tier == SAME_PIXELS
    assert group.min_similarity == pytest.approx(0.8, abs=1e-6)


def test_the_smallest_similarity_is_that_of_any_two_photos() -> None:
    """Two members that are each 0.96 from the kept photo are 0.8432 from each other."""
    (group,) = groups(photos(3, 2, 1), [A, AT_96, (0.96, -0.28)])
    assert group.min_similarity == pytest.approx(0.96**2 - 0.28**2, abs=1e-6)


def test_photos_whose_vector_says_nothing_do_not_count_for_the_smallest_similarity() -> None:
    (group,) = groups(photos(3, 2, 1), [AT_96, NOTHING, A], pixels=[0, 0, 2])
    assert group.min_similarity == pytest.approx(0.96, abs=1e-6)
    assert [(member.path, member.similarity) for member in group.members[1:]] == [
        ("c.jpg", pytest.approx(0.96, abs=1e-6)),
        ("b.jpg", 1.0),
    ]
    (group,) = groups(photos(2, 1), [NOTHING, NOTHING], pixels=[0, 0])
    assert (group.min_similarity, group.members[1].similarity) == (1.0, 1.0)


def test_the_best_photo_is_kept_and_the_others_follow_by_similarity() -> None:
    (group,) = groups(photos(1, 9, 2, 3), [A, AT_96, AT_80, A])
    assert group.keep == "b.jpg"
    assert paths(group) == ["b.jpg", "d.jpg", "a.jpg", "c.jpg"]
    assert group.reason == "largest file: 9 B, next 3 B"


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
    if bits is None:
        assert found == []
        return
    (member,) = found[0].members[1:]
    assert member.matches == (Match(test="perceptual hash", value=bits, threshold=hash_bits),)
    assert (member.tier, found[0].tier) == (SIMILAR, SIMILAR)


@pytest.mark.parametrize("hashes", [[0b1, None], [None, 0b1]])
def test_a_hash_that_says_nothing_is_no_match(hashes: list[int | None]) -> None:
    (group,) = groups(photos(2, 1), [A, AT_96], hashes=hashes, hash_bits=4)
    assert [match.test for match in group.members[1].matches] == ["embedding"]


def test_a_member_says_every_test_that_it_passed() -> None:
    (group,) = groups(
        photos(3, 2, 1), [A, AT_96, AT_MINUS_28], pixels=[0, 0, 2], hashes=[0b11, 0b01, 0b11], hash_bits=1
    )
    kept, pixels, only_hash = group.members
    assert kept.matches == ()
    assert pixels.matches == (
        Match(test="pixels", value=1, threshold=1),
        Match(test="perceptual hash", value=1, threshold=1),
        Match(test="embedding", value=pixels.similarity, threshold=0.8),
    )
    assert [match.test for match in only_hash.matches] == ["perceptual hash"]


def test_files_of_the_same_bytes_are_one_group_without_any_model() -> None:
    twins = [candidate("a.jpg", size_bytes=9), candidate("b.jpg", size_bytes=1), candidate("c.jpg", size_bytes=1)]
    lonely = [candidate("d.jpg")]
    (group,) = groups([twins, lonely], [NOTHING, A], components=[])
    assert paths(group) == ["a.jpg", "b.jpg", "c.jpg"]
    assert (group.tier, group.min_similarity) == (EXACT, 1.0)
    assert [member.matches for member in group.members] == [
        (),
        *[(Match(test="bytes", value=1, threshold=1),)] * 2,
    ]
    assert [member.similarity for member in group.members] == [1.0, 1.0, 1.0]


def test_copies_of_one_content_are_in_one_group_only() -> None:
    twins = [candidate("a.jpg", size_bytes=9), candidate("b.jpg", size_bytes=9)]
    (group,) = groups([twins, [candidate("c.jpg")]], [A, A])
    assert paths(group) == ["a.jpg", "b.jpg", "c.jpg"]
    # A content that its component left alone has its own copies still.
    (group,) = groups([twins, [candidate("c.jpg")]], [A, AT_MINUS_28])
    assert paths(group) == ["a.jpg", "b.jpg"]


def test_a_copy_of_another_photo_than_the_kept_one_names_its_original() -> None:
    """One of another frame of a burst: two files of its bytes, and one of its pixels."""
    frame = [candidate("b.jpg", size_bytes=8), candidate("b copy.jpg", size_bytes=8)]
    (group,) = groups(
        [
            [candidate("a.jpg", size_bytes=9)],
            frame,
            [candidate("c.png", size_bytes=7)],
            [candidate("d.jpg")],
            [candidate("e.jpg", size_bytes=2), candidate("e copy.jpg", size_bytes=2)],
        ],
        [A, AT_96, AT_96, AT_96, AT_96],
        pixels=[0, 1, 1, 3, 4],
    )
    named = {member.path: (member.copy_of, member.copy_tier) for member in group.members}
    assert named == {
        "a.jpg": ("", ""),
        "b.jpg": ("", ""),
        "b copy.jpg": ("b.jpg", EXACT),
        "c.png": ("b.jpg", SAME_PIXELS),
        "d.jpg": ("", ""),
        "e.jpg": ("", ""),
        "e copy.jpg": ("e.jpg", EXACT),
    }


def test_copies_of_the_kept_photo_name_no_other() -> None:
    kept = [candidate("a.jpg", size_bytes=9), candidate("a copy.jpg", size_bytes=9)]
    (group,) = groups([kept, [candidate("b.png")]], [A, A], pixels=[0, 0])
    assert [member.copy_of for member in group.members] == ["", "", ""]


def test_frames_of_a_burst_are_marked_unless_their_pixels_are_equal() -> None:
    frames = [
        [
            candidate(
                f"{name}.jpg",
                size_bytes=size,
                features=ImageFeatures(capture_time=CaptureTime(taken_ms=taken_ms, has_sub_second=True)),
            )
        ]
        for name, size, taken_ms in (("a", 3, 0), ("b", 2, 120), ("c", 1, 120))
    ]
    (group,) = groups(frames, [A, A, A], pixels=[0, 1, 0])
    assert {member.path: member.other_shot for member in group.members} == {"a.jpg": "", "b.jpg": BURST, "c.jpg": ""}


@pytest.mark.parametrize("change", [{"width": 8}, {"height": 8}, {"format": "PNG"}, {}])
def test_photos_of_one_time_and_another_form_are_no_burst(change: dict[str, Any]) -> None:
    shots = [
        [
            candidate(
                f"{name}.jpg",
                size_bytes=size,
                features=ImageFeatures(
                    **{"width": 4, "height": 3, "format": "JPEG", **more},
                    capture_time=CaptureTime(taken_ms=taken_ms, has_sub_second=True),
                ),
            )
        ]
        for name, size, taken_ms, more in (("a", 2, 0, {}), ("b", 1, 120, change))
    ]
    (group,) = groups(shots, [A, A])
    assert group.members[1].other_shot == (SAME_SCENE if change else BURST)


def test_a_member_has_the_photo_itself() -> None:
    files = [[candidate("a.jpg", size_bytes=9)], [candidate("b.jpg", features=ImageFeatures(embedded="film"))]]
    (group,) = groups(files, [A, AT_96], hashes=[None, None])
    kept, member = group.members
    assert (kept.photo, member.photo) == (files[0][0], files[1][0])
    match = Match(test="embedding", value=member.similarity, threshold=0.8)
    assert member == Member(photo=files[1][0], similarity=member.similarity, tier=SIMILAR, matches=(match,))


def test_what_people_decided_to_be_different_shares_no_group() -> None:
    assert groups(photos(2, 1), [A, A], cannot_link=[[0, 1]]) == []
    # The sets hold row numbers, whatever the order in which the photos are preferred.
    (group,) = groups(photos(1, 2, 3), [A, A, A], cannot_link=[[0, 2]])
    assert paths(group) == ["c.jpg", "b.jpg"]

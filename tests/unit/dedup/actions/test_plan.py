"""What a plan says about each duplicate that stays: the reason, and the tier that would have to be selected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clip_client.dedup.actions.plan import Skip
from clip_client.dedup.actions.verdicts import check_tiers
from clip_client.dedup.types import (
    ALTERED,
    BURST,
    EDITED,
    EXACT,
    RE_ENCODED,
    SAME_PIXELS,
    SIMILAR,
    Companion,
    LibraryPhoto,
    Metadata,
)
from tests.fixtures.albums import member, planned, report, write

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.dedup.actions.plan import Plan


def only_skip(plan: Plan) -> Skip:
    assert (plan.moves, plan.for_album) == ((), ())
    (skip,) = plan.skipped
    return skip


@pytest.mark.parametrize(
    ("copy", "kept", "reason"),
    [
        ({"is_reference": True}, {}, "It is in a reference folder."),
        (
            {"other_shot": BURST},
            {},
            "It shows another frame of a burst, so only a person can tell whether it is wanted.",
        ),
        (
            {"embedded": "film", "embedded_digest": "1"},
            {},
            "It holds more than its picture (film), which the kept photo lacks.",
        ),
        (
            {"embedded": "film", "embedded_digest": "1"},
            {"embedded": "film", "embedded_digest": "2"},
            "It holds more than its picture (film), and the kept photo does not hold the same.",
        ),
        ({"embedded": "film", "embedded_digest": "1"}, {"embedded": "gain map, film", "embedded_digest": "1"}, ""),
        ({}, {"embedded": "film", "embedded_digest": "1"}, ""),
        (
            {"tier": SAME_PIXELS, "metadata": Metadata(rating=1)},
            {},
            "It has metadata that the kept photo lacks, which --merge-metadata can save: rating.",
        ),
    ],
)
@pytest.mark.parametrize("tiers", [(EXACT, SAME_PIXELS), (SIMILAR,)])
def test_the_first_reason_counts_and_a_tier_only_without_one(
    tmp_path: Path, copy: dict[str, Any], kept: dict[str, Any], reason: str, tiers: tuple[str, ...]
) -> None:
    """What no selection of tiers can remove comes before the tier."""
    paths = [write(tmp_path / name, name.encode()) for name in ("kept.jpg", "copy.jpg")]
    members = member(paths[0], **kept), member(paths[1], **copy)
    plan = planned(report(members), [tmp_path], tiers=tiers)
    missing = "" if members[1].tier in tiers or reason else members[1].tier
    expected = f"It moves only with --act-on {missing}." if missing else reason
    assert plan.skipped == ((Skip(photo=members[1].photo, reason=expected, tier=missing),) if expected else ())
    assert len(plan.moves) == (not expected)


@pytest.mark.parametrize(
    ("own", "of_kept", "reason"),
    [
        ((("film", "1.mov"),), (), "It has a film beside it, which the kept photo lacks."),
        (
            (("film", "1.mov"),),
            (("film", "2.mov"),),
            "The film beside it is damaged, or differs from that of the kept photo.",
        ),
        (
            (("edited version", "1.mov"),),
            (("edited version", "1.mov"),),
            "It has an edited version, and the originals are what was compared, so only a person can choose.",
        ),
        ((("film", "1.mov"),), (("film", "1.mov"),), ""),
        ((), (("film", "1.mov"),), ""),
    ],
)
def test_a_photo_of_a_library_goes_to_the_album_by_the_same_rules(
    tmp_path: Path,
    own: tuple[tuple[str, str], ...],
    of_kept: tuple[tuple[str, str], ...],
    reason: str,
) -> None:
    for name in ("1.mov", "2.mov"):
        write(tmp_path / name, name.encode())
    members = []
    for name, beside in (("kept.heic", of_kept), ("copy.heic", own)):
        path = write(tmp_path / "L.photoslibrary" / name, b"x")
        companions = tuple(Companion(path=str(tmp_path / file), kind=kind) for kind, file in beside)
        photo = LibraryPhoto(
            path=str(path), library=str(tmp_path), uuid=name, name="IMG_1.HEIC", taken_ns=None, companions=companions
        )
        members.append(member(path, in_library=photo, companions=companions))
    for hard_link in (False, True):
        plan = planned(report(tuple(members)), [tmp_path], hard_link=hard_link)
        assert plan.moves == ()
        assert [(one.duplicate.path, one.kept.path) for one in plan.for_album] == (
            [] if reason else [(members[1].path, members[0].path)]
        )
        assert plan.skipped == ((Skip(photo=members[1].photo, reason=reason),) if reason else ())


def test_a_copy_of_a_photo_that_goes_to_the_album_has_the_kept_photo_instead(tmp_path: Path) -> None:
    """A person may delete what is in the album, so it keeps nothing."""
    kept, copy = write(tmp_path / "kept.heic", b"x"), write(tmp_path / "copy.heic", b"y")
    inside = write(tmp_path / "L.photoslibrary" / "1.heic", b"y")
    photo = LibraryPhoto(path=str(inside), library=str(tmp_path), uuid="1", name="IMG_1.HEIC", taken_ns=None)
    members = (
        member(kept),
        member(copy, tier=SIMILAR, copy_of=str(inside), copy_tier=EXACT),
        member(inside, tier=SIMILAR, in_library=photo),
    )
    plan = planned(report(members), [tmp_path], tiers=[EXACT, SIMILAR])
    assert [one.duplicate.path for one in plan.for_album] == [str(inside)]
    assert [(move.duplicate.path, move.kept.path, move.tier) for move in plan.moves] == [
        (str(copy), str(kept), SIMILAR)
    ]
    without = planned(report(members), [tmp_path])
    assert [(move.duplicate.path, move.kept.path, move.tier) for move in without.moves] == [
        (str(copy), str(inside), EXACT)
    ]


def test_a_raw_file_of_the_kept_photo_alone_keeps_no_copy(tmp_path: Path) -> None:
    """It was compared as a photo of its own, but the copy takes no RAW file along that would rely on it."""
    photos = [write(tmp_path / name, b"x") for name in ("1.jpg", "2.jpg")]
    raws = [write(tmp_path / name, b"raw") for name in ("other.nef", "1.nef")]
    plan = planned(report(tuple(map(member, raws)), tuple(map(member, photos))), [tmp_path])
    assert [move.duplicate.path for move in plan.moves] == [str(raws[1]), str(photos[1])]


def test_tiers_are_checked_by_name_and_by_the_weights_of_the_model() -> None:
    check_tiers([EXACT, SAME_PIXELS], "ViT-B-32/random:0@1a2b3c4d")
    check_tiers([SIMILAR], "ViT-B-32/openai@1a2b3c4d")
    check_tiers([SIMILAR])
    with pytest.raises(ValueError, match="unknown tier") as raised:
        check_tiers([EXACT, "sure"])
    assert str(raised.value) == ("unknown tier 'sure'; the tiers are exact, same-pixels, re-encoded, edited, similar")
    with pytest.raises(ValueError, match="are random") as raised:
        check_tiers([SIMILAR], "ViT-B-32/random:0@1a2b3c4d")
    assert str(raised.value) == (
        "the tier 'similar' depends on vectors, and the weights of ViT-B-32/random:0@1a2b3c4d are random; "
        "export a model with trained weights, or select only exact, same-pixels, re-encoded, edited"
    )
    check_tiers([RE_ENCODED, EDITED], "ViT-B-32/random:0@1a2b3c4d")
    with pytest.raises(ValueError, match="altered pictures never move"):
        check_tiers([ALTERED])


def test_files_move_in_the_named_folders_and_beside_named_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = [write(tmp_path / name / f"{number}.jpg", b"x") for number, name in enumerate("abcd")]
    monkeypatch.chdir(tmp_path)
    plan = planned(report(tuple(map(member, photos))), [photos[0], "b", "c/gone.jpg"])
    assert [(move.duplicate.path, move.folder) for move in plan.moves] == [
        (str(photos[1]), str(tmp_path / "b")),
        (str(photos[2]), str(tmp_path / "c")),
    ]
    assert [skip.reason for skip in plan.skipped] == ["It is in none of the folders that you named."]

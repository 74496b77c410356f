"""The photo that stays, and the reason: its proof, its tier, its parts and companions, and losses of its picture."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from clip_client.dedup.actions.plan import Plan, Skip, plan_moves
from clip_client.dedup.aligned import MADE_LATER, UNPROVED, UNTOLD
from clip_client.dedup.judge.verdicts import WAITS, with_verdicts
from clip_client.dedup.types import (
    ALTERED,
    BURST,
    EDITED,
    EXACT,
    RAW,
    RE_ENCODED,
    SAME_PIXELS,
    SIMILAR,
    Companion,
    LibraryPhoto,
)
from tests.fixtures.albums import carry_out, copies, member, planned, report, write
from tests.fixtures.images import colour_profiles, image_files, phone_files
from tests.fixtures.images.camera_files import packet
from tests.fixtures.members import FROM_A_CAMERA, aligned

FILM = {"embedded": "film", "embedded_digest": "1"}
HOLDS_A_FILM = "It holds more than its picture (film)"
RATED = "It has metadata that the kept photo lacks, which --merge-metadata can save: rating."
UNKNOWN = "It was not compared with the kept photo, so only you can tell whether you want it."
NOT_TOLD = "Which of the two shows more cannot be told, so neither moves unasked."
NOT_PROVED = "The kept photo is not proved to show all of this photo, so neither moves unasked."
EDITED_VERSION = "It has an edited version, but only the originals were compared, so only you can choose."
A_SHOT = f"Its time of capture or exposure suggests {BURST}"
A_REGION = "It differs from the kept photo, so only you can tell whether you want it."


def moved(plan: Plan) -> list[tuple[str, str, str]]:
    """Return the names of each photo that moves and of the one that stays for it, and the tier."""
    return [(move.duplicate.name, move.kept.name, move.tier) for move in plan.moves]


@pytest.mark.parametrize(
    ("copy", "kept", "reason"),
    [
        ({"is_reference": True}, {}, "It is in a reference folder."),
        ({"other_shot": BURST}, {}, f"{A_SHOT}, so only you can tell whether you want it."),
        (FILM, {}, f"{HOLDS_A_FILM}, which the kept photo lacks."),
        (FILM, {**FILM, "embedded_digest": "2"}, f"{HOLDS_A_FILM}, and the kept photo does not hold the same."),
        (FILM, {"embedded": "gain map, film", "embedded_digest": "1"}, ""),
        ({}, FILM, ""),
        ({"tier": SAME_PIXELS, "data": image_files.jpeg(xmp=packet('xmp:Rating="1">'))}, {}, RATED),
    ],
)
@pytest.mark.parametrize("tiers", [(EXACT, SAME_PIXELS), (RE_ENCODED,)])
def test_the_first_reason_counts_and_a_tier_only_without_one(
    root: Path, copy: dict[str, Any], kept: dict[str, Any], reason: str, tiers: tuple[str, ...]
) -> None:
    """Reasons that no selection of tiers can remove come before the tier. A choice only removes "another shot"."""
    given = {"data": b"copy", **copy}
    path = write(root / "copy.jpg", given.pop("data"))
    members = member(write(root / "kept.jpg", b"kept"), **kept), member(path, **given)
    plan = planned(report(members), [root], tiers=tiers)
    missing = "" if members[1].tier in tiers or reason else members[1].tier
    expected = f"It moves only with --act-on {missing}." if missing else reason
    assert plan.skipped == ((Skip(photo=members[1].photo, reason=expected, tier=missing),) if expected else ())
    assert len(plan.moves) == (not expected)
    chosen = planned(report(members), [root], chosen={members[1].path: None})
    assert [skip.reason for skip in chosen.skipped] == ([reason] if reason and "other_shot" not in copy else [])
    assert len(chosen.moves) == (not chosen.skipped)


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        ({}, ""),
        ({"tier": RE_ENCODED, "matches": aligned(RE_ENCODED)}, ""),
        ({"tier": EDITED, "matches": aligned(EDITED)}, WAITS.format(EDITED)),
        ({"tier": SIMILAR}, WAITS.format(SIMILAR)),
        *(({"tier": tier}, UNKNOWN) for tier in (RE_ENCODED, EDITED, ALTERED)),
        ({"tier": SIMILAR, "similarity": math.nan}, UNKNOWN),
        *(
            ({"tier": tier, "matches": aligned(tier, **facts)}, reason)
            for tier, facts, reason in (
                (ALTERED, {}, A_REGION),
                (EDITED, {"lost": ("colour",)}, "It shows what the kept photo lacks: colour."),
                (RE_ENCODED, {"doubts": (MADE_LATER,)}, f"The kept photo may be made from it: {MADE_LATER}."),
                (EDITED, {"doubts": (UNTOLD,)}, NOT_TOLD),
                (RE_ENCODED, {"doubts": (UNPROVED,)}, NOT_PROVED),
            )
        ),
    ],
)
@pytest.mark.parametrize("is_original", [False, True])
def test_a_copy_moves_by_its_proof_or_if_a_person_chose_it(
    root: Path, proof: dict[str, Any], reason: str, is_original: bool
) -> None:
    """Whether a camera wrote the kept photo does not matter."""
    kept = member(write(root / "kept.jpg", image_files.jpeg(quality=95)), **(FROM_A_CAMERA if is_original else {}))
    copy = member(write(root / "copy.jpg", image_files.jpeg(quality=80)), **proof)
    choices: list[tuple[dict[str, Any], str]] = [({}, reason), ({"chosen": {copy.path: None}}, "")]
    for choice, why in choices:
        plan = planned(report((kept, copy)), [root], **choice)
        assert [skip.reason for skip in plan.skipped] == ([why] if why else [])
        assert len(plan.moves) == (not why)


@pytest.mark.parametrize("tier", [EDITED, ALTERED, SIMILAR, "sure"])
def test_a_tier_that_nobody_has_looked_at_or_knows_is_refused(tier: str, root: Path) -> None:
    sentence = (
        f"{tier} photos move from the review page" if tier != "sure" else "unknown tier 'sure'; the tiers are exact"
    )
    with pytest.raises(ValueError, match=f"^{sentence}"):
        planned(report(), [root], tiers=[EXACT, tier])


def test_files_move_in_the_named_folders_and_beside_named_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = [write(root / name / f"{number}.jpg", b"x") for number, name in enumerate("abcd")]
    monkeypatch.chdir(root)
    plan = planned(report(tuple(map(member, photos))), [photos[0], "b", "c/gone.jpg"])
    assert [(move.duplicate.path, move.folder) for move in plan.moves] == [
        (str(photos[1]), str(root / "b")),
        (str(photos[2]), str(root)),
    ]
    assert [skip.reason for skip in plan.skipped] == ["It is in none of the folders that you named."]


def test_what_is_gone_before_or_after_the_verdict_moves_nothing(root: Path) -> None:
    found, (kept, copy) = copies(root)
    before = with_verdicts(found, [root])
    copy.unlink()
    gone = "It is not there: it has gone, or its disk is not connected."
    assert [skip.reason for skip in plan_moves(before, [root]).skipped] == [gone]
    write(copy, b"x")
    kept.unlink()
    assert [skip.reason for skip in planned(found, [root]).skipped] == ["The kept photo is missing."]


# Copies of a photo that is not kept.


def test_of_copies_of_a_frame_the_best_stays_or_the_kept_photo_if_that_moves_too(root: Path) -> None:
    kept, frame, alike = (write(root / name, name.encode()) for name in ("kept.jpg", "frame.jpg", "alike.jpg"))
    backup, copy = write(root / "backup.jpg", b"frame.jpg"), write(root / "copy.jpg", b"alike.jpg")
    members = (
        member(kept),
        member(backup, tier=SIMILAR, other_shot=BURST, copy_of=str(frame), copy_tier=EXACT),
        member(copy, tier=SIMILAR, copy_of=str(alike), copy_tier=EXACT),
        member(frame, tier=SIMILAR, other_shot=BURST),
        member(alike, tier=SIMILAR),
    )
    to_the_frame = ("backup.jpg", "frame.jpg", EXACT)
    plan = planned(report(members), [root])
    assert moved(plan) == [to_the_frame, ("copy.jpg", "alike.jpg", EXACT)]
    # Where what it is a copy of leaves, too, the kept photo is what stays for both, as certain as the less certain one.
    plan = planned(report(members), [root], chosen=dict.fromkeys(map(str, (backup, copy, alike))))
    follow = [("alike.jpg", "kept.jpg", SIMILAR), ("copy.jpg", "kept.jpg", SIMILAR)]
    assert sorted(moved(plan)) == sorted([to_the_frame, *follow])
    both = planned(report(members), [root], chosen=dict.fromkeys(map(str, (backup, frame))))
    assert {move.reason.partition(",")[0] for move in both.moves} == {A_SHOT}
    assert all(outcome.done for outcome in carry_out(plan, root.with_name("history.sqlite")))


def test_a_copy_of_a_photo_that_goes_to_the_album_has_the_kept_photo_instead(root: Path) -> None:
    """A person may delete what is in the album, so it keeps nothing."""
    kept, copy = write(root / "kept.heic", b"x"), write(root / "copy.heic", b"y")
    inside = write(root / "L.photoslibrary" / "1.heic", b"y")
    photo = LibraryPhoto(path=str(inside), library=str(root), uuid="1", name="IMG_1.HEIC", taken_ns=None)
    members = (
        member(kept),
        member(copy, tier=SIMILAR, copy_of=str(inside), copy_tier=EXACT),
        member(inside, tier=SIMILAR, in_library=photo),
    )
    plan = planned(report(members), [root], chosen=dict.fromkeys(map(str, (copy, inside))))
    assert [one.duplicate.path for one in plan.for_album] == [str(inside)]
    assert moved(plan) == [("copy.heic", "kept.heic", SIMILAR)]
    assert moved(planned(report(members), [root])) == [("copy.heic", "IMG_1.HEIC", EXACT)]


# Companions.


@pytest.mark.parametrize(
    ("own", "of_kept", "reason"),
    [
        ("film 1.mov", "", "It has a film beside it, which the kept photo lacks."),
        ("film 1.mov", "film 2.mov", "The film beside it is damaged, or differs from that of the kept photo."),
        ("edited version 1.mov", "edited version 1.mov", EDITED_VERSION),
        ("film 1.mov", "film 1.mov", ""),
        ("", "film 1.mov", ""),
    ],
)
def test_a_photo_of_a_library_goes_to_the_album_by_the_same_rules(
    root: Path, own: str, of_kept: str, reason: str
) -> None:
    for name in ("1.mov", "2.mov"):
        write(root / name, name.encode())
    members = []
    for name, beside in (("kept.heic", of_kept), ("copy.heic", own)):
        path = write(root / "L.photoslibrary" / name, b"x")
        kind, _, file = beside.rpartition(" ")
        companions = (Companion(path=str(root / file), kind=kind),) if beside else ()
        photo = LibraryPhoto(path=str(path), library=str(root), uuid=name, name="IMG_1.HEIC", taken_ns=None)
        members.append(member(path, in_library=photo, companions=companions))
    plan = planned(report(tuple(members)), [root])
    assert plan.moves == ()
    assert [(one.duplicate.path, one.kept.path) for one in plan.for_album] == (
        [] if reason else [(members[1].path, members[0].path)]
    )
    assert plan.skipped == ((Skip(photo=members[1].photo, reason=reason),) if reason else ())


@pytest.mark.parametrize(
    ("compared", "beside", "moving", "stays"),
    [
        (("2.nef", "1.nef"), (), ["1.nef"], True),  # else both would go, each because the other is kept
        (("other.nef", "1.nef"), ("2.nef",), ["1.nef"], True),  # else the last RAW file beside a photo would go
        (("other.nef", "1.nef"), (), ["1.nef", "2.jpg"], False),  # the copy has none that would rely on it
    ],
)
def test_a_raw_file_that_was_compared_itself_does_not_follow_a_photo(
    root: Path, compared: Sequence[str], beside: Sequence[str], moving: list[str], stays: bool
) -> None:
    photos = [member(write(root / name, b"x")) for name in ("1.jpg", "2.jpg")]
    for name in beside:
        write(root / name, b"raw")
    raws = [member(write(root / name, b"raw")) for name in compared]
    found = report(tuple(raws), tuple(photos))
    plan = planned(found, [root])
    assert [move.duplicate.name for move in plan.moves] == moving
    assert ["compared as a photo of its own" in skip.reason for skip in plan.skipped] == [True] * stays
    # The verdict is the same if only a part of the groups is judged, as on the pages of the review.
    part = planned(report(tuple(photos)), [root], compared={one.path for one in (*raws, *photos)})
    assert bool(part.skipped) == stays


# What the file of the kept photo cannot hold.

TIFF_OF_16_BITS = cv2.imencode(".tiff", np.asarray(image_files.picture()).astype(np.uint16) * 257 + 1)[1].tobytes()


def reasons(root: Path, tier: str, copy: bytes, kept: bytes, **facts: Any) -> list[str]:
    """Return what speaks against a move of a copy of this tier; ``facts`` are about the kept photo."""
    of_kept = member(write(root / "kept", kept), **facts)
    of_copy = member(write(root / "copy", copy), tier=tier, matches=aligned(tier))
    skipped = planned(report((of_kept, of_copy)), [root]).skipped
    return [skip.reason for skip in skipped if skip.reason != WAITS.format(tier)]


@pytest.mark.parametrize(
    ("data", "lost"),
    [
        (TIFF_OF_16_BITS, "more than 8 bits a channel"),
        (phone_files.heic(icc_profile=colour_profiles.P3), "the colour profile Display P3"),
        (image_files.jpeg(icc_profile=colour_profiles.SRGB_WITHOUT_ITS_NAME), ""),
    ],
    ids=["16 bits", "colours of a phone", "sRGB of another vendor"],
)
@pytest.mark.parametrize(("tier", "facts"), [(RE_ENCODED, {}), (EDITED, FROM_A_CAMERA), (SIMILAR, FROM_A_CAMERA)])
def test_what_the_kept_file_cannot_hold_is_lost_whichever_camera_wrote_it(
    data: bytes, lost: str, tier: str, facts: dict[str, Any], root: Path
) -> None:
    found = reasons(root, tier, data, image_files.jpeg(quality=98), **facts)
    assert found == ([f"It has what the kept photo is not known to have: {lost}."] if lost else [])


@pytest.mark.parametrize(
    ("tier", "copy", "said"),
    [
        (EDITED, TIFF_OF_16_BITS, "It has what the kept photo is not known to have: more than 8 bits a channel."),
        (EDITED, image_files.jpeg(), ""),
        (RE_ENCODED, image_files.jpeg(), "It was compared with the preview in the RAW file that is kept"),
    ],
)
def test_what_was_developed_from_a_raw_file_moves_unless_it_is_deeper_or_like_its_preview(
    tier: str, copy: bytes, said: str, root: Path
) -> None:
    found = reasons(root, tier, copy, b"sensor data", **{**FROM_A_CAMERA, "format": RAW})
    assert [reason.startswith(said) for reason in found] == [True] * bool(said)


@pytest.mark.parametrize("unreadable", ["kept", "copy"])
def test_a_file_that_cannot_be_read_stays(unreadable: str, root: Path) -> None:
    files = {"kept": image_files.jpeg(quality=95), "copy": image_files.jpeg(), unreadable: b"no image"}
    assert reasons(root, RE_ENCODED, **files) == ["How its file or the kept one stores the picture cannot be read."]


def test_a_file_is_read_once_for_its_metadata_and_its_picture(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another content than in other tests, because what a file says is kept while its content stays.
    kept, copy = (member(write(root / f"{quality}", image_files.jpeg(quality=quality))) for quality in (91, 37))
    copy = replace(copy, tier=RE_ENCODED, matches=aligned(RE_ENCODED))
    reads: Counter[str] = Counter()
    whole = os.open

    def counted(path: str, *options: int) -> int:
        reads[os.path.basename(path)] += 1
        return whole(path, *options)

    monkeypatch.setattr(os, "open", counted)
    assert planned(report((kept, copy)), [root]).skipped == ()
    assert (reads["91"], reads["37"]) == (1, 1)

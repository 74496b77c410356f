"""Which aligned copies stay because their picture would lose something."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest

from clip_client.dedup.aligned import Alignment, Match
from clip_client.dedup.types import ALTERED, EDITED, EXACT, RAW, RE_ENCODED, SAFE_TIERS, SIMILAR
from tests.fixtures.albums import member, planned, report, write
from tests.fixtures.images import colour_profiles, image_files, phone_files
from tests.fixtures.images.scenes import resized, scene
from tests.fixtures.members import FROM_A_CAMERA, changed

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.dedup import Member


def aligned(photo: Member, tier: str, *, lost: tuple[str, ...] = (), doubts: tuple[str, ...] = ()) -> Member:
    alignment = Alignment(
        tier=tier,
        changes=(),
        lost=lost,
        doubts=doubts,
        transform=(1, 0, 0, 0, 1, 0),
        residual=0,
        region=None,
        region_share=0,
    )
    match = Match(test="alignment", value=1, threshold=1, alignment=alignment)
    return replace(photo, tier=tier, matches=(match,))


@pytest.fixture
def photos(tmp_path: Path) -> dict[str, Member]:
    """Files of one picture, by name."""
    picture = resized(scene(0), 0.2)
    made: dict[str, dict[str, Any]] = {
        "fine.jpg": {"quality": 95}, "coarse.jpg": {"quality": 30}, "small.jpg": {"quality": 80}, "lossless.png": {},
    }  # fmt: skip
    found = {}
    for name, options in made.items():
        image = resized(picture, 0.5) if name == "small.jpg" else picture
        image.save(tmp_path / name, **options)
        found[name] = member(tmp_path / name, width=image.width, height=image.height)
    return found


def reasons(kept: Member, copy: Member, root: Path, **options: Any) -> list[str]:
    plan = planned(report((kept, copy)), [root], **options)
    assert len(plan.moves) + len(plan.skipped) == 1
    return [skip.reason for skip in plan.skipped]


def test_a_file_is_read_once_for_its_metadata_and_its_picture(
    photos: dict[str, Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Counter[str] = Counter()
    whole = os.open

    def counted(path: str, *options: int) -> int:
        opened[os.path.basename(path)] += 1
        return whole(path, *options)

    monkeypatch.setattr(os, "open", counted)
    assert reasons(photos["fine.jpg"], aligned(photos["coarse.jpg"], RE_ENCODED), tmp_path) == []
    assert opened == {"fine.jpg": 1, "coarse.jpg": 1}


TIFF_OF_16_BITS = cv2.imencode(".tiff", np.asarray(image_files.picture()).astype(np.uint16) * 257)[1].tobytes()
KINDS: dict[str, tuple[bytes, str]] = {
    "16 bits": (TIFF_OF_16_BITS, "more than 8 bits a channel"),
    "10 bits of a phone": (phone_files.deep_heic(10), "more than 8 bits a channel"),
    "transparency": (image_files.encoded(image_files.picture("RGBA"), "PNG"), "transparency"),
    "colours of a phone": (phone_files.heic(icc_profile=colour_profiles.P3), "the colour profile Display P3"),
    "colours of an editor": (
        image_files.jpeg(icc_profile=colour_profiles.ADOBE_RGB), "the colour profile Adobe RGB",
    ),
    "a profile that lies": (
        image_files.jpeg(icc_profile=colour_profiles.P3_CALLED_SRGB), "the colour profile Display P3",
    ),
    "sRGB of another vendor": (image_files.jpeg(icc_profile=colour_profiles.SRGB_WITHOUT_ITS_NAME), ""),
}  # fmt: skip


@pytest.mark.parametrize(("data", "lost"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("tier", [RE_ENCODED, EDITED, SIMILAR])
@pytest.mark.parametrize("is_original", [False, True])
def test_what_the_kept_file_cannot_hold_is_lost_whichever_camera_wrote_it(
    data: bytes, lost: str, tier: str, is_original: bool, tmp_path: Path
) -> None:
    kept = member(write(tmp_path / "kept.jpg", image_files.jpeg(quality=98)), **(FROM_A_CAMERA if is_original else {}))
    copy = aligned(member(write(tmp_path / "copy", data)), tier)
    found = reasons(kept, copy, tmp_path, tiers=[tier])
    assert found == ([f"It has what the kept photo lacks: {lost}."] if lost else [])


@pytest.mark.parametrize("tier", [RE_ENCODED, EDITED])
def test_a_kept_file_with_wider_colours_holds_those_of_the_copy(tier: str, tmp_path: Path) -> None:
    kept = member(write(tmp_path / "kept.jpg", image_files.jpeg(quality=98, icc_profile=colour_profiles.P3)))
    copy = aligned(member(write(tmp_path / "copy.jpg", image_files.jpeg(quality=80))), tier)
    assert reasons(kept, copy, tmp_path, tiers=[tier]) == []


def test_what_was_developed_from_a_raw_file_with_16_bits_stays(tmp_path: Path) -> None:
    kept = member(write(tmp_path / "kept.dng", b"sensor data"), **{**FROM_A_CAMERA, "format": RAW})
    developed = member(write(tmp_path / "copy.tif", TIFF_OF_16_BITS))
    (reason,) = reasons(kept, aligned(developed, EDITED), tmp_path, tiers=[EDITED])
    assert reason == "It has what the kept photo lacks: more than 8 bits a channel."
    plain = member(write(tmp_path / "plain.jpg", image_files.jpeg()))
    assert reasons(kept, aligned(plain, EDITED), tmp_path, tiers=[EDITED]) == []


def test_a_copy_stays_if_the_kept_photo_is_in_doubt_or_was_not_aligned_with_it(
    photos: dict[str, Member], tmp_path: Path
) -> None:
    kept, copy = photos["fine.jpg"], photos["small.jpg"]
    doubtful = aligned(copy, RE_ENCODED, doubts=("it has more pixels, but no finer detail",))
    (reason,) = reasons(kept, doubtful, tmp_path)
    assert reason == "The kept photo may be made from it: it has more pixels, but no finer detail."
    (reason,) = reasons(kept, replace(copy, tier=RE_ENCODED), tmp_path)
    assert reason == "It was not aligned with the kept photo."
    (reason,) = reasons(changed(kept, **FROM_A_CAMERA), doubtful, tmp_path)
    assert reason.startswith("The kept photo may be made from it")


def test_a_raw_file_is_known_by_its_preview_only(photos: dict[str, Member], tmp_path: Path) -> None:
    kept = changed(photos["fine.jpg"], **{**FROM_A_CAMERA, "format": RAW})
    (reason,) = reasons(kept, aligned(photos["small.jpg"], RE_ENCODED), tmp_path)
    assert "preview in the RAW file" in reason


def test_a_file_that_cannot_be_read_stays(photos: dict[str, Member], tmp_path: Path) -> None:
    (tmp_path / "coarse.jpg").write_bytes(b"no image")
    (reason,) = reasons(photos["fine.jpg"], aligned(photos["coarse.jpg"], RE_ENCODED), tmp_path)
    assert "cannot be read" in reason


def test_an_edited_copy_moves_if_asked_for_and_if_the_kept_photo_shows_all_of_it(
    photos: dict[str, Member], tmp_path: Path
) -> None:
    kept, copy = photos["fine.jpg"], photos["coarse.jpg"]
    (reason,) = reasons(kept, aligned(copy, EDITED), tmp_path)
    assert reason == "It moves only with --act-on edited."
    assert reasons(kept, aligned(copy, EDITED), tmp_path, tiers=[EDITED]) == []
    (reason,) = reasons(kept, aligned(copy, EDITED, lost=("colour",)), tmp_path, tiers=[EDITED])
    assert reason == "It shows what the kept photo lacks: colour."
    (reason,) = reasons(kept, replace(copy, tier=EDITED), tmp_path, tiers=[EDITED])
    assert reason == "It was not aligned with the kept photo."


def test_an_altered_picture_never_moves_unless_a_person_chose_it(photos: dict[str, Member], tmp_path: Path) -> None:
    kept, copy = photos["fine.jpg"], aligned(photos["coarse.jpg"], ALTERED)
    (reason,) = reasons(kept, copy, tmp_path, tiers=[*SAFE_TIERS, EDITED, SIMILAR])
    assert reason.startswith("A region of it differs")
    assert reasons(kept, copy, tmp_path, chosen={copy.path: None}) == []
    assert (
        reasons(photos["coarse.jpg"], aligned(photos["fine.jpg"], RE_ENCODED), tmp_path, chosen={kept.path: None}) == []
    )


def test_a_copy_of_a_copy_that_moves_follows_it_to_the_photo_that_stays(
    photos: dict[str, Member], tmp_path: Path
) -> None:
    (tmp_path / "again.jpg").write_bytes((tmp_path / "coarse.jpg").read_bytes())
    copy = aligned(photos["coarse.jpg"], RE_ENCODED)
    twin = replace(member(tmp_path / "again.jpg", width=80, height=60), tier=SIMILAR, copy_of=copy.path)
    found = report((photos["fine.jpg"], replace(twin, copy_tier=EXACT), copy))
    moves = planned(found, [tmp_path]).moves
    assert [(move.duplicate.path, move.kept.path, move.tier) for move in moves] == [
        (copy.path, found.groups[0].keep, RE_ENCODED), (twin.path, found.groups[0].keep, RE_ENCODED),
    ]  # fmt: skip
    moves = planned(found, [tmp_path], tiers=[EXACT]).moves
    assert [(move.duplicate.path, move.kept.path, move.tier) for move in moves] == [(twin.path, copy.path, EXACT)]

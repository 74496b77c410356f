"""Which aligned copies stay because their picture would lose something."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.dedup.actions.plan import SAFE_TIERS, plan_moves
from clip_client.dedup.aligned import MADE_LATER, PUT_INTO, Alignment, Match
from clip_client.dedup.files.file_types import RAW
from clip_client.dedup.types import ALTERED, EDITED, EXACT, RE_ENCODED, SIMILAR
from tests.fixtures.albums import member, report
from tests.fixtures.images.scenes import resized, scene

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
    plan = plan_moves(report((kept, copy)), [root], **options)
    assert len(plan.moves) + len(plan.skipped) == 1
    return [skip.reason for skip in plan.skipped]


@pytest.mark.parametrize(
    ("kept", "copy", "reason"),
    [
        ("fine.jpg", "coarse.jpg", ""),
        ("fine.jpg", "small.jpg", ""),
        ("lossless.png", "fine.jpg", ""),
        ("coarse.jpg", "fine.jpg", "it has what the kept photo lacks: less compression."),
        ("fine.jpg", "lossless.png", "it has what the kept photo lacks: a lossless format."),
        ("small.jpg", "fine.jpg", "It has more pixels than the kept photo: 80x60."),
    ],
)
def test_a_re_encoded_copy_moves_only_if_the_kept_file_is_as_good(
    photos: dict[str, Member], kept: str, copy: str, reason: str, tmp_path: Path
) -> None:
    (found,) = reasons(photos[kept], aligned(photos[copy], RE_ENCODED), tmp_path) or [""]
    assert found.endswith(reason)
    assert bool(found) == bool(reason)


def test_nothing_made_from_a_cameras_file_is_better_but_it_may_be_larger(
    photos: dict[str, Member], tmp_path: Path
) -> None:
    kept = replace(photos["coarse.jpg"], is_original=True)
    assert reasons(kept, aligned(photos["lossless.png"], RE_ENCODED), tmp_path) == []
    assert reasons(kept, aligned(replace(photos["fine.jpg"], is_original=True), RE_ENCODED), tmp_path) != []
    assert reasons(replace(kept, width=40), aligned(photos["fine.jpg"], RE_ENCODED), tmp_path) != []


def test_a_doubt_about_the_kept_photo_counts_unless_a_camera_wrote_it(
    photos: dict[str, Member], tmp_path: Path
) -> None:
    kept, copy = photos["fine.jpg"], photos["small.jpg"]
    doubtful = aligned(copy, RE_ENCODED, doubts=("it has more pixels, but no finer detail",))
    (reason,) = reasons(kept, doubtful, tmp_path)
    assert reason == "The kept photo may be made from it: it has more pixels, but no finer detail."
    (reason,) = reasons(kept, replace(copy, tier=RE_ENCODED), tmp_path)
    assert reason == "It was not aligned with the kept photo, which may be an enlarged copy."
    assert reasons(replace(kept, is_original=True), doubtful, tmp_path) == []


def test_a_raw_file_is_known_by_its_preview_only(photos: dict[str, Member], tmp_path: Path) -> None:
    kept = replace(photos["fine.jpg"], format=RAW, is_original=True)
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


def test_a_larger_file_that_is_not_kept_for_its_detail_stays_if_the_kept_one_is_compressed_more(
    photos: dict[str, Member], tmp_path: Path
) -> None:
    kept, copy = photos["coarse.jpg"], aligned(photos["fine.jpg"], EDITED)
    (reason,) = reasons(kept, replace(copy, doubt=MADE_LATER), tmp_path, tiers=[EDITED])
    assert reason.endswith("it has what the kept photo lacks: less compression.")
    assert reasons(kept, replace(copy, doubt=PUT_INTO), tmp_path, tiers=[EDITED]) == []


def test_an_altered_picture_never_moves_unless_a_person_chose_it(photos: dict[str, Member], tmp_path: Path) -> None:
    kept, copy = photos["fine.jpg"], aligned(photos["coarse.jpg"], ALTERED)
    (reason,) = reasons(kept, copy, tmp_path, tiers=[*SAFE_TIERS, EDITED, SIMILAR])
    assert reason.startswith("A region of it differs")
    assert reasons(kept, copy, tmp_path, chosen={copy.path}) == []
    assert reasons(photos["coarse.jpg"], aligned(photos["fine.jpg"], RE_ENCODED), tmp_path, chosen={kept.path}) == []


def test_a_copy_of_a_copy_that_moves_follows_it_to_the_photo_that_stays(
    photos: dict[str, Member], tmp_path: Path
) -> None:
    (tmp_path / "again.jpg").write_bytes((tmp_path / "coarse.jpg").read_bytes())
    copy = aligned(photos["coarse.jpg"], RE_ENCODED)
    twin = replace(member(tmp_path / "again.jpg", width=80, height=60), tier=SIMILAR, copy_of=copy.path)
    found = report((photos["fine.jpg"], replace(twin, copy_tier=EXACT), copy))
    moves = plan_moves(found, [tmp_path]).moves
    assert [(move.duplicate.path, move.kept.path, move.tier) for move in moves] == [
        (copy.path, found.groups[0].keep, RE_ENCODED), (twin.path, found.groups[0].keep, RE_ENCODED),
    ]  # fmt: skip
    moves = plan_moves(found, [tmp_path], tiers=[EXACT]).moves
    assert [(move.duplicate.path, move.kept.path, move.tier) for move in moves] == [(twin.path, copy.path, EXACT)]

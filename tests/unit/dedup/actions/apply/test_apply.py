"""Moving copies away and back, over real files."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal
from clip_client.dedup.store.sqlite import StoreError
from clip_client.dedup.types import (
    ALTERED,
    BURST,
    EDITED,
    EXACT,
    QUARANTINE_NAME,
    RE_ENCODED,
    SAFE_TIERS,
    SAME_PIXELS,
    SIMILAR,
    TIERS,
)
from tests.fixtures.albums import album, member, opened, planned, report, snapshot, without_access, write
from tests.fixtures.members import FROM_A_CAMERA, aligned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def test_copies_go_and_come_back_with_their_times(tmp_path: Path, journal: Journal) -> None:
    groups = album(tmp_path / "root")
    before = snapshot(tmp_path / "root")
    plan = planned(groups, [tmp_path / "root"])
    assert [os.path.basename(move.duplicate.path) for move in plan.moves] == ["2.jpg", "3.jpg", "copy.jpg"]
    assert without_access(snapshot(tmp_path / "root")) == without_access(before)
    before = snapshot(tmp_path / "root")  # the plan has read the RAW files

    applied = apply(plan, journal, run="run")

    assert all(outcome.done for outcome in applied)
    left = {name for name in snapshot(tmp_path / "root") if QUARANTINE_NAME not in name}
    moved = set(before) - left
    assert left == set(before) - {"a/2.jpg", "a/2.cr2", "a/2.jpg.xmp", "a/3.jpg", "copy.jpg"}
    away = tmp_path / "root" / QUARANTINE_NAME / "run"
    assert {str(path.relative_to(away)) for path in away.rglob("*.*")} == set(before) - left

    assert all(outcome.done for outcome in undo(journal))
    after = snapshot(tmp_path / "root")
    assert without_access(after) == without_access(before)
    assert {name: after[name] for name in moved} == {name: before[name] for name in moved}
    assert not (tmp_path / "root" / QUARANTINE_NAME).exists()
    assert undo(journal) == ()


def test_a_hard_link_comes_back_where_the_kept_file_was_replaced(tmp_path: Path, journal: Journal) -> None:
    """As an editor does that writes a new file: the link is then another file than the kept one, with the old bytes."""
    groups = album(tmp_path / "root")
    apply(planned(groups, [tmp_path / "root"], hard_link=True), journal)
    (tmp_path / "new.jpg").write_bytes(b"edited")
    os.replace(tmp_path / "new.jpg", tmp_path / "root" / "a" / "1.jpg")
    assert all(outcome.done for outcome in undo(journal))
    assert (tmp_path / "root" / "a" / "3.jpg").stat().st_mtime_ns == 10**18 + 2


def test_a_name_that_was_taken_meanwhile_is_not_overwritten(tmp_path: Path, journal: Journal) -> None:
    root = tmp_path / "root"
    apply(planned(album(root), [root]), journal)
    (root / "copy.jpg").write_bytes(b"a new photo")
    outcomes = {os.path.basename(outcome.path): outcome for outcome in undo(journal)}
    assert not outcomes["copy.jpg"].done
    assert "taken its name" in outcomes["copy.jpg"].message
    assert (root / "copy.jpg").read_bytes() == b"a new photo"
    (root / "copy.jpg").unlink()
    assert [outcome.done for outcome in undo(journal)] == [True]
    assert (root / "copy.jpg").read_bytes() == b"second"


@pytest.mark.parametrize(
    ("tiers", "leaving"),
    [
        (SAFE_TIERS, {EXACT, SAME_PIXELS, RE_ENCODED}),
        ([EDITED], {EDITED}),
        ([SIMILAR], {SIMILAR}),
        ([EXACT, EDITED, SIMILAR], {EXACT, EDITED, SIMILAR}),
    ],
)
def test_a_copy_moves_only_if_its_tier_is_selected(tmp_path: Path, tiers: Sequence[str], leaving: set[str]) -> None:
    kept = member(write(tmp_path / "1.jpg", b"x"), **FROM_A_CAMERA)
    members = [member(write(tmp_path / f"{tier}.jpg", b"x"), tier=tier, matches=aligned(tier)) for tier in TIERS]
    plan = planned(report((kept, *members)), [tmp_path], tiers=tiers)
    assert {move.tier for move in plan.moves} == leaving
    assert len(plan.skipped) == len(members) - len(leaving)
    # It says what else would have to be asked for; nothing selects an altered picture.
    assert {skip.tier for skip in plan.skipped} == {*TIERS, ""} - {*tiers, ALTERED}


def test_of_copies_of_a_frame_the_best_stays(tmp_path: Path, journal: Journal) -> None:
    root = tmp_path / "root"
    kept, frame, alike = (write(root / name, name.encode()) for name in ("kept.jpg", "frame.jpg", "alike.jpg"))
    backup, copy = write(root / "b" / "frame.jpg", b"frame.jpg"), write(root / "b" / "alike.jpg", b"alike.jpg")
    members = (
        member(kept),
        member(backup, tier=SIMILAR, other_shot=BURST, copy_of=str(frame), copy_tier=EXACT),
        member(copy, tier=SIMILAR, copy_of=str(alike), copy_tier=EXACT),
        member(frame, tier=SIMILAR, other_shot=BURST),
        member(alike, tier=SIMILAR),
    )
    plan = planned(report(members), [root])
    stays = [(one.duplicate.path, one.kept.path, one.tier) for one in plan.moves]
    assert stays == [(str(backup), str(frame), EXACT), (str(copy), str(alike), EXACT)]
    assert all(outcome.done for outcome in apply(plan, journal))
    assert {path.name for path in root.rglob("*.jpg") if QUARANTINE_NAME not in path.parts} == {
        "kept.jpg",
        "frame.jpg",
        "alike.jpg",
    }
    undo(journal)
    # Where what it is a copy of leaves, too, the kept photo is what stays for both.
    asked = planned(report(members), [root], tiers=[EXACT, SIMILAR])
    kept_photos = {one.duplicate.path: one.kept.path for one in asked.moves}
    assert kept_photos == {str(backup): str(frame), str(alike): str(kept), str(copy): str(kept)}
    assert all(outcome.done for outcome in apply(asked, journal))


def test_a_raw_file_that_was_compared_itself_does_not_follow_a_photo(tmp_path: Path) -> None:
    photos = [write(tmp_path / name, b"x") for name in ("1.jpg", "2.jpg")]
    raws = [write(tmp_path / name, b"raw") for name in ("2.nef", "1.nef")]
    plan = planned(report(tuple(map(member, raws)), tuple(map(member, photos))), [tmp_path])
    # Else both RAW files would go, each because the other one is kept.
    assert [move.duplicate.path for move in plan.moves] == [str(tmp_path / "1.nef")]
    assert "compared as a photo of its own" in plan.skipped[0].reason


def test_a_copy_stays_if_the_raw_file_beside_the_kept_photo_may_leave(tmp_path: Path, journal: Journal) -> None:
    """Else the only RAW file beside a photo would go into the quarantine."""
    photos = [write(tmp_path / name, b"x") for name in ("1.jpg", "2.jpg")]
    raws = [write(tmp_path / name, b"raw") for name in ("other.nef", "1.nef")]
    write(tmp_path / "2.nef", b"raw")
    plan = planned(report(tuple(map(member, raws)), tuple(map(member, photos))), [tmp_path])
    assert [move.duplicate.path for move in plan.moves] == [str(tmp_path / "1.nef")]
    assert "compared as a photo of its own" in plan.skipped[0].reason
    assert [outcome.done for outcome in apply(plan, journal)] == [True]


def test_one_process_acts_at_a_time(tmp_path: Path, journal: Journal) -> None:
    plan = planned(album(tmp_path / "root"), [tmp_path / "root"])
    with opened(tmp_path / "journal.sqlite") as other, other.exclusive(), pytest.raises(StoreError, match="another"):
        apply(plan, journal)
    assert journal.entries(IN_QUARANTINE) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no limit on the size of a file")
@pytest.mark.parametrize("room", [0, 5_000, 10_000, 20_000, 30_000])
def test_a_journal_on_a_full_disk_loses_no_photo(tmp_path: Path, room: int) -> None:
    """The limit fails each write of the journal beyond it, at another step for each amount of room."""
    import resource

    root, store = tmp_path / "root", tmp_path / "journal.sqlite"
    plan = planned(album(root), [root])
    before = snapshot(root)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(store) as journal:
        full = store.with_name(f"{store.name}-wal").stat().st_size + room
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, limits[1]))
        try:
            with pytest.raises(
                StoreError, match=r"journal.sqlite cannot be written .*free some space.*clip-client undo"
            ):
                apply(plan, journal, run="run")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert sorted(data for data, _, _ in snapshot(root).values()) == sorted(data for data, _, _ in before.values())
        undo(journal)
    assert without_access(snapshot(root)) == without_access(before)


def test_what_lies_in_a_photos_library_is_never_moved(tmp_path: Path) -> None:
    """Not even if Photos was not asked about it, as with a file that was named itself."""
    originals = tmp_path / "Photos Library.photoslibrary" / "originals"
    first, second = (write(originals / name, b"x") for name in ("1.jpg", "2.jpg"))
    plan = planned(report((member(first), member(second))), [originals])
    assert plan.moves == ()
    assert "Apple Photos" in plan.skipped[0].reason


@pytest.mark.skipif(sys.platform != "linux", reason="the trash of other systems cannot be moved aside")
def test_purge_reaches_the_real_trash(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "store"
    store.mkdir()
    with opened(store / "journal.sqlite") as journal:
        apply(planned(album(root), [root]), journal)
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    command = [sys.executable, "-m", "clip_client.cli.main", "purge", "--yes", "--store", str(store)]
    ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert "3 photos in the system's trash" in ended.stdout
    trashed = {path.name for path in (tmp_path / "data" / "Trash" / "files").iterdir()}
    assert trashed == {"2.jpg", "2.cr2", "2.jpg.xmp", "3.jpg", "copy.jpg"}
    assert not (root / QUARANTINE_NAME).exists()

"""Moving copies away and back, over real files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, State
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
    from collections.abc import Callable, Sequence
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


def test_one_file_comes_back_alone(tmp_path: Path, journal: Journal) -> None:
    groups = album(tmp_path / "root")
    apply(planned(groups, [tmp_path / "root"]), journal)
    (entry,) = journal.entries(IN_QUARANTINE, original=str(tmp_path / "root" / "a" / "2.jpg"))
    (outcome,) = undo(journal, only={entry.id})
    assert outcome.done
    assert (tmp_path / "root" / "a" / "2.cr2").read_bytes() == b"raw too"
    assert not (tmp_path / "root" / "a" / "3.jpg").exists()
    assert len(journal.entries(IN_QUARANTINE)) == 2


def test_a_hard_link_keeps_the_name_and_can_be_undone(tmp_path: Path, journal: Journal) -> None:
    groups = album(tmp_path / "root")
    before = snapshot(tmp_path / "root")
    apply(planned(groups, [tmp_path / "root"], hard_link=True), journal)
    assert os.path.samefile(tmp_path / "root" / "a" / "1.jpg", tmp_path / "root" / "a" / "3.jpg")
    undo(journal)
    assert without_access(snapshot(tmp_path / "root")) == without_access(before)


def test_a_hard_link_comes_back_where_the_kept_file_was_replaced(tmp_path: Path, journal: Journal) -> None:
    """As an editor does that writes a new file: the link is then another file than the kept one, with the old bytes."""
    groups = album(tmp_path / "root")
    apply(planned(groups, [tmp_path / "root"], hard_link=True), journal)
    (tmp_path / "new.jpg").write_bytes(b"edited")
    os.replace(tmp_path / "new.jpg", tmp_path / "root" / "a" / "1.jpg")
    assert all(outcome.done for outcome in undo(journal))
    assert (tmp_path / "root" / "a" / "3.jpg").stat().st_mtime_ns == 10**18 + 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda root: (root / "copy.jpg").write_bytes(b"edited"), "It has changed since it was compared."),
        (lambda root: (root / "copy.jpg").unlink(), "No such file"),
        (lambda root: (root / "b" / "c" / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"x"), "kept photo has changed"),
        (lambda root: shutil.rmtree(root / "b"), "kept photo has changed"),
    ],
)
def test_what_changed_since_the_scan_stays(
    tmp_path: Path, journal: Journal, change: Callable[[Path], object], reason: str
) -> None:
    root = tmp_path / "root"
    groups = album(root)
    plan = planned(groups, [root])
    change(root)
    before = snapshot(root)
    outcome = apply(plan, journal)[-1]
    assert not outcome.done
    assert reason in outcome.message
    undo(journal)
    assert without_access(snapshot(root)) == without_access(before)


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


def test_bursts_references_and_unsure_tiers_stay(tmp_path: Path) -> None:
    files = [write(tmp_path / "root" / f"{number}.jpg", b"x") for number in range(5)]
    changes: list[dict[str, Any]] = [{}, {"other_shot": BURST}, {"is_reference": True}, {"tier": SIMILAR}, {}]
    members = tuple(member(path, **change) for path, change in zip(files, changes, strict=True))
    plan = planned(report(members), [tmp_path / "root"])
    assert [move.duplicate.path for move in plan.moves] == [str(files[4])]
    assert [skip.photo.path for skip in plan.skipped] == list(map(str, files[1:4]))
    asked = planned(report(members), [tmp_path / "root"], tiers=[EXACT, SIMILAR])
    assert [move.duplicate.path for move in asked.moves] == [str(files[3]), str(files[4])]


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


def test_random_weights_move_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="are random"):
        planned(report(model="ViT-B-32/random:0@1a2b3c4d"), [tmp_path], tiers=[SIMILAR])
    with pytest.raises(ValueError, match="unknown tier 'sure'"):
        planned(report(), [tmp_path], tiers=["sure"])


def test_a_raw_file_that_only_the_copy_has_keeps_it(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1.jpg", b"x"), write(tmp_path / "2.jpg", b"x")
    write(tmp_path / "2.NEF", b"raw")
    plan = planned(report((member(first), member(second))), [tmp_path])
    assert plan.moves == ()
    assert plan.skipped[0].reason == "It has a RAW file beside it, which the kept photo lacks."


def test_a_raw_file_that_is_another_than_the_kept_photos_stays(tmp_path: Path, journal: Journal) -> None:
    kept, cut, changed = (write(tmp_path / name, b"x") for name in ("1.jpg", "2.jpg", "3.jpg"))
    for name, data in (("1.NEF", b"raw"), ("2.NEF", b"whole raw"), ("3.NEF", b"war")):
        write(tmp_path / name, data)
    plan = planned(report((member(kept), member(cut), member(changed))), [tmp_path])
    # Those of the third are of equal size: only their bytes tell.
    assert [(skip.photo.path, "is damaged, or differs" in skip.reason) for skip in plan.skipped] == [
        (str(cut), True),
        (str(changed), True),
    ]
    write(tmp_path / "3.NEF", b"raw")
    plan = planned(report((member(kept), member(changed))), [tmp_path])
    write(tmp_path / "3.NEF", b"war")  # after the plan
    (outcome,) = apply(plan, journal)
    assert "is damaged, or differs" in outcome.message
    assert len(list(tmp_path.glob("*.NEF"))) == 3


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


@pytest.mark.parametrize("unmounted", ["missing", "empty"])
def test_a_disk_that_is_not_there_is_waited_for(tmp_path: Path, journal: Journal, unmounted: str) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"
    kept, copy = write(tmp_path / "1.jpg", b"x"), write(disk / "2.jpg", b"x")
    write(disk / "3.jpg", b"y")
    apply(planned(report((member(kept), member(copy))), [disk]), journal)
    (entry,) = journal.entries(IN_QUARANTINE)
    disk.rename(away)
    if unmounted == "empty":
        disk.mkdir()
    for state in (
        State.MOVED,
        State.RESTORING,
        State.PURGING,
        State.PLANNED,
    ):  # as a process that was killed may have left it
        journal.set_state(entry, state)
        for outcome in (*undo(journal), *purge(journal, trash=os.unlink)):
            assert not outcome.done
            assert "connect its disk" in outcome.message
        assert [found.state for found in journal.entries(IN_QUARANTINE)] == [state]
    if unmounted == "empty":
        disk.rmdir()
    away.rename(disk)
    undo(journal)
    assert copy.read_bytes() == b"x"
    assert journal.entries(IN_QUARANTINE) == []


def test_what_is_reached_through_links_or_lies_elsewhere_stays(tmp_path: Path) -> None:
    kept = write(tmp_path / "root" / "1.jpg", b"x")
    outside = write(tmp_path / "outside" / "2.jpg", b"x")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "3.jpg").symlink_to(outside)
    duplicates = [outside, tmp_path / "root" / "link" / "2.jpg", tmp_path / "root" / "3.jpg"]
    plan = planned(report(tuple(map(member, [kept, *duplicates]))), [tmp_path / "root"])
    assert plan.moves == ()
    assert ["none of the folders" in plan.skipped[0].reason, "leads out" in plan.skipped[1].reason] == [True, True]
    assert "It is a link" in plan.skipped[2].reason


def test_read_only_folders_are_told_before_anything_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = album(tmp_path / "root")
    allowed = os.access

    def access(path: str, mode: int) -> bool:  # root may write anywhere, so permission bits would say nothing here
        return not str(path).endswith("/a") and allowed(path, mode)

    monkeypatch.setattr(os, "access", access)
    plan = planned(groups, [tmp_path / "root"])
    assert [os.path.basename(move.duplicate.path) for move in plan.moves] == ["copy.jpg"]
    assert all("read-only" in skip.reason for skip in plan.skipped)


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


def test_purge_goes_to_the_trash_only_while_a_photo_is_kept(tmp_path: Path, journal: Journal) -> None:
    root, trash = tmp_path / "root", tmp_path / "trash"
    trash.mkdir()
    apply(planned(album(root), [root]), journal)
    shutil.rmtree(root / "b")
    outcomes = {
        os.path.basename(outcome.path): outcome
        for outcome in purge(journal, trash=lambda path: os.rename(path, trash / os.path.basename(path)))
    }
    assert [outcomes[name].done for name in ("2.jpg", "3.jpg", "copy.jpg")] == [True, True, False]
    assert sorted(path.name for path in trash.iterdir()) == ["2.cr2", "2.jpg", "2.jpg.xmp", "3.jpg"]
    assert [outcome.done for outcome in undo(journal)] == [True]
    assert (root / "copy.jpg").exists()


def test_purge_follows_the_chain_of_kept_photos(tmp_path: Path, journal: Journal) -> None:
    first, second, third = (write(tmp_path / "r" / f"{number}.jpg", b"x") for number in range(3))
    apply(planned(report((member(second), member(first))), [tmp_path]), journal)
    apply(planned(report((member(third), member(second))), [tmp_path]), journal)
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [True, True]
    assert third.exists()


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

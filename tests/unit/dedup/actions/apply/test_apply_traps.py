"""What other programs and other file systems do to photos while they are moved."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry, State
from clip_client.dedup.store.sqlite import StoreError
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import album, member, opened, planned, report, snapshot, without_access, write

if TYPE_CHECKING:
    from pathlib import Path


def test_a_hard_link_leads_to_the_photo_where_the_kept_name_is_a_link(tmp_path: Path, journal: Journal) -> None:
    """A second name of the link itself would lead nowhere from another folder, and undo would stumble over it."""
    root = tmp_path / "root"
    write(tmp_path / "elsewhere.jpg", b"x")
    kept, copy = root / "kept.jpg", write(root / "deep" / "copy.jpg", b"x", 10**18)
    kept.symlink_to("../elsewhere.jpg")
    plan = planned(report((member(kept), member(copy))), [root], hard_link=True)
    assert [outcome.done for outcome in apply(plan, journal)] == [True]
    assert not copy.is_symlink()
    assert copy.samefile(tmp_path / "elsewhere.jpg")
    assert [outcome.done for outcome in undo(journal)] == [True]
    assert copy.stat().st_mtime_ns == 10**18


def test_what_a_program_saves_in_the_moment_of_the_move_is_not_lost(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Editors write a new file and rename it onto the old name: also between two of our own steps."""
    kept, copy = write(tmp_path / "r" / "1.jpg", b"x"), write(tmp_path / "r" / "2.jpg", b"x")
    plan = planned(report((member(kept), member(copy))), [tmp_path / "r"])
    unlink, rename = os.unlink, os.rename

    def save() -> None:
        if not (tmp_path / "saved").exists():
            write(tmp_path / "saved", b"")
            os.replace(write(tmp_path / "new", b"edited"), copy)

    def unlink_later(path: str) -> None:
        save()
        unlink(path)

    def rename_later(source: str, target: str) -> None:
        save()
        rename(source, target)

    monkeypatch.setattr(os, "unlink", unlink_later)
    monkeypatch.setattr(os, "rename", rename_later)
    (outcome,) = apply(plan, journal)
    assert not outcome.done
    assert copy.read_bytes() == b"edited"


def test_two_searches_with_two_stores_do_not_each_move_what_the_other_keeps(tmp_path: Path) -> None:
    first, second = write(tmp_path / "r" / "1.jpg", b"x"), write(tmp_path / "r" / "2.jpg", b"x")
    plan = planned(report((member(first), member(second))), [tmp_path / "r"])
    other_way = planned(report((member(second), member(first))), [tmp_path / "r"])

    class SlowJournal(Journal):
        def plan(self, **what: Any) -> JournalEntry:
            planned = super().plan(**what)
            with opened(tmp_path / "other.sqlite") as other:
                assert [outcome.done for outcome in apply(other_way, other)] == [True]
            return planned

    with closing(SlowJournal(tmp_path / "slow.sqlite")) as journal:
        (outcome,) = apply(plan, journal)
        remaining = journal.entries(IN_QUARANTINE)
    assert outcome.message == "The kept photo disappeared or changed during the move, so this one is back."
    assert (second.exists(), first.exists()) == (True, False)
    assert remaining == []


def test_a_folder_that_cannot_be_synced_is_no_failure(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems refuse it for folders, as POSIX lets them; a sick disk is another matter."""
    groups, code = album(tmp_path / "root"), errno.EINVAL

    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    plan = planned(groups, [tmp_path / "root"])
    before = snapshot(tmp_path / "root")
    assert all(outcome.done for outcome in apply(plan, journal))
    assert all(outcome.done for outcome in undo(journal))
    code = errno.EIO
    assert not any(outcome.done for outcome in apply(plan, journal))
    assert without_access(snapshot(tmp_path / "root")) == without_access(before)


@pytest.mark.parametrize(
    ("code", "sentence"), [(errno.EWOULDBLOCK, "another clip-client is moving"), (errno.ENOLCK, "No locks available")]
)
def test_a_file_system_without_locks_is_not_taken_for_another_process(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, code: int, sentence: str
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match=sentence), journal.exclusive():
        pass


def test_a_quarantine_that_may_not_be_looked_into_is_not_taken_for_an_empty_one(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    groups = album(root)
    before = snapshot(root)
    apply(planned(groups, [root]), journal)
    begun, purging, *_ = journal.entries(IN_QUARANTINE)
    journal.set_state(begun, State.PLANNED)  # as a process leaves them that is killed
    journal.set_state(purging, State.PURGING)
    lstat = os.lstat

    def refuse(path: str | os.PathLike[str]) -> os.stat_result:
        if QUARANTINE_NAME in os.fspath(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return lstat(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", refuse)
        assert {outcome.message for outcome in undo(journal)} == {"The system refuses: Permission denied."}
        refused = purge(journal, trash=os.unlink)
        assert {(outcome.done, outcome.message) for outcome in refused} == {
            (False, "The system refuses: Permission denied.")
        }
    assert [outcome.done for outcome in undo(journal)] == [True] * 3
    assert without_access(snapshot(root)) == without_access(before)


def test_another_disk_in_the_same_place_is_not_taken_for_an_emptied_quarantine(
    tmp_path: Path, journal: Journal
) -> None:
    """Drive letters and mount points are given again; what lies on the first disk must not be forgotten for that."""
    disk, away = tmp_path / "disk", tmp_path / "away"
    groups = album(disk)
    before = snapshot(disk)
    apply(planned(groups, [disk]), journal)
    disk.rename(away)
    write(disk / "something.txt", b"else")
    assert all("looks like another disk" in outcome.message for outcome in undo(journal))
    assert all("looks like another disk" in outcome.message for outcome in purge(journal, trash=os.unlink))
    (disk / "something.txt").unlink()
    disk.rmdir()
    away.rename(disk)
    assert [outcome.done for outcome in undo(journal)] == [True] * 3
    assert without_access(snapshot(disk)) == without_access(before)

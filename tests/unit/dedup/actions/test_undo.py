"""What comes back from the quarantine, and what is waited for."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry, State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import album, copies, files, member, planned, planned_copies, refusing, report, write

if TYPE_CHECKING:
    from pathlib import Path


def test_what_a_person_took_out_of_the_quarantine_is_forgotten(tmp_path: Path, journal: Journal) -> None:
    plan, (_, copy) = planned_copies(tmp_path / "r")
    apply(plan, journal)
    (entry,) = journal.entries(IN_QUARANTINE)
    os.rename(entry.files[0].quarantined, tmp_path / "taken.jpg")
    (outcome,) = undo(journal)
    assert (outcome.path, outcome.done) == (str(copy), False)
    assert outcome.message == "It is neither in the quarantine nor at its old path."
    assert journal.entries(IN_QUARANTINE) == []
    assert not (tmp_path / "r" / QUARANTINE_NAME).exists()


@pytest.mark.parametrize("hard_link", [False, True])
def test_a_photo_is_restored_only_if_it_is_back(tmp_path: Path, journal: Journal, hard_link: bool) -> None:
    """Out of the quarantine, the person may have moved it back, or may have made something else with its name."""
    found, (_, back, lost, linked) = copies(tmp_path / "r", 4)
    apply(planned(found, [tmp_path / "r"], hard_link=hard_link), journal)
    for entry in journal.entries(IN_QUARANTINE):
        (file,) = entry.files
        os.replace(file.quarantined, back if file.original == str(back) else tmp_path / "taken.jpg")
    if not hard_link:
        write(lost, b"other")
    linked.unlink(missing_ok=True)
    linked.symlink_to("nowhere")
    assert {(one.path, one.done, one.message) for one in undo(journal)} == {
        (str(back), True, "Restored."),
        *(
            (str(path), False, "It was no longer in the quarantine, and another file has its name.")
            for path in (lost, linked)
        ),
    }


def test_a_disk_that_goes_away_during_undo_is_waited_for(tmp_path: Path) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"

    class UnpluggedJournal(Journal):
        def set_state(self, entry: JournalEntry, state: str) -> JournalEntry:
            if state == State.RESTORING:
                disk.rename(away)
            return super().set_state(entry, state)

    plan, (_, copy) = planned_copies(disk)
    with closing(UnpluggedJournal(tmp_path / "journal.sqlite")) as journal:
        apply(plan, journal)
        (outcome,) = undo(journal)
        assert outcome.message == f"{disk} is missing or empty; connect its disk and try again."
        assert len(journal.entries((State.RESTORING,))) == 1
        away.rename(disk)
        (outcome,) = undo(journal)  # as the next process does that moves files
        assert (outcome.path, outcome.done) == (str(copy), True)
    assert copy.exists()


def test_another_disk_in_the_same_place_is_not_taken_for_an_emptied_quarantine(
    tmp_path: Path, journal: Journal
) -> None:
    """Drive letters and mount points are given again; what lies on the first disk must not be forgotten for that."""
    disk, away = tmp_path / "disk", tmp_path / "away"
    groups = album(disk)
    before = files(disk)
    apply(planned(groups, [disk]), journal)
    disk.rename(away)
    write(disk / "something.txt", b"else")
    for outcomes in (undo(journal), purge(journal, trash=os.unlink)):
        assert ["looks like another disk" in outcome.message for outcome in outcomes] == [True] * 3
    (disk / "something.txt").unlink()
    disk.rmdir()
    away.rename(disk)
    assert [outcome.done for outcome in undo(journal)] == [True] * 3
    assert files(disk) == before


def test_a_quarantine_that_may_not_be_looked_into_is_not_taken_for_an_empty_one(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = album(root)
    before = files(root)
    apply(planned(groups, [root]), journal)
    moving, purging, *_ = journal.entries(IN_QUARANTINE)
    journal.set_state(moving, State.PLANNED)  # as a killed process leaves them
    journal.set_state(purging, State.PURGING)
    hidden = [path for path in root.rglob("*") if QUARANTINE_NAME in path.parts]
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", refusing(os.lstat, PermissionError(errno.EACCES, "Permission denied"), *hidden))
        for outcomes in (undo(journal), purge(journal, trash=os.unlink)):
            assert {(one.done, one.message) for one in outcomes} == {(False, "The system refuses: Permission denied.")}
    assert [outcome.done for outcome in undo(journal)] == [True] * 3
    assert files(root) == before


def test_a_hard_link_comes_back_where_the_kept_file_was_replaced(tmp_path: Path, journal: Journal) -> None:
    """As an editor does that writes a new file: the link is then another file than the kept one, with the old bytes."""
    groups = album(tmp_path / "root")
    apply(planned(groups, [tmp_path / "root"], hard_link=True), journal)
    (tmp_path / "new.jpg").write_bytes(b"edited")
    os.replace(tmp_path / "new.jpg", tmp_path / "root" / "a" / "1.jpg")
    assert all(outcome.done for outcome in undo(journal))
    assert (tmp_path / "root" / "a" / "3.jpg").stat().st_mtime_ns == 10**18 + 2


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

"""Files that come back from the quarantine, and files that must wait."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.store.journal import IN_QUARANTINE, Folder, Journal, JournalEntry, State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import (
    album,
    files,
    link_what_moved,
    member,
    opened,
    planned,
    planned_copies,
    refusing,
    report,
    write,
)


@pytest.mark.parametrize("hard_link", [False, True])
def test_what_a_person_took_out_of_the_quarantine_is_restored_only_if_it_is_back(
    tmp_path: Path, journal: Journal, hard_link: bool
) -> None:
    """The person may have moved it back, or may have made something else with its name. The journal forgets it."""
    plan, (_, back, lost, linked, gone) = planned_copies(tmp_path / "r", 5)
    apply(plan, journal)
    if hard_link:
        link_what_moved(journal.directory / "history.sqlite")
    for entry in journal.entries(IN_QUARANTINE):
        (file,) = entry.files
        os.replace(file.quarantined, back if file.original == str(back) else tmp_path / "taken.jpg")
    if not hard_link:
        write(lost, b"other")
    gone.unlink(missing_ok=True)
    linked.unlink(missing_ok=True)
    linked.symlink_to("nowhere")
    assert {(one.path, one.done, one.message) for one in undo(journal)} == {
        (str(back), True, "It was back already."),
        (str(gone), False, "It is neither in the quarantine nor at its old path."),
        *(
            (str(path), False, "It was no longer in the quarantine, and another file has its name.")
            for path in (lost, linked)
        ),
    }
    assert journal.entries(IN_QUARANTINE) == []
    assert not (tmp_path / "r" / QUARANTINE_NAME).exists()


def test_a_disk_that_goes_away_during_undo_is_waited_for(tmp_path: Path) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"

    class UnpluggedJournal(Journal):
        def set_state(self, entry: JournalEntry, state: str, folders: Sequence[Folder] = ()) -> JournalEntry:
            if state == State.RESTORING:
                disk.rename(away)
            return super().set_state(entry, state, folders)

    plan, (_, copy) = planned_copies(disk)
    with opened(tmp_path / "history.sqlite", UnpluggedJournal) as journal:
        apply(plan, journal)
        (outcome,) = undo(journal)
        assert outcome.message.startswith(f"{disk} is missing or empty; connect its disk and try again")
        assert len(journal.entries((State.RESTORING,))) == 1
        away.rename(disk)
        (outcome,) = undo(journal)  # as the next process does that moves files
        assert (outcome.path, outcome.done) == (str(copy), True)
    assert copy.exists()


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
            reason = "Permission denied; make its folder and the quarantine writable and try again"
            assert {(one.done, one.message) for one in outcomes} == {(False, f"The system refuses: {reason}.")}
    assert [outcome.done for outcome in undo(journal)] == [True] * 3
    assert files(root) == before


def test_folders_keep_their_modes_and_times(root: Path, journal: Journal) -> None:
    """The modes and times come back even after a person has removed the empty folders, or put a file in their place."""
    private = root / "open" / "private"
    plan = planned(report(tuple(member(write(path / "1.jpg", b"x")) for path in (root, private))), [root])
    os.chmod(root / "open", 0o775)
    os.chmod(private, 0o700)
    for place, folder in enumerate((private, root / "open", root)):
        os.utime(folder, ns=(10**18 + place, 10**18 + place))

    def now() -> list[tuple[int, int]]:
        return [(folder.stat().st_mode, folder.stat().st_mtime_ns) for folder in (private, root / "open", root)]

    before = now()
    apply(plan, journal)
    assert now() == before
    (away,) = (root / QUARANTINE_NAME).iterdir()
    modes = [one.stat().st_mode & 0o7777 for one in (away.parent, away / "open", away / "open" / "private")]
    assert modes == [0o700, 0o775, 0o700]
    private.rmdir()
    (root / "open").rmdir()
    before[-1] = (root.stat().st_mode, root.stat().st_mtime_ns)
    assert [outcome.done for outcome in undo(journal)] == [True]
    assert now() == before
    apply(plan, journal)
    private.rmdir()
    os.utime(write(private, b"a file in its place"), ns=(10**18, 10**18))
    assert [outcome.done for outcome in undo(journal)] == [False]
    assert private.stat().st_mtime_ns == 10**18
    private.unlink()
    assert [outcome.done for outcome in undo(journal)] == [True]
    assert private.stat().st_mode & 0o7777 == 0o700

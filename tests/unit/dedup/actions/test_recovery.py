"""What apply and undo say and record when something stops them, and how the next process goes on."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.plan import Plan
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry, State
from clip_client.dedup.store.sqlite import StoreError
from clip_client.dedup.types import QUARANTINE_NAME, SAME_PIXELS, Metadata
from tests.fixtures.albums import album, member, planned, report, snapshot, without_access, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def copies(root: Path, count: int = 2, data: bytes = b"x") -> tuple[Plan, list[Path]]:
    """Make ``count`` copies, of which the first is kept, and plan to move the others."""
    photos = [write(root / f"{number}.jpg", data) for number in range(count)]
    return planned(report(tuple(map(member, photos))), [root]), photos


def test_apply_tells_how_far_it_is_and_what_became_of_each_photo(tmp_path: Path, journal: Journal) -> None:
    root = tmp_path / "r"
    plan, photos = copies(root, 4)
    photos[2].unlink()
    told: list[tuple[str, int, int]] = []
    applied = apply(plan, journal, run="run", on_progress=lambda *progress: told.append(progress))
    assert told == [("moving", 1, 3), ("moving", 2, 3), ("moving", 3, 3)]
    assert [(outcome.path, outcome.done, outcome.message) for outcome in applied] == [
        (str(photos[1]), True, f"Moved to {root / QUARANTINE_NAME / 'run' / '1.jpg'}."),
        (str(photos[2]), False, "The system refuses: No such file or directory."),
        (str(photos[3]), True, f"Moved to {root / QUARANTINE_NAME / 'run' / '3.jpg'}."),
    ]


def test_a_journal_that_fails_says_what_has_moved_before(tmp_path: Path) -> None:
    plan, photos = copies(tmp_path / "r", 4)
    photos[1].unlink()  # not every photo before it has moved

    class FullJournal(Journal):
        def plan(self, **what: Any) -> JournalEntry:
            if what["files"][0].original == str(photos[3]):
                raise StoreError("the disk is full")
            return super().plan(**what)

    with closing(FullJournal(tmp_path / "journal.sqlite")) as journal:
        with pytest.raises(StoreError) as raised:
            apply(plan, journal)
        assert str(raised.value) == (
            "the disk is full; 1 of 3 photos were moved before that; restore them with: clip-client undo"
        )
        assert [path.exists() for path in photos] == [True, False, False, True]
        assert [outcome.done for outcome in undo(journal)] == [True]


def replace_by_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


KEPT_CHANGED = "The kept photo has changed or can no longer be read."
CHANGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("1.jpg", lambda path: path.write_bytes(b"y"), "It has changed since it was compared."),
    ("1.jpg", lambda path: path.write_bytes(b""), "It has changed since it was compared."),
    ("1.jpg", replace_by_a_link, "It is no longer a regular file."),
    ("1.nef", replace_by_a_link, "It is no longer a regular file."),
    ("1.jpg", os.unlink, "The system refuses: No such file or directory."),
    ("0.jpg", os.unlink, KEPT_CHANGED),
    ("0.jpg", lambda path: path.write_bytes(b""), KEPT_CHANGED),
    ("0.jpg", lambda path: path.write_bytes(b"y"), KEPT_CHANGED),
    *(
        (name, change, f"The {kind} beside it is damaged, or differs from that of the kept photo.")
        for kind, both in (("RAW file", ("0.nef", "1.nef")), ("sidecar", ("0.xmp", "1.xmp")))
        for name in both
        for change in (lambda path: path.write_bytes(b"longer"), lambda path: path.write_bytes(b"war"))
    ),
    ("0.nef", os.unlink, "The RAW file beside it is damaged, or differs from that of the kept photo."),
    ("0.xmp", os.unlink, "The sidecar beside it is damaged, or differs from that of the kept photo."),
]


@pytest.mark.parametrize(("name", "change", "sentence"), CHANGES)
def test_what_changes_after_the_plan_stays_and_says_why(
    tmp_path: Path, journal: Journal, name: str, change: Callable[[Path], object], sentence: str
) -> None:
    """The sidecars are empty: one that is gone is no copy of them."""
    root = tmp_path / "r"
    for number in range(2):
        write(root / f"{number}.nef", b"raw")
        write(root / f"{number}.xmp", b"")
    plan, _ = copies(root)
    assert len(plan.moves) == 1
    change(root / name)
    before = snapshot(root)
    (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, sentence)
    assert without_access(snapshot(root)) == without_access(before)
    assert journal.entries(IN_QUARANTINE) == []


@pytest.mark.parametrize("name", ["1.jpg", "1.nef"])
@pytest.mark.parametrize("data", [b"longer", b"y"])
def test_a_file_that_is_written_to_during_the_move_comes_back(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    root = tmp_path / "r"
    for number in range(2):
        write(root / f"{number}.nef", b"z")
    plan, _ = copies(root)
    rename = os.rename

    def write_and_rename(source: str, target: str) -> None:
        if os.path.basename(source) == name:
            (root / name).write_bytes(data)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", write_and_rename)
        (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, "It changed during the move, and is back.")
    assert (root / name).read_bytes() == data
    assert sorted(os.listdir(root)) == ["0.jpg", "0.nef", "1.jpg", "1.nef"]
    assert len(journal.entries((State.ABANDONED,))) == 1


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "The system refuses: No space left on device."),
        (OSError("the network share is gone"), "The system refuses: the network share is gone."),
    ],
)
def test_what_the_system_refuses_is_told_without_numbers(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, error: OSError, sentence: str
) -> None:
    plan, photos = copies(tmp_path / "r")

    def refuse(source: str, target: str) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, sentence)
    assert all(photo.exists() for photo in photos)
    assert not (tmp_path / "r" / QUARANTINE_NAME).exists()


def test_a_photo_on_a_damaged_disk_stays_and_says_why(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, (_, copy) = copies(tmp_path / "r")
    open_ = os.open

    def refuse(path: str, *arguments: Any, **named: Any) -> int:
        if path == str(copy):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return open_(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, "The file cannot be read: Input/output error.")
    assert copy.read_bytes() == b"x"


def test_what_a_person_took_out_of_the_quarantine_is_forgotten(tmp_path: Path, journal: Journal) -> None:
    plan, (_, copy) = copies(tmp_path / "r")
    apply(plan, journal)
    (entry,) = journal.entries(IN_QUARANTINE)
    os.rename(entry.files[0].quarantined, tmp_path / "taken.jpg")
    (outcome,) = undo(journal)
    assert (outcome.path, outcome.done) == (str(copy), False)
    assert outcome.message == "It is neither in the quarantine nor at its old path."
    assert journal.entries(IN_QUARANTINE) == []
    assert not (tmp_path / "r" / QUARANTINE_NAME).exists()


@pytest.mark.parametrize(
    ("left", "is_gone", "ends"),
    [
        (State.PLANNED, False, State.ABANDONED),
        (State.RESTORING, False, State.RESTORED),
        (State.PURGING, False, State.MOVED),
        (State.PURGING, True, State.PURGED),
    ],
)
def test_each_state_of_a_killed_process_has_one_end(
    tmp_path: Path, journal: Journal, left: str, is_gone: bool, ends: str
) -> None:
    """A disk that is not connected keeps its entries as they are, and keeps nothing else from its end."""
    disk, away, root = tmp_path / "disk", tmp_path / "away", tmp_path / "root"
    for folder in (disk, root):
        plan, _ = copies(folder)
        apply(plan, journal)
    far, near = (journal.set_state(entry, left) for entry in journal.entries(IN_QUARANTINE))
    if is_gone:
        os.unlink(near.files[0].quarantined)
    disk.rename(away)
    apply(Plan(moves=(), skipped=()), journal)
    assert journal.entries((left,)) == [far]
    assert [entry.id for entry in journal.entries((ends,))] == [near.id]
    assert (root / "1.jpg").exists() == (left != State.PURGING)
    assert (root / QUARANTINE_NAME).exists() == (ends == State.MOVED)


def test_a_disk_that_goes_away_during_undo_is_waited_for(tmp_path: Path) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"

    class UnpluggedJournal(Journal):
        def set_state(self, entry: JournalEntry, state: str) -> JournalEntry:
            if state == State.RESTORING:
                disk.rename(away)
            return super().set_state(entry, state)

    plan, (_, copy) = copies(disk)
    with closing(UnpluggedJournal(tmp_path / "journal.sqlite")) as journal:
        apply(plan, journal)
        (outcome,) = undo(journal)
        assert outcome.message == f"{disk} is missing or empty; connect its disk and try again."
        assert len(journal.entries((State.RESTORING,))) == 1
        away.rename(disk)
        assert undo(journal) == ()  # the next process to move files brings it back
    assert copy.exists()


@pytest.mark.parametrize("hard_link", [False, True])
def test_each_change_of_a_folder_is_on_the_disk_before_the_journal_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_link: bool
) -> None:
    """After a power failure the journal must not say more than the folders do."""
    root = tmp_path / "root"
    groups = album(root)
    titled = (
        member(write(root / "d" / "1.jpg", b"t1"), tier=SAME_PIXELS),
        member(write(root / "d" / "2.jpg", b"t2"), tier=SAME_PIXELS, metadata=Metadata(title="Gate")),
    )
    found = report(*(group.members for group in groups.groups), titled)
    unsynced: set[str] = set()
    steps: list[str] = []

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*paths: Any, **named: Any) -> Any:
            result = call(*paths, **named)
            changed = paths[1:] if name == "link" else paths
            unsynced.update(os.path.dirname(path) for path in changed if isinstance(path, str))
            steps.append(name)
            return result

        return change

    folders: dict[int, str] = {}
    open_, fsync = os.open, os.fsync

    def open_folder(path: Any, *arguments: Any, **named: Any) -> int:
        descriptor = open_(path, *arguments, **named)
        folders[descriptor] = os.fspath(path)
        return descriptor

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        unsynced.discard(folders.get(descriptor, ""))

    class WatchedJournal(Journal):
        def set_state(self, entry: JournalEntry, state: str) -> JournalEntry:
            assert not unsynced, f"not on the disk before {state}: {unsynced}"
            return super().set_state(entry, state)

    with closing(WatchedJournal(tmp_path / "journal.sqlite")) as journal:
        plan = planned(found, [root], merge_metadata=True, hard_link=hard_link)
        for name in ("rename", "replace", "link", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
        monkeypatch.setattr(os, "open", open_folder)
        monkeypatch.setattr(os, "fsync", sync)
        done = [outcome.done for outcome in apply(plan, journal)]
        assert done.count(True) >= 3
        assert all(outcome.done for outcome in undo(journal))
        monkeypatch.undo()
    assert {"rename", "link", "mkdir"} <= set(steps)
    assert not (root / QUARANTINE_NAME).exists()

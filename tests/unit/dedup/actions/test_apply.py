"""Moving copies away and back over real files: what is said and recorded when something stops it, and what others do.

Other programs and file systems change photos while they are moved.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.plan import Plan
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry, State
from clip_client.dedup.store.sqlite import StoreError
from clip_client.dedup.types import QUARANTINE_NAME, SAME_PIXELS, Metadata
from tests.fixtures.albums import (
    album,
    member,
    opened,
    planned,
    planned_copies,
    report,
    snapshot,
    without_access,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_copies_go_and_come_back_with_their_times(tmp_path: Path, journal: Journal) -> None:
    root = tmp_path / "root"
    groups = album(root)
    before = snapshot(root)
    plan = planned(groups, [root])
    assert [os.path.basename(move.duplicate.path) for move in plan.moves] == ["2.jpg", "3.jpg", "copy.jpg"]
    assert without_access(snapshot(root)) == without_access(before)
    before = snapshot(root)  # the plan has read the RAW files

    assert all(outcome.done for outcome in apply(plan, journal, run="run"))
    left = {name for name in snapshot(root) if QUARANTINE_NAME not in name}
    moved = set(before) - left
    assert moved == {"a/2.jpg", "a/2.cr2", "a/2.jpg.xmp", "a/3.jpg", "copy.jpg"}
    away = root / QUARANTINE_NAME / "run"
    assert {str(path.relative_to(away)) for path in away.rglob("*.*")} == moved

    assert all(outcome.done for outcome in undo(journal))
    after = snapshot(root)
    assert without_access(after) == without_access(before)
    assert {name: after[name] for name in moved} == {name: before[name] for name in moved}
    assert not (root / QUARANTINE_NAME).exists()
    assert undo(journal) == ()


def test_apply_tells_how_far_it_is_and_what_became_of_each_photo(tmp_path: Path, journal: Journal) -> None:
    root = tmp_path / "r"
    plan, photos = planned_copies(root, 4)
    photos[2].unlink()
    told: list[tuple[str, int, int]] = []
    applied = apply(plan, journal, run="run", on_progress=lambda *progress: told.append(progress))
    assert told == [("moving", 1, 3), ("moving", 2, 3), ("moving", 3, 3)]
    assert [(outcome.path, outcome.done, outcome.message) for outcome in applied] == [
        (str(photos[1]), True, f"Moved to {root / QUARANTINE_NAME / 'run' / '2.jpg'}."),
        (str(photos[2]), False, "The system refuses: No such file or directory."),
        (str(photos[3]), True, f"Moved to {root / QUARANTINE_NAME / 'run' / '4.jpg'}."),
    ]


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


# The journal.


def test_one_process_acts_at_a_time(tmp_path: Path, journal: Journal) -> None:
    plan, _ = planned_copies(tmp_path / "r")
    with opened(tmp_path / "journal.sqlite") as other, other.exclusive(), pytest.raises(StoreError, match="another"):
        apply(plan, journal)
    assert journal.entries(IN_QUARANTINE) == []


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


def test_a_journal_that_fails_says_what_has_moved_before(tmp_path: Path) -> None:
    plan, photos = planned_copies(tmp_path / "r", 4)
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
        apply(planned_copies(folder)[0], journal)
    far, near = (journal.set_state(entry, left) for entry in journal.entries(IN_QUARANTINE))
    if is_gone:
        os.unlink(near.files[0].quarantined)
    disk.rename(away)
    apply(Plan(moves=(), skipped=()), journal)
    assert journal.entries((left,)) == [far]
    assert [entry.id for entry in journal.entries((ends,))] == [near.id]
    assert (root / "2.jpg").exists() == (left != State.PURGING)
    assert (root / QUARANTINE_NAME).exists() == (ends == State.MOVED)


@pytest.mark.parametrize("state", [State.PLANNED, State.RESTORING])
@pytest.mark.parametrize(
    "settle", [lambda journal: purge(journal, trash=os.unlink), lambda journal: undo(journal, only=())]
)
def test_what_a_killed_process_left_is_settled_before_anything_else(
    tmp_path: Path, journal: Journal, state: str, settle: Callable[[Journal], object]
) -> None:
    """Something on its way back is wanted, so it comes back and does not go to the trash."""
    root = tmp_path / "root"
    groups = album(root)
    before = snapshot(root)
    apply(planned(groups, [root]), journal)
    for entry in journal.entries(IN_QUARANTINE):
        journal.set_state(entry, state)
    assert settle(journal) == ()
    assert without_access(snapshot(root)) == without_access(before)


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


# What the system refuses.


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
    plan, photos = planned_copies(tmp_path / "r")

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
    plan, (_, copy) = planned_copies(tmp_path / "r")
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


def test_a_folder_that_cannot_be_synced_is_no_failure(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems refuse it for folders, as POSIX lets them; a sick disk is another matter."""
    code = errno.EINVAL

    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    plan = planned(album(tmp_path / "root"), [tmp_path / "root"])
    before = snapshot(tmp_path / "root")
    assert all(outcome.done for outcome in apply(plan, journal))
    assert all(outcome.done for outcome in undo(journal))
    code = errno.EIO
    assert not any(outcome.done for outcome in apply(plan, journal))
    assert without_access(snapshot(tmp_path / "root")) == without_access(before)


@pytest.mark.skipif(not hasattr(os, "pathconf"), reason="this system does not tell how long a path may be")
def test_a_path_too_long_for_the_quarantine_keeps_its_photo(tmp_path: Path, journal: Journal) -> None:
    folder = tmp_path
    while len(str(folder)) < os.pathconf(tmp_path, "PC_PATH_MAX") - 250:
        folder /= "d" * 200
    folder /= "d" * (os.pathconf(tmp_path, "PC_PATH_MAX") - len(str(folder)) - 10)
    folder.mkdir(parents=True)
    kept, copy = write(tmp_path / "1.jpg", b"x"), write(folder / "2.jpg", b"x")
    (outcome,) = apply(planned(report((member(kept), member(copy))), [tmp_path]), journal)
    assert (outcome.done, outcome.message) == (False, "The system refuses: File name too long.")
    assert copy.read_bytes() == b"x"
    assert not (tmp_path / QUARANTINE_NAME).exists()

"""Moving copies away and back over real files: what is said and recorded when something stops or changes it."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clip_client._storage.sqlite import StoreError
from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.plan import Plan
from clip_client.dedup.actions.quarantine import MANIFEST
from clip_client.dedup.store.journal import IN_QUARANTINE, Folder, Journal, JournalEntry, State
from clip_client.dedup.types import QUARANTINE_NAME, SAME_PIXELS
from tests.fixtures.albums import album, files, member, opened, planned, planned_copies, refusing, report, then, write
from tests.fixtures.crashes import full_disk
from tests.fixtures.images.camera_files import packet
from tests.fixtures.images.image_files import jpeg


def test_apply_tells_how_far_it_is_and_what_became_of_each_photo(root: Path, journal: Journal) -> None:
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


# The journal.


def test_one_process_acts_at_a_time(tmp_path: Path, journal: Journal) -> None:
    plan, _ = planned_copies(tmp_path / "r")
    with opened(tmp_path / "history.sqlite") as other, other.exclusive(), pytest.raises(StoreError, match="another"):
        apply(plan, journal)
    assert journal.entries(IN_QUARANTINE) == []


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", refusing(fcntl.flock, OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(StoreError, match="No locks available"), journal.exclusive():
        pass


@pytest.mark.parametrize("room", [0, 5_000, 10_000, 20_000, 30_000])
def test_a_journal_on_a_full_disk_loses_no_photo(tmp_path: Path, room: int) -> None:
    """The limit fails each write of the journal beyond it, at another step for each amount of room."""
    root, store = tmp_path / "root", tmp_path / "history.sqlite"
    plan = planned(album(root), [root])
    before = files(root)
    said = r"history.sqlite cannot be written .*free some space.*clip-client undo"
    with opened(store) as journal:
        full = store.with_name(f"{store.name}-wal").stat().st_size + room
        with full_disk(full), pytest.raises(StoreError, match=said):
            apply(plan, journal, run="run")
        assert sorted(data for data, _ in files(root).values()) == sorted(data for data, _ in before.values())
        undo(journal)
    assert files(root) == before


def test_a_journal_that_fails_says_what_has_moved_before(tmp_path: Path) -> None:
    plan, photos = planned_copies(tmp_path / "r", 4)
    photos[1].unlink()  # not every photo before it has moved

    class FullJournal(Journal):
        def plan(self, entry: JournalEntry, left_behind: Sequence[str] = ()) -> JournalEntry:
            if entry.files[0].original == str(photos[3]):
                raise StoreError("the disk is full")
            return super().plan(entry, left_behind)

    with opened(tmp_path / "history.sqlite", FullJournal) as journal:
        with pytest.raises(StoreError) as raised:
            apply(plan, journal)
        assert str(raised.value) == (
            f"the disk is full; 1 of 3 photos were moved before that; restore with: clip-client undo --store {tmp_path}"
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
    """A disk that is not connected keeps its entries as they are; the other entries still end."""
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


def test_each_change_of_a_folder_is_on_the_disk_before_the_journal_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal must not claim more than the folders show after a power failure."""
    root = tmp_path / "root"
    titled = (
        member(write(root / "d" / "1.jpg", jpeg()), tier=SAME_PIXELS),
        member(write(root / "d" / "2.jpg", jpeg(xmp=packet('dc:title="Gate">'))), tier=SAME_PIXELS),
    )
    found = report(*(group.members for group in album(root).groups), titled)
    unsynced: set[int] = set()
    synced: set[int] = set()
    steps: set[str] = set()

    def change(name: str) -> Callable[..., None]:
        def note(*arguments: Any) -> None:
            steps.add(name)
            if name == "rename":
                (manifest,) = root.glob(f"*/*/{MANIFEST}")
                assert manifest.stat().st_ino in synced, "a photo moves before its line of the manifest is on disk"
            if str(arguments[0]).endswith(".part") and name == "link":
                assert os.stat(arguments[0]).st_ino in synced, "a sidecar gets its name before its content is on disk"
            paths = arguments[name == "link" :]  # a new name changes the folder of that name only
            unsynced.update(os.stat(os.path.dirname(path)).st_ino for path in paths if isinstance(path, str))

        return note

    def sync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        unsynced.discard(os.fstat(descriptor).st_ino)

    class WatchedJournal(Journal):
        def set_state(self, entry: JournalEntry, state: str, folders: Sequence[Folder] = ()) -> JournalEntry:
            assert not unsynced, f"not on the disk before {state}"
            return super().set_state(entry, state, folders)

    with opened(tmp_path / "history.sqlite", WatchedJournal) as journal, monkeypatch.context() as patch:
        plan = planned(found, [root], merge_metadata=True)
        for name in ("rename", "replace", "link", "unlink", "mkdir"):
            patch.setattr(os, name, then(getattr(os, name), change(name)))
        patch.setattr(os, "fsync", then(os.fsync, sync))
        done = [outcome.done for outcome in apply(plan, journal)]
        assert done.count(True) >= 3
        assert all(outcome.done for outcome in undo(journal))
    assert {"rename", "link", "mkdir"} <= steps
    assert not (root / QUARANTINE_NAME).exists()


# What the system refuses.


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        ("rename", OSError(errno.EPERM, "Operation not permitted"), "The system refuses: Operation not permitted."),
        ("rename", OSError("the network share is gone"), "The system refuses: the network share is gone."),
        (
            "rename",
            OSError(errno.EXDEV, "Invalid cross-device link"),
            "Its folder is mounted there, and files cannot be renamed across mounts; name that folder itself.",
        ),
        ("open", OSError(errno.EIO, "Input/output error"), "The file cannot be read: Input/output error."),
    ],
)
def test_what_the_system_refuses_is_told_without_numbers(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, call: str, error: OSError, sentence: str
) -> None:
    plan, (_, copy) = planned_copies(root)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refusing(getattr(os, call), error, copy))
        (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, sentence)
    assert copy.read_bytes() == b"x"
    assert not (root / QUARANTINE_NAME).exists()


def test_a_folder_that_cannot_be_synced_is_no_failure(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems refuse it for folders, as POSIX lets them; a sick disk is another matter."""
    plan = planned(album(root), [root])
    before = files(root)
    monkeypatch.setattr(os, "fsync", refusing(os.fsync, OSError(errno.EINVAL, "Invalid argument")))
    assert all(outcome.done for outcome in apply(plan, journal))
    assert all(outcome.done for outcome in undo(journal))
    monkeypatch.setattr(os, "fsync", refusing(os.fsync, OSError(errno.EIO, "Input/output error")))
    assert not any(outcome.done for outcome in apply(plan, journal))
    assert files(root) == before


def replace_by_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def link_to_the_kept_photo(path: Path) -> None:
    path.unlink()
    path.hardlink_to(path.with_name("1.jpg"))


KEPT_CHANGED = "The kept photo has changed or can no longer be read."
CHANGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("2.jpg", lambda path: path.write_bytes(b"y"), "It has changed since it was compared."),
    ("2.jpg", lambda path: path.write_bytes(b""), "It has changed since it was compared."),
    ("2.jpg", replace_by_a_link, "It is no longer a regular file."),
    ("2.jpg", link_to_the_kept_photo, "It is the kept photo itself under another name."),
    ("2.nef", replace_by_a_link, "It is no longer a regular file."),
    ("2.jpg", os.unlink, "The system refuses: No such file or directory."),
    ("1.jpg", os.unlink, KEPT_CHANGED),
    ("1.jpg", lambda path: path.write_bytes(b""), KEPT_CHANGED),
    ("1.jpg", lambda path: path.write_bytes(b"y"), KEPT_CHANGED),
    *(
        (name, change, f"The {kind} beside it is damaged, or differs from that of the kept photo.")
        for kind, both in (("RAW file", ("1.nef", "2.nef")), ("sidecar", ("1.xmp", "2.xmp")))
        for name in both
        for change in (lambda path: path.write_bytes(b"longer"), lambda path: path.write_bytes(b"war"))
    ),
    ("1.nef", os.unlink, "The RAW file beside it is damaged, or differs from that of the kept photo."),
    ("1.xmp", os.unlink, "The sidecar beside it is damaged, or differs from that of the kept photo."),
]


@pytest.mark.parametrize(("name", "change", "sentence"), CHANGES)
def test_what_changes_after_the_plan_stays_and_says_why(
    root: Path, journal: Journal, name: str, change: Callable[[Path], object], sentence: str
) -> None:
    """The sidecars are empty: a missing sidecar does not equal an empty one."""
    for number in (1, 2):
        write(root / f"{number}.nef", b"raw")
        write(root / f"{number}.xmp", b"")
    plan, _ = planned_copies(root)
    assert len(plan.moves) == 1
    change(root / name)
    before = files(root)
    (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, sentence)
    assert files(root) == before
    assert journal.entries(IN_QUARANTINE) == []


@pytest.mark.parametrize("name", ["2.jpg", "2.nef"])
@pytest.mark.parametrize("data", [b"longer", b"y"])
def test_a_file_that_is_written_to_during_the_move_comes_back(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    for number in (1, 2):
        write(root / f"{number}.nef", b"z")
    plan, _ = planned_copies(root)
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "rename",
            then(os.rename, lambda old, new: Path(new).write_bytes(data) if os.path.basename(old) == name else None),
        )  # fmt: skip
        (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, "It changed during the move, and is back.")
    assert (root / name).read_bytes() == data
    assert sorted(os.listdir(root)) == ["1.jpg", "1.nef", "2.jpg", "2.nef"]
    assert len(journal.entries((State.ABANDONED,))) == 1


def test_what_a_program_saves_in_the_moment_of_the_move_is_not_lost(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Editors write a new file and rename it onto the old name: also between two of our own steps."""
    plan, (_, copy) = planned_copies(tmp_path / "r")
    saves = iter([write(tmp_path / "new", b"edited")])

    def save(*_: object) -> None:
        for new in saves:
            os.replace(new, copy)

    for name in ("unlink", "rename"):
        monkeypatch.setattr(os, name, then(save, getattr(os, name)))
    (outcome,) = apply(plan, journal)
    assert (outcome.done, copy.read_bytes()) == (False, b"edited")


@pytest.mark.parametrize(
    "change",
    [
        os.unlink,
        lambda kept: kept.write_bytes(b"y"),
        # With the time of before.
        lambda kept: write(kept, b"xy"),
        lambda kept: os.replace(write(kept.with_name("new"), b"y"), kept),
    ],
)
def test_a_kept_photo_that_changes_during_the_move_brings_the_copy_back(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    """A search with another store may do this: it keeps the copy, and moves the photo that this search keeps."""
    plan, (kept, copy) = planned_copies(root)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", then(os.rename, lambda *_: change(kept)))
        (outcome,) = apply(plan, journal)
    said = "The kept photo disappeared or changed during the move, so its copy is back."
    assert (outcome.done, outcome.message) == (False, said)
    assert copy.read_bytes() == b"x"
    assert journal.entries(IN_QUARANTINE) == []
    assert not (root / QUARANTINE_NAME).exists()

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
from tests.fixtures.albums import album, copies, member, opened, planned, report, snapshot, without_access, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def of_copies(root: Path, count: int = 2) -> tuple[Plan, list[Path]]:
    """Plan to move all but the first of some copies."""
    found, photos = copies(root, count)
    return planned(found, [root]), photos


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
    plan, photos = of_copies(root, 4)
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
    plan, _ = of_copies(tmp_path / "r")
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
    plan, photos = of_copies(tmp_path / "r", 4)
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
        apply(of_copies(folder)[0], journal)
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


# What has changed since the plan, and what changes during the move.


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
    tmp_path: Path, journal: Journal, name: str, change: Callable[[Path], object], sentence: str
) -> None:
    """The sidecars are empty: one that is gone is no copy of them."""
    root = tmp_path / "r"
    for number in (1, 2):
        write(root / f"{number}.nef", b"raw")
        write(root / f"{number}.xmp", b"")
    plan, _ = of_copies(root)
    assert len(plan.moves) == 1
    change(root / name)
    before = snapshot(root)
    (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, sentence)
    assert without_access(snapshot(root)) == without_access(before)
    assert journal.entries(IN_QUARANTINE) == []


@pytest.mark.parametrize("name", ["2.jpg", "2.nef"])
@pytest.mark.parametrize("data", [b"longer", b"y"])
def test_a_file_that_is_written_to_during_the_move_comes_back(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    root = tmp_path / "r"
    for number in (1, 2):
        write(root / f"{number}.nef", b"z")
    plan, _ = of_copies(root)
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
    assert sorted(os.listdir(root)) == ["1.jpg", "1.nef", "2.jpg", "2.nef"]
    assert len(journal.entries((State.ABANDONED,))) == 1


def test_what_a_program_saves_in_the_moment_of_the_move_is_not_lost(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Editors write a new file and rename it onto the old name: also between two of our own steps."""
    plan, (_, copy) = of_copies(tmp_path / "r")
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
    assert (outcome.done, copy.read_bytes()) == (False, b"edited")


def append_and_set_the_time_back(kept: Path) -> None:
    times = kept.stat()
    kept.write_bytes(b"xy")
    os.utime(kept, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace_by_a_file_of_the_same_size_and_time(kept: Path) -> None:
    times = kept.stat()
    new = write(kept.with_name("new"), b"y")
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(new, kept)


@pytest.mark.parametrize("hard_link", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        os.unlink,
        lambda kept: kept.write_bytes(b"edited"),
        lambda kept: kept.write_bytes(b"y"),
        append_and_set_the_time_back,
        replace_by_a_file_of_the_same_size_and_time,
    ],
)
def test_a_kept_photo_that_changes_during_the_move_brings_the_copy_back(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], hard_link: bool
) -> None:
    """As a search with another store does that keeps the copy, and moves what this one keeps."""
    found, (kept, copy) = copies(tmp_path / "r")
    plan = planned(found, [tmp_path / "r"], hard_link=hard_link)
    rename = os.rename

    def change_and_rename(source: str, target: str) -> None:
        rename(source, target)
        change(kept)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", change_and_rename)
        (outcome,) = apply(plan, journal)
    said = "The kept photo disappeared or changed during the move, so this one is back."
    assert (outcome.done, outcome.message) == (False, said)
    assert copy.read_bytes() == b"x"
    assert journal.entries(IN_QUARANTINE) == []
    assert not (tmp_path / "r" / QUARANTINE_NAME).exists()


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
    plan, photos = of_copies(tmp_path / "r")

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
    plan, (_, copy) = of_copies(tmp_path / "r")
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


# The way back.


def test_what_a_person_took_out_of_the_quarantine_is_forgotten(tmp_path: Path, journal: Journal) -> None:
    plan, (_, copy) = of_copies(tmp_path / "r")
    apply(plan, journal)
    (entry,) = journal.entries(IN_QUARANTINE)
    os.rename(entry.files[0].quarantined, tmp_path / "taken.jpg")
    (outcome,) = undo(journal)
    assert (outcome.path, outcome.done) == (str(copy), False)
    assert outcome.message == "It is neither in the quarantine nor at its old path."
    assert journal.entries(IN_QUARANTINE) == []
    assert not (tmp_path / "r" / QUARANTINE_NAME).exists()


def test_a_disk_that_goes_away_during_undo_is_waited_for(tmp_path: Path) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"

    class UnpluggedJournal(Journal):
        def set_state(self, entry: JournalEntry, state: str) -> JournalEntry:
            if state == State.RESTORING:
                disk.rename(away)
            return super().set_state(entry, state)

    plan, (_, copy) = of_copies(disk)
    with closing(UnpluggedJournal(tmp_path / "journal.sqlite")) as journal:
        apply(plan, journal)
        (outcome,) = undo(journal)
        assert outcome.message == f"{disk} is missing or empty; connect its disk and try again."
        assert len(journal.entries((State.RESTORING,))) == 1
        away.rename(disk)
        assert undo(journal) == ()  # the next process to move files brings it back
    assert copy.exists()


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
    for outcomes in (undo(journal), purge(journal, trash=os.unlink)):
        assert ["looks like another disk" in outcome.message for outcome in outcomes] == [True] * 3
    (disk / "something.txt").unlink()
    disk.rmdir()
    away.rename(disk)
    assert [outcome.done for outcome in undo(journal)] == [True] * 3
    assert without_access(snapshot(disk)) == without_access(before)


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
        for outcomes in (undo(journal), purge(journal, trash=os.unlink)):
            assert {(one.done, one.message) for one in outcomes} == {(False, "The system refuses: Permission denied.")}
    assert [outcome.done for outcome in undo(journal)] == [True] * 3
    assert without_access(snapshot(root)) == without_access(before)


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

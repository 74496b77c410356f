"""The quarantine: why a file cannot go there, and the single steps there and back, which replace nothing."""

import errno
import hashlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.quarantine import restore, sync_folder, why_out_of_reach
from clip_client.dedup.judge.movable import CannotMove, check_can_move, quarantine_folder, roots_of
from clip_client.dedup.store.journal import IN_QUARANTINE, LONGEST_RUN, Journal, JournalEntry, MovedFile
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import carry_out, member, planned, planned_copies, refusing, report, without_inodes, write

ACROSS = "and files cannot be renamed across file systems."
TAKEN = "Another file has taken its name."


def moved_file(original: Path | str, away: Path | str, time_ns: int = 10**18) -> MovedFile:
    """Return a file of one byte, x, as the journal has it."""
    sha256 = hashlib.sha256(b"x").hexdigest()
    return MovedFile(str(original), str(away), sha256, 1, time_ns - 10**17, time_ns)


def entry(file: MovedFile, kept: Path) -> JournalEntry:
    return JournalEntry(run="run", kept=str(kept), files=(file,))


def refusal(act: Callable[..., object], *arguments: Any, **named: Any) -> str:
    with pytest.raises(CannotMove) as raised:
        act(*arguments, **named)
    return str(raised.value)


def named(*folders: Path) -> dict[str, str]:
    """Return the folders as those that a person named."""
    return {str(folder): str(folder) for folder in folders}


def mount(monkeypatch: pytest.MonkeyPatch, *points: Path) -> None:
    """Give what is at or below each of ``points`` another device number, as if it were mounted there."""

    def patched(call: Callable[..., os.stat_result]) -> Callable[..., Any]:
        def with_device(path: Any, *arguments: Any, **named: Any) -> Any:
            status = call(path, *arguments, **named)
            found = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
            whole = os.path.join(os.getcwd(), os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ""
            below = sum(whole == str(point) or whole.startswith(f"{point}{os.sep}") for point in points)
            return SimpleNamespace(**{**found, "st_dev": found["st_dev"] + below})

        return with_device

    look = os.statvfs

    def with_file_system(path: Any) -> Any:
        return SimpleNamespace(f_flag=look(path).f_flag, f_fsid=os.stat(path).st_dev)

    monkeypatch.setattr(os, "statvfs", with_file_system)
    monkeypatch.setattr(os, "lstat", patched(os.lstat))
    monkeypatch.setattr(os, "stat", patched(os.stat))


# Whether a file can move, and where to.


def test_what_cannot_move_is_told_in_one_sentence(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    photo = write(root / "deep" / "1.jpg", b"x")
    for path in (outside / "1.jpg", outside / "sub" / "2.jpg", root / "2.jpg"):
        write(path, b"x")
    inside_library = write(root / "My.photoslibrary" / "originals" / "1.jpg", b"x")
    (root / "link.jpg").symlink_to(photo)
    (root / "out").symlink_to(outside)
    (root / "far").symlink_to(outside / "sub")
    sentences = {
        root / "far" / ".." / "2.jpg": "It is not there: it has gone, or its disk is not connected.",
        root / "link.jpg": "It is a link; only the file that it points to could be moved.",
        inside_library: "It is inside an Apple Photos library, which needs all its files.",
        outside / "1.jpg": "It is in none of the folders that you named.",
        root / "out" / "1.jpg": "It was reached through a link that leads out of the folders that you named.",
        root / "gone.jpg": "It is not there: it has gone, or its disk is not connected.",
    }
    assert {path: refusal(quarantine_folder, str(path), named(root)) for path in sentences} == sentences
    write(outside / "2.jpg", b"another file")
    assert refusal(quarantine_folder, str(root / "far" / ".." / "2.jpg"), named(root)) == (
        "Its path has '..' after a link, so it names another file than it seems to."
    )
    way = root / QUARANTINE_NAME
    for make in (partial(way.symlink_to, outside), way.touch):
        make()
        assert refusal(quarantine_folder, str(photo), named(root)) == f"{way} is in the way: it is not a folder."
        way.unlink()
    for roots in (named(root), named(root, tmp_path)):  # the innermost
        assert quarantine_folder(str(photo), roots) == str(root)
    beside = {
        root / "link.jpg": "It is a link or not a regular file.",
        root: "It is a link or not a regular file.",
        root / "gone.xmp": "It cannot be read: No such file or directory.",
    }
    assert {path: refusal(check_can_move, str(path), str(root), "It") for path in beside} == beside


def test_paths_may_be_relative_and_the_root_of_all_files_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = write(tmp_path / "1.jpg", b"x")
    monkeypatch.chdir(tmp_path)
    check_can_move("1.jpg", str(tmp_path), "It")
    monkeypatch.setattr(os, "access", lambda path, mode: True)  # only root may write there
    assert quarantine_folder(str(photo), {os.sep: os.sep}) in (os.sep, *map(str, photo.parents))


def test_nothing_moves_to_or_from_a_mount_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo, other = write(tmp_path / "a" / "1.jpg", b"x"), write(tmp_path / "b" / "2.jpg", b"x")
    away = tmp_path / "b" / QUARANTINE_NAME
    away.mkdir()
    mount(monkeypatch, photo, away)
    assert refusal(quarantine_folder, str(photo), named(tmp_path)) == f"The file is a mount point, {ACROSS}"
    refused = refusal(quarantine_folder, str(other), named(tmp_path / "b"))
    assert refused == f"{away} is on another file system, {ACROSS}"
    assert refusal(check_can_move, str(photo), str(tmp_path), "The sidecar beside it") == (
        f"The sidecar beside it is a mount point, {ACROSS}"
    )


@pytest.mark.parametrize("denied", [os.W_OK, os.X_OK])
@pytest.mark.parametrize("where", ["deep", ".", QUARANTINE_NAME])
def test_a_folder_that_you_may_not_change_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: int, where: str
) -> None:
    """Root may do anything, so the permission bits themselves would say nothing here."""
    photo = write(tmp_path / "deep" / "1.jpg", b"x")
    (tmp_path / QUARANTINE_NAME).mkdir()
    closed, access = str(tmp_path / where), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and not (path == closed and mode & denied))
    reason = f"Its folder is read-only for you: {closed}; make it writable."
    assert refusal(quarantine_folder, str(photo), named(tmp_path)) == reason


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="this system does not tell how a file system is mounted")
def test_a_file_system_that_is_mounted_read_only_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo, roots = str(write(tmp_path / "1.jpg", b"x")), named(tmp_path)
    flags = os.ST_NOSUID | os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    reason = f"Its file system is mounted read-only: {tmp_path}; make it writable."
    assert refusal(quarantine_folder, photo, roots) == reason
    flags = os.ST_NOSUID
    assert quarantine_folder(photo, roots) == str(tmp_path)
    monkeypatch.delattr(os, "statvfs")  # as on Windows
    assert quarantine_folder(photo, roots) == str(tmp_path)


@pytest.mark.parametrize(
    ("given", "roots"),
    [
        ("a/1.jpg a/b/2.jpg a/c/3.jpg", "a"),
        ("a/b/1.jpg a/c/2.jpg", "a"),
        ("a a/b/1.jpg", "a"),
        ("d a/b/1.jpg a/c/2.jpg", "a d"),
        ("a/b/1.jpg", "a/b"),
        ("a/1.jpg link/2.jpg", ". link"),
    ],
)
def test_a_list_of_files_makes_one_quarantine(tmp_path: Path, given: str, roots: str) -> None:
    """The files of a list share one quarantine, as with --files-from; a folder in the list has its own."""
    for name in ("a/1.jpg", "a/b/1.jpg", "a/b/2.jpg", "a/c/2.jpg", "a/c/3.jpg", "d/1.jpg", "elsewhere/2.jpg"):
        write(tmp_path / "photos" / name, b"x")
    (tmp_path / "photos" / "link").symlink_to(tmp_path / "photos" / "elsewhere")
    paths = [tmp_path / "photos" / name for name in given.split()]
    assert set(roots_of(paths).values()) == {str(tmp_path / "photos" / root) for root in roots.split()}


def test_a_quarantine_for_a_list_of_files_is_where_one_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / name, b"x") for name in ("a/b/c/1.jpg", "a/b/2.jpg", "d/3.jpg")]
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path) and access(path, mode))
    assert set(roots_of(paths).values()) == {str(tmp_path / "a"), str(tmp_path / "d")}


# The steps.

NO_HARD_LINKS = [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL, errno.EXDEV]


def test_apply_replaces_nothing_in_the_quarantine(tmp_path: Path, journal: Journal) -> None:
    plan, (_, copy) = planned_copies(tmp_path)
    taken = write(tmp_path / QUARANTINE_NAME / "run" / "2.jpg", b"of before")
    assert [outcome.done for outcome in apply(plan, journal, run="run")] == [False]
    assert (taken.read_bytes(), copy.read_bytes()) == (b"of before", b"x")


@pytest.mark.parametrize("code", [None, *NO_HARD_LINKS])
@pytest.mark.parametrize("is_link", [False, True])
def test_undo_replaces_nothing_that_comes_in_its_last_moment(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, is_link: bool, code: int | None
) -> None:
    """A file of that name, or a link that leads nowhere, appears after undo has looked, and before it renames."""
    plan, (_, copy) = planned_copies(tmp_path)
    apply(plan, journal)
    link = os.link

    def link_late(source: str, target: str) -> None:
        if is_link:
            copy.symlink_to("nowhere")
        else:
            write(copy, b"new")
        if code is not None:
            raise OSError(code, os.strerror(code))
        link(source, target)

    monkeypatch.setattr(os, "link", link_late)
    (outcome,) = undo(journal)
    assert outcome.message == TAKEN
    assert copy.is_symlink() if is_link else copy.read_bytes() == b"new"
    (entry,) = journal.entries(IN_QUARANTINE)
    assert Path(entry.files[0].quarantined).read_bytes() == b"x"


def test_windows_needs_no_sync_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing(os.open, PermissionError(errno.EACCES, "Permission denied")))
        with pytest.raises(PermissionError):
            sync_folder(str(tmp_path))
        patch.delattr(os, "O_DIRECTORY")
        sync_folder(str(tmp_path))


@pytest.mark.parametrize("how", ["a link", "a link to its folder", "other bytes", "without inodes", "the same bytes"])
@pytest.mark.parametrize("hard_link", [False, True])
def test_what_has_taken_the_old_place_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, hard_link: bool
) -> None:
    """Equal bytes may be a hard link to the moved file; by a link, the only name of the file would be removed."""
    original, away = tmp_path / "album" / "1.jpg", tmp_path / QUARANTINE_NAME / "run" / "album" / "1.jpg"
    write(away, b"x")
    if how == "a link to its folder":
        original.parent.symlink_to(away.parent)
    elif how == "a link":
        original.parent.mkdir()
        original.symlink_to(away)
    else:
        write(original, b"x" if how == "the same bytes" else b"y")
    if how == "without inodes":  # as on some network drives
        without_inodes(monkeypatch)
    before, sentence = original.read_bytes(), "A link has taken its name." if "link" in how else TAKEN
    replace_equal = hard_link and how != "the same bytes"
    assert refusal(restore, moved_file(original, away), replace_equal=replace_equal) == sentence
    assert (original.read_bytes(), away.read_bytes()) == (before, b"x")


@pytest.mark.parametrize("changed", [False, True])
def test_a_file_that_a_program_wrote_to_meanwhile_keeps_its_new_times(tmp_path: Path, changed: bool) -> None:
    original, away = tmp_path / "1.jpg", write(tmp_path / QUARANTINE_NAME / "run" / "1.jpg", b"x", 10**18)
    file = moved_file(original, away, 10**18 + changed)
    os.utime(away, ns=(5 * 10**17, 10**18))
    restore(file)
    status = original.stat()
    assert (status.st_atime_ns, status.st_mtime_ns) == (5 * 10**17 if changed else file.atime_ns, 10**18)


# Disks that are not connected.


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        (None, "is missing or empty; connect its disk and try again"),
        ([], "is missing or empty; connect its disk and try again"),
        (["other.txt"], "looks like another disk; connect the right one and try again"),
        (["album/"], "looks like another disk; connect the right one and try again"),
        (["kept.jpg"], "looks like another disk; connect the right one and try again"),
        (["album/", "kept.jpg"], ""),  # a person has emptied the quarantine
        (["album/1.jpg"], ""),
        ([f"{QUARANTINE_NAME}/run/"], ""),
        ([f"{QUARANTINE_NAME}/"], "looks like another disk; connect the right one and try again"),
    ],
)
def test_a_disk_is_recognised_by_what_lies_around_the_file(
    tmp_path: Path, left: list[str] | None, sentence: str
) -> None:
    disk = tmp_path / "disk"
    if left is not None:
        disk.mkdir()
    for name in left or ():
        if name.endswith("/"):
            (disk / name).mkdir(parents=True)
        else:
            write(disk / name, b"x")
    file = moved_file(disk / "album" / "1.jpg", disk / QUARANTINE_NAME / "run" / "album" / "1.jpg")
    renamed = ", or if the folder was renamed: clip-client undo --from FOLDER, its new name."
    expected = f"{disk} {sentence}{renamed}" if sentence else ""
    assert why_out_of_reach(entry(file, disk / "kept.jpg")) == expected
    if sentence:  # also if the kept photo is there, on another disk: a mount point may have files of its own
        assert why_out_of_reach(entry(file, write(tmp_path / "kept.jpg", b"x"))) == expected


def test_the_disk_of_the_root_folder_is_always_there(tmp_path: Path) -> None:
    photo = write(tmp_path / "1.jpg", b"x")
    file = moved_file(photo, f"{os.sep}{QUARANTINE_NAME}{os.sep}run{os.sep}1.jpg")
    assert why_out_of_reach(entry(file, photo)) == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="paths of at most 4,095 bytes are Linux's")
def test_a_path_in_the_quarantine_needs_room(root: Path) -> None:
    longest, folder = 4095 - len(f"/{QUARANTINE_NAME}/{LONGEST_RUN}"), root
    while longest - len(str(folder)) > 300:
        folder = folder / ("d" * 100)
    kept, fits = write(root / "1.jpg", b"x"), write(folder / "2".ljust(100) / "2.jpg", b"x")
    fits = fits.rename(fits.with_name("2" * (longest - len(str(fits.parent)) - 1)))
    too_long = write(fits.with_name(f"{fits.name}3"), b"x")
    plan = planned(report(tuple(map(member, (kept, fits, too_long)))), [root])
    refused = "It would have a path in the quarantine that is too long for the system."
    assert [(skip.photo.path, skip.reason) for skip in plan.skipped] == [(str(too_long), refused)]
    assert [one.done for one in carry_out(plan, root.with_name("history.sqlite"))] == [True]

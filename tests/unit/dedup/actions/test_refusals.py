"""Why a file cannot move: each reason is one sentence, and is found before anything is touched."""

from __future__ import annotations

import errno
import os
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.dedup.actions.apply import QUARANTINE
from clip_client.dedup.actions.quarantine import (
    CannotMove,
    check_can_move,
    check_hard_link,
    quarantine,
    quarantine_folder,
    quarantined_path,
    restore,
    sync_folder,
    why_out_of_reach,
)
from clip_client.dedup.files.reading import sha256_of
from clip_client.dedup.store.journal import JournalEntry, MovedFile, State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import without_inodes, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ACROSS = "and files cannot be renamed across file systems."


def moved_file(original: Path | str, away: Path | str, time_ns: int = 10**18) -> MovedFile:
    return MovedFile(
        original=str(original),
        quarantined=str(away),
        sha256=sha256_of(str(away)),
        size_bytes=1,
        atime_ns=time_ns - 10**17,
        mtime_ns=time_ns,
    )


def entry(file: MovedFile, kept: Path) -> JournalEntry:
    return JournalEntry(
        id=1,
        run="run",
        at_ns=0,
        method=QUARANTINE,
        state=State.MOVED,
        kept=str(kept),
        kept_sha256="",
        tier="",
        proof=0,
        is_chosen=False,
        files=(file,),
        sidecars=(),
    )


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

    monkeypatch.setattr(os, "lstat", patched(os.lstat))
    monkeypatch.setattr(os, "stat", patched(os.stat))


def refusal(path: str, *roots: Path) -> str:
    with pytest.raises(CannotMove) as raised:
        quarantine_folder(path, {str(root) for root in roots})
    return str(raised.value)


def test_what_cannot_move_is_told_in_one_sentence(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    photo = write(root / "deep" / "1.jpg", b"x")
    write(outside / "1.jpg", b"x")
    write(outside / "sub" / "2.jpg", b"x")
    write(root / "2.jpg", b"y")
    inside_library = write(root / "My.photoslibrary" / "originals" / "1.jpg", b"x")
    (root / "link.jpg").symlink_to(photo)
    (root / "out").symlink_to(outside)
    (root / "far").symlink_to(outside / "sub")
    sentences = {
        str(root / "far" / ".." / "2.jpg"): "It cannot be read: No such file or directory.",
        str(root / "link.jpg"): "It is a link; only the file that it points to could be moved.",
        str(inside_library): "It is inside an Apple Photos library, which needs all its files.",
        str(outside / "1.jpg"): "It is in none of the folders that you named.",
        str(root / "out" / "1.jpg"): "It was reached through a link that leads out of the folders that you named.",
        str(root / "gone.jpg"): "It cannot be read: No such file or directory.",
    }
    assert {path: refusal(path, root) for path in sentences} == sentences
    write(outside / "2.jpg", b"another file")
    assert refusal(str(root / "far" / ".." / "2.jpg"), root) == (
        "Its path has '..' after a link, so it names another file than it seems to."
    )
    assert quarantine_folder(str(photo), {str(root)}) == str(root)
    assert quarantine_folder(str(photo), {str(root), str(tmp_path)}) == str(root)  # the innermost


def test_the_root_of_all_files_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = write(tmp_path / "1.jpg", b"x")
    monkeypatch.setattr(os, "access", lambda path, mode: True)  # only root may write there
    assert quarantine_folder(str(photo), {os.sep}) in (os.sep, *map(str, photo.parents))


def test_files_go_to_the_top_of_their_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    paths = [
        write(root / "1.jpg", b"x"),
        write(root / "disk" / "2.jpg", b"x"),
        write(root / "disk" / "a" / "b" / "3.jpg", b"x"),
        write(root / "disk" / "card" / "c" / "4.jpg", b"x"),
    ]
    mount(monkeypatch, root / "disk", root / "disk" / "card")
    found = [quarantine_folder(str(path), {str(root)}) for path in paths]
    assert found == [
        str(root),
        str(root / "disk"),
        str(root / "disk"),
        str(root / "disk" / "card"),
    ]
    away = quarantined_path(found[2], "run", str(paths[2]))
    assert away == str(root / "disk" / QUARANTINE_NAME / "run" / "a" / "b" / "3.jpg")


def test_nothing_moves_to_or_from_a_mount_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo, other = write(tmp_path / "a" / "1.jpg", b"x"), write(tmp_path / "b" / "2.jpg", b"x")
    away = tmp_path / "b" / QUARANTINE_NAME
    away.mkdir()
    check_hard_link(str(photo), str(other))
    mount(monkeypatch, photo, away)
    assert refusal(str(photo), tmp_path) == f"The file is a mount point, {ACROSS}"
    assert refusal(str(other), tmp_path / "b") == f"{away} is on another file system, {ACROSS}"
    with pytest.raises(CannotMove) as raised:
        check_can_move(str(photo), "The sidecar beside it")
    assert str(raised.value) == f"The sidecar beside it is a mount point, {ACROSS}"
    with pytest.raises(CannotMove) as raised:
        check_hard_link(str(photo), str(other))
    assert str(raised.value) == (f"The kept photo is on another file system, which a hard link cannot cross: {photo}.")


def test_a_companion_must_be_a_file_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "link.xmp"
    link.symlink_to(write(tmp_path / "1.xmp", b"x"))
    sentences = {
        link: "It is a link or not a regular file.",
        tmp_path: "It is a link or not a regular file.",
        tmp_path / "gone.xmp": "It cannot be read: No such file or directory.",
    }
    for path, sentence in sentences.items():
        with pytest.raises(CannotMove) as raised:
            check_can_move(str(path), "It")
        assert str(raised.value) == sentence
    monkeypatch.chdir(tmp_path)
    check_can_move("1.xmp", "It")


@pytest.mark.parametrize("denied", [os.W_OK, os.X_OK])
@pytest.mark.parametrize("where", ["folder", "top", "quarantine"])
def test_a_folder_that_you_may_not_change_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: int, where: str
) -> None:
    """Root may do anything, so the permission bits themselves would say nothing here."""
    photo = write(tmp_path / "deep" / "1.jpg", b"x")
    quarantined = tmp_path / QUARANTINE_NAME
    quarantined.mkdir()
    closed = {"folder": photo.parent, "top": tmp_path, "quarantine": quarantined}[where]
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: access(path, mode) and not (path == str(closed) and mode & denied)
    )
    assert refusal(str(photo), tmp_path) == f"Its folder is read-only for you: {closed}."


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="this system does not tell how a file system is mounted")
def test_a_file_system_that_is_mounted_read_only_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = write(tmp_path / "1.jpg", b"x")
    flags = os.ST_NOSUID | os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    assert refusal(str(photo), tmp_path) == f"Its file system is mounted read-only: {tmp_path}."
    flags = os.ST_NOSUID
    assert quarantine_folder(str(photo), {str(tmp_path)}) == str(tmp_path)
    monkeypatch.delattr(os, "statvfs")  # as on Windows
    assert quarantine_folder(str(photo), {str(tmp_path)}) == str(tmp_path)


def test_a_hard_link_that_cannot_be_made_is_told_before_the_move(tmp_path: Path) -> None:
    kept, copy = write(tmp_path / "1.jpg", b"x"), write(tmp_path / "2.jpg", b"x")
    for pair in ((kept, tmp_path / "gone"), (tmp_path / "gone", copy)):
        with pytest.raises(CannotMove) as raised:
            check_hard_link(*map(str, pair))
        assert str(raised.value) == "A hard link is not possible: No such file or directory."


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_only_the_quarantine_itself_is_closed_to_others(tmp_path: Path) -> None:
    photo = write(tmp_path / "1.jpg", b"x")
    away = tmp_path / QUARANTINE_NAME / "run" / "deep" / "1.jpg"
    umask = os.umask(0o022)
    try:
        quarantine(moved_file(photo, away))
    finally:
        os.umask(umask)
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in list(away.parents)[:3]]
    assert modes == [0o755, 0o755, 0o700]


def test_windows_needs_no_sync_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(PermissionError):
            sync_folder(str(tmp_path))
        patch.delattr(os, "O_DIRECTORY")
        sync_folder(str(tmp_path))


def test_without_inodes_another_file_is_not_taken_for_the_one_that_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such are some network drives of Windows. Of two names of one file, the one in the quarantine is removed."""
    original, away = write(tmp_path / "1.jpg", b"another"), write(tmp_path / "away", b"x")
    file = moved_file(original, away)
    without_inodes(monkeypatch)
    with pytest.raises(CannotMove, match="Another file has taken its name"):
        restore(file)
    assert (original.read_bytes(), away.read_bytes()) == (b"another", b"x")


def test_what_is_in_neither_place_cannot_come_back(tmp_path: Path) -> None:
    with pytest.raises(CannotMove) as raised:
        restore(moved_file(tmp_path / "1.jpg", tmp_path / "away"))
    assert str(raised.value) == "It is neither in the quarantine nor at its old path."
    write(tmp_path / "1.jpg", b"x")  # the same bytes: only a hard link of ours may be replaced
    write(tmp_path / "away", b"x")
    with pytest.raises(CannotMove) as raised:
        restore(moved_file(tmp_path / "1.jpg", tmp_path / "away"))
    assert str(raised.value) == "Another file has taken its name."


@pytest.mark.parametrize("state", ["away", "both names", "back"])
@pytest.mark.parametrize("changed", [False, True])
def test_a_file_comes_back_from_each_step_with_its_old_times(tmp_path: Path, state: str, changed: bool) -> None:
    """As a killed process leaves it. A file that a program wrote to meanwhile keeps its new times."""
    original, away = tmp_path / "1.jpg", write(tmp_path / QUARANTINE_NAME / "run" / "1.jpg", b"x", 10**18)
    file = moved_file(original, away, 10**18 + changed)
    os.utime(away, ns=(5 * 10**17, 10**18))
    if state == "both names":
        original.hardlink_to(away)
    elif state == "back":
        away.rename(original)
    restore(file)
    assert not away.exists()
    status = original.stat()
    assert (status.st_atime_ns, status.st_mtime_ns) == (5 * 10**17 if changed else file.atime_ns, 10**18)


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        ([], "is missing or empty; connect its disk and try again."),
        (["other.txt"], "looks like another disk; connect the right one and try again."),
        (["album/"], "looks like another disk; connect the right one and try again."),
        (["kept.jpg"], "looks like another disk; connect the right one and try again."),
        (["album/", "kept.jpg"], ""),  # a person has emptied the quarantine
        (["album/1.jpg"], ""),
        ([f"{QUARANTINE_NAME}/"], ""),
    ],
)
@pytest.mark.parametrize("is_mounted", [False, True])
def test_a_disk_is_recognised_by_what_lies_around_the_file(
    tmp_path: Path, left: list[str], sentence: str, is_mounted: bool
) -> None:
    disk = tmp_path / "disk"
    if left or is_mounted:
        disk.mkdir()
    for name in left:
        if name.endswith("/"):
            (disk / name).mkdir()
        else:
            write(disk / name, b"x")
    file = moved_file(disk / "album" / "1.jpg", disk / QUARANTINE_NAME / "run" / "album" / "1.jpg")
    assert why_out_of_reach(entry(file, disk / "kept.jpg")) == (f"{disk} {sentence}" if sentence else "")


def test_the_disk_of_the_root_folder_is_always_there(tmp_path: Path) -> None:
    photo = write(tmp_path / "1.jpg", b"x")
    file = moved_file(photo, f"{os.sep}{QUARANTINE_NAME}{os.sep}run{os.sep}1.jpg")
    assert why_out_of_reach(entry(file, photo)) == ""

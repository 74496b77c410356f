"""The single steps into the quarantine and back: they replace nothing, and need no hard links."""

from __future__ import annotations

import builtins
import errno
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.actions.quarantine import (
    CannotMove,
    check_hard_link,
    rename_new,
    restore,
)
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, MovedFile, State
from clip_client.dedup.types import QUARANTINE_NAME, SAME_PIXELS
from tests.fixtures.albums import album, member, planned, report, snapshot, without_access, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from clip_client.dedup.actions.plan import Plan
    from tests.fixtures.albums import Snapshot


def two_copies(root: Path) -> Plan:
    return planned(report((member(write(root / "1.jpg", b"x")), member(write(root / "2.jpg", b"x")))), [root])


def refuse_links(code: int) -> Callable[[str, str], None]:
    def refuse(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code), source, None, target)

    return refuse


NO_HARD_LINKS = [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL]


@pytest.mark.parametrize("code", [None, *NO_HARD_LINKS])
def test_a_rename_never_replaces_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    """With hard links and without them (exFAT, SMB)."""
    if code is not None:
        monkeypatch.setattr(os, "link", refuse_links(code))
    source, target = write(tmp_path / "a.jpg", b"moved"), write(tmp_path / "b.jpg", b"in the way")
    with pytest.raises(FileExistsError):
        rename_new(str(source), str(target))
    assert (source.read_bytes(), target.read_bytes()) == (b"moved", b"in the way")
    target.unlink()
    target.symlink_to("nowhere")  # a link that leads nowhere has the name, too
    with pytest.raises(FileExistsError):
        rename_new(str(source), str(target))
    target.unlink()
    rename_new(str(source), str(target))
    assert (source.exists(), target.read_bytes(), target.stat().st_nlink) == (False, b"moved", 1)


def test_a_rename_on_a_sick_disk_fails_and_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse_links(errno.EIO))
    source = write(tmp_path / "a.jpg", b"x")
    with pytest.raises(OSError, match="Input/output error"):
        rename_new(str(source), str(tmp_path / "b.jpg"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]


def moved_file(original: Path, quarantined: Path) -> MovedFile:
    return MovedFile(
        original=str(original), quarantined=str(quarantined), sha256="", size_bytes=1, atime_ns=0, mtime_ns=0
    )


def test_apply_replaces_nothing_in_the_quarantine(tmp_path: Path, journal: Journal) -> None:
    plan = two_copies(tmp_path / "r")
    taken = write(tmp_path / "r" / QUARANTINE_NAME / "run" / "2.jpg", b"of before")
    assert [outcome.done for outcome in apply(plan, journal, run="run")] == [False]
    assert taken.read_bytes() == b"of before"
    assert (tmp_path / "r" / "2.jpg").read_bytes() == b"x"


@pytest.mark.parametrize("code", [None, errno.EPERM])
def test_undo_replaces_nothing_that_comes_in_its_last_moment(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    """A file of that name appears after undo has looked, and before it renames."""
    copy = tmp_path / "r" / "2.jpg"
    apply(two_copies(tmp_path / "r"), journal)
    link = os.link

    def link_late(source: str, target: str) -> None:
        write(copy, b"new")
        if code is not None:
            raise OSError(code, os.strerror(code))
        link(source, target)

    monkeypatch.setattr(os, "link", link_late)
    (outcome,) = undo(journal)
    assert outcome.message == "Another file has taken its name."
    assert copy.read_bytes() == b"new"
    (entry,) = journal.entries(IN_QUARANTINE)
    assert Path(entry.files[0].quarantined).read_bytes() == b"x"


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


def test_other_bytes_at_the_old_place_are_not_replaced_even_after_a_hard_link(tmp_path: Path) -> None:
    original, away = write(tmp_path / "1.jpg", b"edited"), write(tmp_path / QUARANTINE_NAME / "r" / "1.jpg", b"x")
    file = moved_file(original, away)
    with pytest.raises(CannotMove, match="taken its name"):
        restore(file, replace_equal=True)
    assert (original.read_bytes(), away.read_bytes()) == (b"edited", b"x")


def test_different_bytes_never_become_a_hard_link(tmp_path: Path, journal: Journal) -> None:
    kept, copy = write(tmp_path / "1.jpg", b"x"), write(tmp_path / "2.jpg", b"y")
    found = report((member(kept), member(copy, tier=SAME_PIXELS)))
    plan = planned(found, [tmp_path], hard_link=True)
    assert plan.moves == ()
    assert plan.skipped[0].reason == "Only copies of the same bytes can become hard links."
    (outcome,) = apply(replace(planned(found, [tmp_path]), hard_link=True), journal)
    assert (outcome.done, outcome.message) == (False, "Only copies of the same bytes can become hard links.")
    assert (kept.read_bytes(), copy.read_bytes()) == (b"x", b"y")
    assert not (tmp_path / QUARANTINE_NAME).exists()


@pytest.mark.parametrize("system", ["exfat", "msdos", "vfat", "ext4"])
def test_a_file_system_without_hard_links_is_refused_before_the_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    plan = two_copies(tmp_path)
    mount = b"36 35 %d:%d / / rw - %s /dev/sda1 rw\n"
    device = os.stat(tmp_path).st_dev
    listed = mount % (4095, 1, b"ext4") + mount % (os.major(device), os.minor(device), system.encode())
    monkeypatch.setattr(builtins, "open", lambda *_: io.BytesIO(listed))
    if system == "ext4":
        check_hard_link(plan.moves[0].kept.path, plan.moves[0].duplicate.path)
    else:
        with pytest.raises(CannotMove, match=r"Its file system does not support hard links."):
            check_hard_link(plan.moves[0].kept.path, plan.moves[0].duplicate.path)


def killed_while_it_moved(root: Path, journal: Journal, state: str) -> Snapshot:
    """Move copies of an album, and leave the journal in ``state``; return what was in ``root`` before."""
    groups = album(root)
    before = snapshot(root)
    apply(planned(groups, [root]), journal)
    for entry in journal.entries(IN_QUARANTINE):
        journal.set_state(entry, state)
    return before


@pytest.mark.parametrize("state", [State.PLANNED, State.RESTORING])
def test_purge_settles_what_a_killed_process_left_before_it_purges(
    tmp_path: Path, journal: Journal, state: str
) -> None:
    """Something on its way back is wanted, so it comes back and does not go to the trash."""
    root = tmp_path / "root"
    before = killed_while_it_moved(root, journal, state)
    assert purge(journal, trash=os.unlink) == ()
    assert without_access(snapshot(root)) == without_access(before)


def test_undo_of_one_run_settles_what_others_left(tmp_path: Path, journal: Journal) -> None:
    root = tmp_path / "root"
    before = killed_while_it_moved(root, journal, State.PLANNED)
    assert undo(journal, only=()) == ()
    assert without_access(snapshot(root)) == without_access(before)


def test_another_name_of_the_kept_photo_itself_is_not_moved(tmp_path: Path, journal: Journal) -> None:
    """Another program has made a hard link of the copy since the plan."""
    kept, copy = tmp_path / "r" / "1.jpg", tmp_path / "r" / "2.jpg"
    plan = two_copies(tmp_path / "r")
    copy.unlink()
    copy.hardlink_to(kept)
    (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, "It is the kept photo itself under another name.")
    assert copy.samefile(kept)


def rewrite_in_place(kept: Path) -> None:
    kept.write_bytes(b"edited")


def rewrite_with_the_same_size(kept: Path) -> None:
    kept.write_bytes(b"y")


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
        Path.unlink,
        rewrite_in_place,
        rewrite_with_the_same_size,
        append_and_set_the_time_back,
        replace_by_a_file_of_the_same_size_and_time,
    ],
)
def test_a_kept_photo_that_changes_during_the_move_brings_the_copy_back(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], hard_link: bool
) -> None:
    kept, copy = tmp_path / "r" / "1.jpg", tmp_path / "r" / "2.jpg"
    plan = two_copies(tmp_path / "r")
    rename = os.rename

    def change_and_rename(source: str, target: str) -> None:
        rename(source, target)
        change(kept)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", change_and_rename)
        (outcome,) = apply(replace(plan, hard_link=hard_link), journal)
    assert (outcome.done, outcome.message) == (
        False,
        "The kept photo disappeared or changed during the move, so this one is back.",
    )
    assert copy.read_bytes() == b"x"
    assert journal.entries(IN_QUARANTINE) == []
    assert not (tmp_path / "r" / QUARANTINE_NAME).exists()

"""The quarantine: where duplicates go instead of being deleted, and the single steps there and back.

A quarantine is a folder ``.clip-quarantine`` in the folder that you named. If another file system is mounted below that
folder, its files go to a quarantine at its top: a rename within one file system is atomic and copies nothing. Inside,
each file is at ``<run>/<path of the file below that folder>``, so you can find it without a tool.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.apple_photos import is_inside_library
from clip_client.dedup.files.hashing import Content, hash_file
from clip_client.dedup.types import QUARANTINE_NAME
from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from clip_client.dedup.store.journal import MovedFile


_NO_SYNC: Final = frozenset({errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Errors of file systems that cannot sync a folder, which POSIX allows."""

_NO_SUCH_NAME: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})

_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


_WITHOUT_HARD_LINKS: Final = frozenset({"exfat", "msdos", "vfat"})
"""Types of file systems, as Linux names them. Others show it when the link is made."""


class CannotMove(ReportedError):
    """A file must stay where it is; the message is one sentence for people."""


@dataclass(frozen=True, kw_only=True)
class QuarantineTarget:
    """The quarantine that a file goes to."""

    folder: str
    """The folder that holds ``.clip-quarantine``."""

    def path_for(self, path: str, run: str) -> str:
        """Return the path in the quarantine for the file at ``path``, moved by ``run``."""
        return os.path.join(self.folder, QUARANTINE_NAME, run, os.path.relpath(os.path.abspath(path), self.folder))


def quarantine_target(path: str, roots: Collection[str]) -> QuarantineTarget:
    """Find the quarantine for ``path``, a photo below one of ``roots`` (absolute; the innermost root counts).

    Nothing is written. Raises CannotMove if ``path`` is not a regular file, if its folder or the quarantine's folder
    cannot be written, or if it is below no root.
    """
    given, path = path, os.path.abspath(path)
    try:
        status = os.lstat(path)
        if not os.path.samestat(status, os.lstat(given)):
            raise CannotMove("Its path has '..' after a link, so it names another file than it seems to.")
        folder = os.path.dirname(path)
        root = next((above for above in _folders_above(path) if above in roots), None)
        if not stat.S_ISREG(status.st_mode):
            raise CannotMove("It is a link; only the file that it points to could be moved.")
        if is_inside_library(path):
            raise CannotMove("It is inside an Apple Photos library, which needs all its files.")
        if root is None:
            raise CannotMove("It is in none of the folders that you named.")
        if not _is_below(os.path.realpath(folder), os.path.realpath(root)):
            raise CannotMove("It was reached through a link that leads out of the folders that you named.")
        top = _top_of_file_system(folder, root, status.st_dev)
    except OSError as error:
        raise CannotMove(f"It cannot be read: {error.strerror}.") from None
    for needed in {folder, top}:
        _check_writable(needed)
    _check_quarantine(os.path.join(top, QUARANTINE_NAME), status.st_dev)
    return QuarantineTarget(folder=top)


def check_can_move(path: str, what: str) -> None:
    """Raise CannotMove if the file at ``path`` is a link, or is on another file system than its folder.

    ``what`` is the subject of the message, such as "It".
    """
    try:
        status = os.lstat(path)
        is_mount = status.st_dev != os.stat(os.path.dirname(path) or os.curdir).st_dev
    except OSError as error:
        raise CannotMove(f"{what} cannot be read: {error.strerror}.") from None
    if not stat.S_ISREG(status.st_mode):
        raise CannotMove(f"{what} is a link or not a regular file.")
    if is_mount:
        raise CannotMove(f"{what} is a mount point, and files cannot be renamed across file systems.")


def check_hard_link(kept: str, copy: str, *, type_of: Callable[[int], str] | None = None) -> None:
    """Raise CannotMove if ``copy`` cannot be replaced by a hard link to ``kept``.

    ``type_of`` names the file system of a device number (default: :func:`file_system_type`).
    """
    try:
        there, here = os.stat(kept), os.lstat(copy)
    except OSError as error:
        raise CannotMove(f"A hard link is not possible: {error.strerror}.") from None
    if there.st_dev != here.st_dev:
        raise CannotMove(f"The kept photo is on another file system, which a hard link cannot cross: {kept}.")
    if (type_of or file_system_type)(here.st_dev) in _WITHOUT_HARD_LINKS:
        raise CannotMove("Its file system does not support hard links.")


def file_system_type(device: int) -> str:
    """Return the type of the mounted file system with this device number, such as ``"ext4"``; empty if not known."""
    wanted = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            for mount in mounts:
                about, _, system = mount.partition(" - ")
                if about.split(" ", 3)[2] == wanted:
                    return system.split(" ", 1)[0]
    except OSError:  # not Linux
        return ""
    return ""


def _check_quarantine(quarantine: str, device: int) -> None:
    """Raise CannotMove if something at the quarantine's path cannot take a file of this device."""
    try:
        status = os.lstat(quarantine)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise CannotMove(f"{quarantine} is in the way: it is not a folder.")
    if status.st_dev != device:
        raise CannotMove(f"{quarantine} is on another file system, and files cannot be renamed across file systems.")
    _check_writable(quarantine)


def _top_of_file_system(folder: str, root: str, device: int) -> str:
    """Return the highest folder between ``root`` and ``folder`` that is on ``device``."""
    if os.stat(folder).st_dev != device:
        raise CannotMove("The file is a mount point, and files cannot be renamed across file systems.")
    while folder != root and os.stat(os.path.dirname(folder)).st_dev == device:
        folder = os.path.dirname(folder)
    return folder


def _check_writable(folder: str) -> None:
    # Both checks are needed: root may write into any folder, but not to a file system that is mounted read-only.
    read_only = hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    if read_only or not os.access(folder, os.W_OK | os.X_OK):
        what = "file system is mounted read-only" if read_only else "folder is read-only for you"
        raise CannotMove(f"Its {what}: {folder}.")


def _folders_above(path: str) -> Iterator[str]:
    """Yield the folders above ``path``, the innermost first."""
    while path != (path := os.path.dirname(path)):
        yield path


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def make_folder(folder: str) -> None:
    """Make a folder and its parents. They are on the disk when this returns."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for name in reversed(missing):
        os.mkdir(name, 0o700 if os.path.basename(name) == QUARANTINE_NAME else 0o777)
        sync_folder(os.path.dirname(name))


def sync_folder(folder: str) -> None:
    """Write a folder's entries to the disk, if the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def rename_new(source: str, target: str) -> None:
    """Rename without ever replacing a file at ``target``; raises FileExistsError instead.

    If the file system supports hard links, the file has both names for a moment: a plain rename could replace what
    another program writes to ``target`` at the same time.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(source, target)
    else:
        os.unlink(source)
    sync_folder(os.path.dirname(target))
    sync_folder(os.path.dirname(source))


def quarantine(file: MovedFile) -> None:
    """Move one file into the quarantine. Raises OSError, and FileExistsError if its path there is taken.

    Unlike :func:`rename_new` this is a single step: between two steps, another program could save the photo by a
    rename, and that file would be removed. Each run has its own folder, so nothing in it can be replaced.
    """
    make_folder(os.path.dirname(file.quarantined))
    if os.path.lexists(file.quarantined):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file.quarantined)
    os.rename(file.original, file.quarantined)
    sync_folder(os.path.dirname(file.quarantined))
    sync_folder(os.path.dirname(file.original))


def restore(file: MovedFile, *, replace_equal: bool = False) -> None:
    """Move one file back to where it was, with its old times; safe to repeat after a crash at any step.

    With ``replace_equal`` a file of the same bytes at the old path is the hard link from the move, and is replaced.
    Raises CannotMove if another file has the name now, or if the file is in neither place.
    """
    original, quarantined = file.original, file.quarantined
    if not is_there(quarantined):
        if not is_there(original):
            raise CannotMove("It is neither in the quarantine nor at its old path.")
    elif not is_there(original):
        make_folder(os.path.dirname(original))
        try:
            rename_new(quarantined, original)
        except FileExistsError:
            raise CannotMove("Another file has taken its name.") from None
    elif os.path.samefile(quarantined, original):
        os.unlink(quarantined)
        sync_folder(os.path.dirname(quarantined))
    elif replace_equal and _has_bytes(original, file.sha256):
        os.replace(quarantined, original)
        sync_folder(os.path.dirname(original))
        sync_folder(os.path.dirname(quarantined))
    else:
        raise CannotMove("Another file has taken its name.")
    status = os.lstat(original)
    if (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns):
        # A rename keeps the modification time; hashing the file before changed its access time.
        os.utime(original, ns=(file.atime_ns, file.mtime_ns))


def is_there(path: str) -> bool:
    """Tell whether anything has this name. Raises OSError if this cannot be found out, as in an unreadable folder."""
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in _NO_SUCH_NAME:
            return False
        raise
    return True


def check_disk(file: MovedFile, kept: str) -> None:
    """Raise CannotMove if the disk of a quarantined file is not connected.

    In that case the folder that holds the quarantine is missing or, as an unused mount point, empty; a quarantine that
    somebody emptied by hand leaves at least something there. If another disk is mounted in its place, the quarantine,
    the file's old folder and the kept photo are all missing.
    """
    folder = file.quarantined.partition(f"{os.sep}{QUARANTINE_NAME}{os.sep}")[0] or os.sep
    try:
        with os.scandir(folder) as entries:
            is_empty = next(entries, None) is None
    except OSError:
        is_empty = True
    if is_empty:
        raise CannotMove(f"{folder} is missing or empty; connect its disk and try again.")
    known = (os.path.join(folder, QUARANTINE_NAME), file.original)
    around = (os.path.dirname(file.original), kept)
    if not any(map(os.path.lexists, known)) and not all(map(os.path.lexists, around)):
        raise CannotMove(f"{folder} looks like another disk; connect the right one and try again.")


def remove_empty_folders(quarantined: str) -> None:
    """Remove the empty folders above a file that left the quarantine, up to and including the quarantine itself.

    The inner folders may be missing: a process may be killed before it has made all of them.
    """
    folder = os.path.dirname(quarantined)
    while QUARANTINE_NAME in folder.split(os.sep):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = os.path.dirname(folder)


def _has_bytes(path: str, sha256: str) -> bool:
    content = hash_file(path)
    return isinstance(content, Content) and content.sha256 == sha256

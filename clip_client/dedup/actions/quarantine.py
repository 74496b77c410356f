"""The quarantine: where duplicates go instead of being deleted, and the single steps there and back.

A quarantine is the folder ``.clip-quarantine`` in a folder that you named. If another file system is mounted below that
folder, the files on it go to a quarantine in its top folder, because only a rename within one file system is atomic and
copies nothing. In the quarantine each file has the path ``<run>/<its path below the folder>``, so you can find it
without a tool.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.apple_photos import is_inside_library
from clip_client.dedup.files.directories import is_same_file
from clip_client.dedup.files.reading import sha256_of
from clip_client.dedup.types import QUARANTINE_NAME
from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from clip_client.dedup.store.journal import JournalEntry, MovedFile

_NO_SYNC: Final = frozenset({errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Errors of file systems that cannot sync a folder, which POSIX allows."""
_NO_SUCH_NAME: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_NO_HARD_LINKS: Final = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}
)
"""EINVAL is what Python makes of Windows' answer for a drive with FAT."""
_WITHOUT_HARD_LINKS: Final = frozenset({"exfat", "msdos", "vfat"})
"""File systems, by their names in Linux. On others without hard links, making the link fails."""


class CannotMove(ReportedError):
    """A file must stay where it is; the message is one sentence for people."""


def quarantined_path(folder: str, run: str, path: str) -> str:
    """Return where ``run`` moves the file at an absolute ``path`` to, in the quarantine of ``folder``."""
    return os.path.join(folder, QUARANTINE_NAME, run, os.path.relpath(path, folder))


def quarantine_folder(path: str, roots: Collection[str]) -> str:
    """Return the folder whose ``.clip-quarantine`` takes the photo at ``path``.

    It is at or below the innermost of the absolute ``roots`` above the photo. Nothing is written. Raises CannotMove if
    ``path`` is not a regular file or is not below a root, or if its folder or the quarantine cannot be written.
    """
    given, path = path, os.path.abspath(path)
    try:
        status = os.lstat(path)
        if not os.path.samestat(status, os.lstat(given)):
            raise CannotMove("Its path has '..' after a link, so it names another file than it seems to.")
        folder = os.path.dirname(path)
        root = next((above for above in map(str, PurePath(path).parents) if above in roots), None)
        if not stat.S_ISREG(status.st_mode):
            raise CannotMove("It is a link; only the file that it points to could be moved.")
        if is_inside_library(path):
            raise CannotMove("It is inside an Apple Photos library, which needs all its files.")
        if root is None:
            raise CannotMove("It is in none of the folders that you named.")
        if not PurePath(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
            raise CannotMove("It was reached through a link that leads out of the folders that you named.")
        top = _top_of_file_system(folder, root, status.st_dev)
    except OSError as error:
        raise CannotMove(f"It cannot be read: {error.strerror}.") from None
    for needed in {folder, top}:
        _check_writable(needed)
    _check_quarantine(os.path.join(top, QUARANTINE_NAME), status.st_dev)
    return top


def why_read_only(folder: str) -> str:
    """Say why nothing can be written to a folder, such as ``"folder is read-only for you"``; empty if it can."""
    # Both checks are needed: root may write to any folder, but not to a file system that is mounted read-only.
    try:
        if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY:
            return "file system is mounted read-only"
    except OSError as error:
        return f"folder cannot be read ({error.strerror})"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "folder is read-only for you"


def check_can_move(path: str, what: str) -> None:
    """Raise CannotMove if the file at ``path`` is not a regular file, or is on another file system than its folder.

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


def check_hard_link(kept: str, copy: str) -> None:
    """Raise CannotMove if ``copy`` cannot be replaced by a hard link to ``kept``."""
    try:
        there, here = os.stat(kept), os.lstat(copy)
    except OSError as error:
        raise CannotMove(f"A hard link is not possible: {error.strerror}.") from None
    if there.st_dev != here.st_dev:
        raise CannotMove(f"The kept photo is on another file system, which a hard link cannot cross: {kept}.")
    if _file_system_type(here.st_dev) in _WITHOUT_HARD_LINKS:
        raise CannotMove("Its file system does not support hard links.")


def _file_system_type(device: int) -> str:
    """Return the type of the mounted file system with this device number, such as ``"ext4"``; empty if not known."""
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:  # Linux alone has it
        for fields in map(bytes.split, mounts):
            if fields[2] == b"%d:%d" % (os.major(device), os.minor(device)):
                return os.fsdecode(fields[fields.index(b"-") + 1])
    return ""


def _check_quarantine(quarantine: str, device: int) -> None:
    """Raise CannotMove if something at the quarantine's path prevents files of this device from moving there."""
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
    if reason := why_read_only(folder):
        raise CannotMove(f"Its {reason}: {folder}.")


def _make_folder(folder: str) -> None:
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
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def _sync_folders_of(moved_to: str, moved_from: str) -> None:
    # The new entry first: after a crash, the file has two names rather than none.
    for path in (moved_to, moved_from):
        sync_folder(os.path.dirname(path))


def _check_free(path: str) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def rename_new(source: str, target: str) -> None:
    """Rename a file. Raises FileExistsError if ``target`` exists, and never replaces it.

    If the file system supports hard links, the file has both names for a moment, because a plain rename could replace
    a file that another program writes to ``target`` at the same time.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _check_free(target)
        os.rename(source, target)
    else:
        os.unlink(source)
    _sync_folders_of(target, source)


def quarantine(file: MovedFile) -> None:
    """Move one file to the quarantine. Raises OSError, and FileExistsError if its path there is taken.

    Unlike :func:`rename_new`, this is a single step. Between two steps another program could save the photo with a
    rename, and the second step would remove the file that it saved. Each run has its own folder in the quarantine, so
    the rename cannot replace a file there.
    """
    _make_folder(os.path.dirname(file.quarantined))
    _check_free(file.quarantined)
    os.rename(file.original, file.quarantined)
    _sync_folders_of(file.quarantined, file.original)


def restore(file: MovedFile, *, replace_equal: bool = False) -> None:
    """Move one file back to its old path and set its old times. After a crash at any step, this can be repeated.

    With ``replace_equal``, a file with the same bytes at the old path is the hard link that ``apply`` made there, and
    is replaced. Raises CannotMove if another file has taken the old path, or if the file is in neither place.
    """
    original, quarantined = file.original, file.quarantined
    if not is_there(quarantined):
        if not is_there(original):
            raise CannotMove("It is neither in the quarantine nor at its old path.")
    elif not is_there(original):
        _make_folder(os.path.dirname(original))
        try:
            rename_new(quarantined, original)
        except FileExistsError:
            raise CannotMove("Another file has taken its name.") from None
    elif os.path.islink(original) or _is_one_name(original, quarantined):
        raise CannotMove("A link has taken its name.")
    elif is_same_file(quarantined, original):  # two hard links, as after a rename that was killed
        os.unlink(quarantined)
        sync_folder(os.path.dirname(quarantined))
    elif replace_equal and is_copy(original, file):
        os.replace(quarantined, original)
        _sync_folders_of(original, quarantined)
    else:
        raise CannotMove("Another file has taken its name.")
    status = os.lstat(original)
    if (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns):
        # A rename keeps the modification time, but hashing the file changed its access time.
        os.utime(original, ns=(file.atime_ns, file.mtime_ns))


def _is_one_name(path: str, other: str) -> bool:
    """Tell whether two paths lead to one name in one folder, such as through a link to the folder."""
    folders = (os.path.dirname(path), os.path.dirname(other))
    return os.path.basename(path) == os.path.basename(other) and is_same_file(*folders)


def is_there(path: str) -> bool:
    """Tell whether anything exists at ``path``. Raises OSError if this is unknown, as in an unreadable folder."""
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in _NO_SUCH_NAME:
            return False
        raise
    return True


def why_out_of_reach(entry: JournalEntry) -> str:
    """Say that the disk of an entry is not connected; empty if it is.

    The folder that contained the quarantine is then missing, or is an empty mount point. If a person empties a
    quarantine by hand, that folder still contains other files, the kept photo among them. If another disk is mounted in
    its place, or none on a folder with files of its own, what the run moved is missing, and so are the file's old
    folder or the kept photo. A kept photo on a third disk proves nothing.
    """
    file = entry.files[0]
    above, name, _ = file.quarantined.partition(f"{os.sep}{QUARANTINE_NAME}")
    folder = os.path.dirname(above + name)  # of a quarantine in the root of all files, or of a drive, the root
    try:
        with os.scandir(folder) as entries:
            is_empty = next(entries, None) is None
    except OSError:
        is_empty = True
    if is_empty:
        return f"{folder} is missing or empty; connect its disk and try again."
    known = (os.path.join(folder, QUARANTINE_NAME, entry.run), file.original)
    around = (os.path.dirname(file.original), entry.kept)
    is_around = PurePath(entry.kept).is_relative_to(folder) and all(map(os.path.lexists, around))
    if is_around or any(map(os.path.lexists, known)):
        return ""
    return f"{folder} looks like another disk; connect the right one and try again."


def remove_empty_folders(entry: JournalEntry) -> None:
    """Remove the empty folders above files that left the quarantine, up to and including the quarantine itself.

    Inner folders may be missing if the process that made them was killed.
    """
    for file in entry.files:
        with suppress(OSError):
            for folder in map(str, PurePath(file.quarantined).parents):
                if QUARANTINE_NAME not in folder.split(os.sep):
                    break
                if is_there(folder):
                    os.rmdir(folder)


def may_be_quarantined(entry: JournalEntry) -> bool:
    """Tell whether a file of the entry is in the quarantine; True if this cannot be found out."""
    try:
        return any(is_there(file.quarantined) for file in entry.files)
    except OSError:
        return True


def is_copy(path: str, file: MovedFile) -> bool:
    """Tell whether the file at ``path`` has the bytes that ``file`` had; False if it cannot be read."""
    try:
        return os.stat(path).st_size == file.size_bytes and sha256_of(path) == file.sha256
    except OSError:  # such as a link that leads nowhere
        return False


def sentence(error: OSError | CannotMove) -> str:
    """Return why a file did not move."""
    if isinstance(error, CannotMove):
        return str(error)
    if error.errno == errno.EXDEV:  # the plan compares devices, and one device can be mounted twice
        return "Its folder is mounted there, and files cannot be renamed across mounts; name that folder itself."
    return f"The system refuses: {error.strerror or error}."

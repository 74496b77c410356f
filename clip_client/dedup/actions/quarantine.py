"""Where files go instead of away, and the single steps there and back.

A quarantine is a folder ``.clip-quarantine`` in the folder that a person named, or, where another file system is
mounted below that, at the top of that one: a rename moves a file within one file system at once or not at all, and
copies nothing. Inside, ``<run>/<path of the file below that folder>``, so a person finds everything without a tool.
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
    from collections.abc import Collection, Iterator

    from clip_client.dedup.store.journal import MovedFile


_NO_SYNC: Final = frozenset({errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What file systems say that cannot sync a folder; POSIX lets them."""

_NO_SUCH_NAME: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})

_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


_WITHOUT_HARD_LINKS: Final = frozenset({"exfat", "msdos", "vfat"})
"""Types of file systems, as Linux names them. For others, the attempt tells."""


class CannotMove(ReportedError):
    """A file must stay where it is; the text is one sentence for people."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The quarantine that a file would go to."""

    folder: str
    """The folder that holds ``.clip-quarantine``."""

    def target(self, path: str, run: str) -> str:
        """Return where ``path`` goes in ``run``."""
        return os.path.join(self.folder, QUARANTINE_NAME, run, os.path.relpath(os.path.abspath(path), self.folder))


def place_for(path: str, roots: Collection[str]) -> Place:
    """Find the quarantine for ``path``, a photo below one of ``roots`` (absolute; of nested ones the innermost counts).

    Nothing is written. Raises CannotMove where the file is no regular file of its own, where its folder or the
    quarantine's cannot be written, or where no root holds it.
    """
    given, path = path, os.path.abspath(path)
    try:
        status = os.lstat(path)
        if not os.path.samestat(status, os.lstat(given)):
            raise CannotMove("Its path goes up again behind a link, where without the link another file is.")
        folder = os.path.dirname(path)
        root = next((above for above in _folders_above(path) if above in roots), None)
        if not stat.S_ISREG(status.st_mode):
            raise CannotMove("It is a link, and only the file that it leads to could be moved.")
        if is_inside_library(path):
            raise CannotMove("It lies in a library of Apple Photos, which must find all its files.")
        if root is None:
            raise CannotMove("It is in none of the folders that were named.")
        if not _is_below(os.path.realpath(folder), os.path.realpath(root)):
            raise CannotMove("It was reached through a link that leads out of the folders that were named.")
        top = _top_of_file_system(folder, root, status.st_dev)
    except OSError as error:
        raise CannotMove(f"It cannot be looked at: {error.strerror}.") from None
    for needed in {folder, top}:
        _check_writable(needed)
    _check_quarantine(os.path.join(top, QUARANTINE_NAME), status.st_dev)
    return Place(folder=top)


def check_can_move(path: str, what: str) -> None:
    """Raise CannotMove if the file at ``path`` is a link, or on another file system than its folder.

    ``what`` begins the sentence, such as "It".
    """
    try:
        status = os.lstat(path)
        is_mount = status.st_dev != os.stat(os.path.dirname(path) or os.curdir).st_dev
    except OSError as error:
        raise CannotMove(f"{what} cannot be looked at: {error.strerror}.") from None
    if not stat.S_ISREG(status.st_mode):
        raise CannotMove(f"{what} is a link or no regular file.")
    if is_mount:
        raise CannotMove(f"{what} is a mount of its own, and nothing can be renamed across file systems.")


def check_hard_link(kept: str, copy: str) -> None:
    """Raise CannotMove if no hard link to ``kept`` can stand in the place of ``copy``."""
    try:
        there, here = os.stat(kept), os.lstat(copy)
    except OSError as error:
        raise CannotMove(f"A hard link is not possible: {error.strerror}.") from None
    if there.st_dev != here.st_dev:
        raise CannotMove(f"The kept photo is on another file system, where no hard link can lead: {kept}.")
    if file_system_type(here.st_dev) in _WITHOUT_HARD_LINKS:
        raise CannotMove("Its file system has no hard links.")


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
    """Raise CannotMove if what has the quarantine's name already cannot take a file of this device."""
    try:
        status = os.lstat(quarantine)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise CannotMove(f"{quarantine} is in the way: it is no folder.")
    if status.st_dev != device:
        raise CannotMove(f"{quarantine} is on another file system, and nothing can be renamed across file systems.")
    _check_writable(quarantine)


def _top_of_file_system(folder: str, root: str, device: int) -> str:
    """Return the highest folder between ``root`` and ``folder`` that is on ``device``."""
    if os.stat(folder).st_dev != device:
        raise CannotMove("The file is a mount of its own, and nothing can be renamed across file systems.")
    while folder != root and os.stat(os.path.dirname(folder)).st_dev == device:
        folder = os.path.dirname(folder)
    return folder


def _check_writable(folder: str) -> None:
    # Two questions: root may write into any folder, but not onto a file system that is mounted read-only.
    read_only = hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    if read_only or not os.access(folder, os.W_OK | os.X_OK):
        what = "file system is mounted read-only" if read_only else "folder is read-only"
        raise CannotMove(f"Its {what}: {folder}." if read_only else f"Its {what} for you: {folder}.")


def _folders_above(path: str) -> Iterator[str]:
    """Yield the folders that hold ``path``, the innermost first."""
    while path != (path := os.path.dirname(path)):
        yield path


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def make_folder(folder: str) -> None:
    """Make a folder and those above it; on the disk when this returns."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for name in reversed(missing):
        os.mkdir(name, 0o700 if os.path.basename(name) == QUARANTINE_NAME else 0o777)
        sync_folder(os.path.dirname(name))


def sync_folder(folder: str) -> None:
    """Put a folder's entries on the disk, where the system can."""
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
    """Rename without ever replacing a file that is at ``target``; raises FileExistsError there.

    Where there are hard links the file has both names for a moment: a plain rename would replace what another program
    puts at ``target`` just now.
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


def put_away(file: MovedFile) -> None:
    """Move one file into the quarantine. Raises OSError, FileExistsError where its place there is taken.

    In one step, other than :func:`rename_new`: between two, a program that saves the photo by a rename of its own would
    have what it saved removed. The folder of a run is nobody else's, so there is nothing to replace in it.
    """
    make_folder(os.path.dirname(file.quarantined))
    if os.path.lexists(file.quarantined):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file.quarantined)
    os.rename(file.original, file.quarantined)
    sync_folder(os.path.dirname(file.quarantined))
    sync_folder(os.path.dirname(file.original))


def bring_back(file: MovedFile, *, replace_equal: bool = False) -> None:
    """Move one file to where it was, with the times that it had; harmless where that is done already, or half done.

    With ``replace_equal`` a file of the same bytes at its place is the hard link that was left there, and is replaced.
    Raises CannotMove where something else has the name now, or where the file is in neither place.
    """
    original, quarantined = file.original, file.quarantined
    if not is_there(quarantined):
        if not is_there(original):
            raise CannotMove("It is neither in the quarantine nor at its old place.")
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
        # A rename keeps the time of change; hashing the file before has moved the time of access.
        os.utime(original, ns=(file.atime_ns, file.mtime_ns))


def is_there(path: str) -> bool:
    """Tell whether anything has this name. Raises OSError where nobody can tell, as in a folder that is shut."""
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in _NO_SUCH_NAME:
            return False
        raise
    return True


def check_disk(file: MovedFile, survivor: str) -> None:
    """Raise CannotMove where nothing can be known about a file that was put away, because its disk is not there.

    The folder around the quarantine is then missing, or, as a mount point, empty: where the quarantine was emptied by
    hand there is at least something in it. Where another disk has its place, the quarantine is not there, and neither
    are the folder that the file came from and the kept photo.
    """
    folder = file.quarantined.partition(f"{os.sep}{QUARANTINE_NAME}{os.sep}")[0] or os.sep
    try:
        with os.scandir(folder) as entries:
            is_empty = next(entries, None) is None
    except OSError:
        is_empty = True
    if is_empty:
        raise CannotMove(f"{folder} is missing or empty; connect its disk, and say the same again.")
    known = (os.path.join(folder, QUARANTINE_NAME), file.original)
    around = (os.path.dirname(file.original), survivor)
    if not any(map(os.path.lexists, known)) and not all(map(os.path.lexists, around)):
        raise CannotMove(f"{folder} looks like another disk; connect the right one, and say the same again.")


def forget_empty_folders(quarantined: str) -> None:
    """Remove the folders around a file that has left the quarantine, up to the quarantine itself, while empty.

    The inner ones may be missing: a process may be killed before it has made all of them.
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

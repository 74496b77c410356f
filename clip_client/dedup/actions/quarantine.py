"""The quarantine, to which duplicates move instead of being deleted, and the single steps of a move and its undo.

If another file system is mounted below a named folder, its files go to a quarantine in its own top folder, because only
a rename within one file system is atomic. In the quarantine each file has the path ``<run>/<its path below the
folder>``, so you can find it without a tool.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import PurePath
from typing import Final

from clip_client._files import stored_ns
from clip_client.dedup.files.directories import is_same_file
from clip_client.dedup.files.reading import sha256_of
from clip_client.dedup.judge.movable import CannotMove
from clip_client.dedup.store.computer import is_this_computer, name_of
from clip_client.dedup.store.journal import Folder, JournalEntry, MovedFile, Sidecar
from clip_client.dedup.types import QUARANTINE_NAME

MANIFEST: Final = ".clip-manifest"
_NO_SYNC: Final = frozenset({errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_SUCH_NAME: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_NO_HARD_LINKS: Final = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL, errno.EXDEV}
)
"""Errors of file systems without hard links: EINVAL by Windows for FAT, EXDEV by pools of disks such as mergerfs."""

_REMEDIES: Final = {
    errno.EACCES: "make its folder and the quarantine writable",
    errno.ENOSPC: "free some space",
    errno.EROFS: "make its disk writable",
}
_IF_RENAMED: Final = ", or if the folder was renamed: clip-client undo --from FOLDER, its new name."


def run_folder(entry: JournalEntry) -> PurePath:
    above, name, _ = entry.files[0].quarantined.partition(f"{os.sep}{QUARANTINE_NAME}")
    return PurePath(above + name, entry.run)


def folders_now(files: Sequence[MovedFile], sidecars: Iterable[Sidecar]) -> tuple[Folder, ...]:
    names = {os.path.dirname(sidecar.path) for sidecar in sidecars}
    for file in files:
        top = file.quarantined.partition(f"{os.sep}{QUARANTINE_NAME}{os.sep}")[0] or os.sep
        names |= {str(one) for one in PurePath(file.original).parents if one.is_relative_to(top)}
    found = []
    for name in names:
        with suppress(OSError):  # a person may have removed it
            status = os.stat(name)
            if stat.S_ISDIR(status.st_mode):  # a file may have taken its name
                found.append(Folder(name, stat.S_IMODE(status.st_mode), stored_ns(status.st_mtime_ns)))
    return tuple(found)


def give_back_times(folders: Iterable[Folder]) -> None:
    for folder in folders:
        with suppress(OSError):  # only the owner of a folder may set its times
            status = os.stat(folder.path)
            if stat.S_ISDIR(status.st_mode) and status.st_mtime_ns != folder.mtime_ns:
                os.utime(folder.path, ns=(status.st_atime_ns, folder.mtime_ns))


def make_folder(folder: str, like: str, folders: Iterable[Folder]) -> None:
    """Make and sync a folder and its parents; they get the modes that ``folders`` has for ``like`` and its parents."""
    modes = {folder.path: folder.mode for folder in folders}
    missing = []
    while not os.path.isdir(folder):
        missing.append((folder, 0o700 if os.path.basename(folder) == QUARANTINE_NAME else modes.get(like)))
        folder, like = os.path.dirname(folder), os.path.dirname(like)
    for name, mode in reversed(missing):
        os.mkdir(name, 0o777 if mode is None else mode)
        if mode is not None:
            with suppress(OSError):  # file systems without modes raise EPERM or other errors
                os.chmod(name, mode)  # mkdir leaves out the bits of the umask
        sync_folder(os.path.dirname(name))


def sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_folder(folder: str) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folders_of(moved_to: str, moved_from: str) -> None:
    # Sync the new name first: after a crash, the file has two names rather than none.
    for path in (moved_to, moved_from):
        sync_folder(os.path.dirname(path))


def _check_free(path: str) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def rename_new(source: str, target: str) -> None:
    """Rename a file. Raises FileExistsError if ``target`` exists, and never replaces it.

    A plain rename could replace a file that another program writes to ``target`` at the same time. If the file system
    supports hard links, the file therefore has both names for a moment.
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


def quarantine(file: MovedFile, folders: Iterable[Folder] = ()) -> None:
    """Move one file to the quarantine. Raises OSError, and FileExistsError if its path there is taken.

    Unlike :func:`rename_new`, this is a single step: between two steps, another program could save the photo by a
    rename, and the second step would remove it. Each run has its own folder, so this rename replaces no file.
    """
    make_folder(os.path.dirname(file.quarantined), os.path.dirname(file.original), folders)
    _check_free(file.quarantined)
    os.rename(file.original, file.quarantined)
    _sync_folders_of(file.quarantined, file.original)


def check_old_path(file: MovedFile, *, replace_equal: bool = False) -> None:
    original, quarantined = file.original, file.quarantined
    if not (is_there(quarantined) and is_there(original)):
        return
    is_one_name = os.path.basename(original) == os.path.basename(quarantined)
    if os.path.islink(original) or (is_one_name and is_same_file(*map(os.path.dirname, (original, quarantined)))):
        raise CannotMove("A link has taken its name.")
    if not (is_same_file(quarantined, original) or (replace_equal and is_copy(original, file))):
        raise CannotMove("Another file has taken its name.")


def restore(file: MovedFile, folders: Iterable[Folder] = (), *, replace_equal: bool = False) -> None:
    """Move one file back to its old path and set its old times. After a crash at any step, this can be repeated.

    If a person has removed its folder, the folder is made again with the mode that ``folders`` records. With
    ``replace_equal``, a file with the same bytes at the old path is replaced: it is the hard link that ``--hard-link``
    made there. Raises CannotMove if another file has taken the old path, or if the file is in neither place.
    """
    original, quarantined = file.original, file.quarantined
    check_old_path(file, replace_equal=replace_equal)
    if not is_there(quarantined):
        if not is_there(original):
            raise CannotMove("It is neither in the quarantine nor at its old path.")
    elif not is_there(original):
        make_folder(os.path.dirname(original), os.path.dirname(original), folders)
        try:
            rename_new(quarantined, original)
        except FileExistsError:
            raise CannotMove("Another file has taken its name.") from None
    elif is_same_file(quarantined, original):  # two hard links, as after a rename that was killed
        os.unlink(quarantined)
        sync_folder(os.path.dirname(quarantined))
    else:
        os.replace(quarantined, original)
        _sync_folders_of(original, quarantined)
    status = os.lstat(original)
    if (status.st_size, stored_ns(status.st_mtime_ns)) == (file.size_bytes, file.mtime_ns):
        # A rename keeps the modification time, but hashing the file changed its access time.
        with suppress(PermissionError):  # only the owner of a file may set its times
            os.utime(original, ns=(file.atime_ns, status.st_mtime_ns))


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
    """Say why an entry's quarantine cannot be reached, such as that its disk is not connected; empty if it can be.

    Without the disk, the folder that has the quarantine is missing or is an empty mount point. If another disk is
    mounted in its place, the run's folder is missing, and so is the photo's old folder or the kept photo. Computers
    that share a store may have the same photos at the same paths, so the run's folder must be here, too.
    """
    file, run = entry.files[0], run_folder(entry)
    folder = run.parent.parent
    if not os.path.lexists(run) and not is_this_computer(entry.computer):
        return (
            f"Moved by the computer {name_of(entry.computer)} to {run}, which is not here; run the command there, or "
            "restore it with: clip-client undo --from FOLDER, the folder that has the quarantine."
        )
    try:
        with os.scandir(folder) as entries:
            is_empty = next(entries, None) is None
    except OSError:
        is_empty = True
    if is_empty:
        return f"{folder} is missing or empty; connect its disk and try again{_IF_RENAMED}"
    known = (str(run), file.original)
    around = (os.path.dirname(file.original), entry.kept)
    is_around = PurePath(entry.kept).is_relative_to(folder) and all(map(os.path.lexists, around))
    if is_around or any(map(os.path.lexists, known)):
        return ""
    return f"{folder} looks like another disk; connect the right one and try again{_IF_RENAMED}"


def remove_empty_folders(entry: JournalEntry) -> None:
    for file in entry.files:
        with suppress(OSError):
            for folder in PurePath(file.quarantined).parents:
                if QUARANTINE_NAME not in folder.parts:
                    break
                if is_there(str(folder)):  # a killed process may not have made the inner ones
                    remove_folder(folder)


def remove_folder(folder: PurePath) -> None:
    """Remove a folder of the quarantine, with the manifest if nothing else is left. Raises OSError for other files."""
    if folder.parent.name == QUARANTINE_NAME:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, 2)]
        if names == [MANIFEST]:
            os.unlink(folder / MANIFEST)
    os.rmdir(folder)


def may_be_quarantined(entry: JournalEntry) -> bool:
    """Tell whether a file of the entry is in the quarantine; True if this cannot be found out."""
    with suppress(OSError):
        return any(is_there(file.quarantined) for file in entry.files)
    return True


def is_copy(path: str, file: MovedFile) -> bool:
    with suppress(OSError):  # such as a link that leads nowhere
        return os.stat(path).st_size == file.size_bytes and sha256_of(path) == file.sha256
    return False


def sentence(error: OSError | CannotMove) -> str:
    if isinstance(error, CannotMove):
        return str(error)
    if error.errno == errno.EXDEV:  # the plan compares devices, and one device can be mounted twice
        return "Its folder is mounted there, and files cannot be renamed across mounts; name that folder itself."
    return f"The system refuses: {error.strerror or error}{remedy(error)}."


def remedy(error: OSError) -> str:
    return f"; {_REMEDIES[error.errno]} and try again" if error.errno in _REMEDIES else ""

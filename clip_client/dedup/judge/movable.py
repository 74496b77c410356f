"""Whether the system lets a file move into a quarantine, and into which folder's. Nothing here changes a file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from clip_client.dedup.files.directories import why_read_only
from clip_client.dedup.files.places import place_of
from clip_client.dedup.store.journal import LONGEST_RUN
from clip_client.dedup.types import QUARANTINE_NAME
from preprocess_ensemble.errors import ReportedError


class CannotMove(ReportedError):
    """A file must stay where it is; the message is one sentence for people."""


def roots_of(paths: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """Return folder in which files may move -> folder of its quarantine, for named folders and the folders of files.

    A named folder has its own quarantine. Named files outside the named folders share one quarantine, however many
    they are. It is in the lowest folder above all of them; if that cannot be written, several quarantines are in the
    highest folders below it that can.
    """
    absolute = {os.path.abspath(os.fsdecode(path)) for path in paths}
    folders = {path for path in absolute if os.path.isdir(path)}
    alone = {
        os.path.dirname(path) for path in absolute - folders if folders.isdisjoint(map(str, PurePath(path).parents))
    }
    try:
        shared = os.path.commonpath(alone) if alone else ""
    except ValueError:  # on several drives of Windows
        shared = ""
    return {folder: folder for folder in folders} | {folder: _highest_below(shared, folder) for folder in alone}


def _highest_below(shared: str, folder: str) -> str:
    """Climb from ``folder`` towards ``shared`` while the folders above can be written; return the last such folder.

    The climb stops below the root of all files, and at a link.
    """
    while folder != shared and not os.path.islink(folder):
        above = os.path.dirname(folder)
        if os.path.dirname(above) == above or why_read_only(above):
            break
        folder = above
    return folder


def quarantined_path(folder: str, run: str, path: str) -> str:
    """Return the path that the file at an absolute ``path`` gets from ``run`` in the quarantine of ``folder``."""
    return os.path.join(folder, QUARANTINE_NAME, run, os.path.relpath(path, folder))


def quarantine_folder(path: str, roots: Mapping[str, str]) -> str:
    """Return the folder whose ``.clip-quarantine`` takes the photo at ``path``.

    ``roots`` maps each absolute folder in which files may move to the folder of its quarantine, which is the same
    folder or above it. The innermost folder above the photo counts. Nothing is written. Raises CannotMove if ``path``
    is not a regular file, if it is outside these folders, or if its folder or the quarantine cannot be written.
    """
    given, path = path, os.path.abspath(path)
    try:
        status = os.lstat(path)
        if not os.path.samestat(status, os.lstat(given)):
            raise CannotMove("Its path has '..' after a link, so it names another file than it seems to.")
        folder = os.path.dirname(path)
        root = next((roots[above] for above in map(str, PurePath(path).parents) if above in roots), None)
        if not stat.S_ISREG(status.st_mode):
            raise CannotMove("It is a link; only the file that it points to could be moved.")
        if place := place_of(folder):
            rule = "which needs all its files" if place.is_lasting else "where nothing is moved"
            raise CannotMove(f"It is inside {place.what}, {rule}.")
        if root is None:
            raise CannotMove("It is in none of the folders that you named.")
        if not PurePath(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
            raise CannotMove("It was reached through a link that leads out of the folders that you named.")
        if _is_mount(path, status):
            raise CannotMove("The file is a mount point, and files cannot be renamed across file systems.")
        top, device = folder, os.stat(folder).st_dev
        while top != root and os.stat(os.path.dirname(top)).st_dev == device:
            top = os.path.dirname(top)
    except FileNotFoundError:
        raise CannotMove("It is not there: it has gone, or its disk is not connected.") from None
    except OSError as error:
        raise CannotMove(f"It cannot be read: {error.strerror}.") from None
    for needed in {folder, top}:
        _check_writable(needed)
    _check_quarantine(os.path.join(top, QUARANTINE_NAME), device)
    return top


def check_can_move(path: str, folder: str, what: str) -> None:
    """Raise CannotMove if the system does not let ``path`` move; ``what`` is the subject of the message: "It"."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise CannotMove(f"{what} is a link or not a regular file.")
        if _is_mount(path, status):
            raise CannotMove(f"{what} is a mount point, and files cannot be renamed across file systems.")
    except OSError as error:
        raise CannotMove(f"{what} cannot be read: {error.strerror}.") from None
    if is_name_too_long(quarantined_path(folder, LONGEST_RUN, os.path.abspath(path))):
        raise CannotMove(f"{what} would have a path in the quarantine that is too long for the system.")


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


def _check_writable(folder: str) -> None:
    if reason := why_read_only(folder):
        raise CannotMove(f"Its {reason}: {folder}; make it writable.")


def _is_mount(path: str, status: os.stat_result) -> bool:
    """Tell whether something is mounted on the regular file at ``path``; ``status`` is its ``os.lstat``.

    On overlayfs a file may have the device of its layer, and its folder another, on one file system. Raises OSError.
    """
    folder = os.path.dirname(path) or os.curdir
    if status.st_dev == os.stat(folder).st_dev:
        return False
    return not hasattr(os, "statvfs") or os.statvfs(path).f_fsid != os.statvfs(folder).f_fsid


def is_name_too_long(path: str) -> bool:
    """Tell whether the system takes no file at ``path``, because the path or its last name is too long for it."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False

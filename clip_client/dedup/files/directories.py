"""The file or folder that a path names, whatever the path is; sets of folders; folders that cannot be written to."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import TypeAlias

FileIdentity: TypeAlias = tuple[int, int | str]


class DirectorySet:
    """A set of folders and files by device and inode: through links and mounts a folder has several names."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._identities = {identity for path in paths if (identity := _identity(path)) is not None}
        self._is_inside = functools.cache(self._look_up)

    def contains(self, path: str) -> bool:
        if not self._identities:
            return False
        return self._is_inside(os.path.dirname(os.path.abspath(path))) or _identity(path) in self._identities

    def _look_up(self, folder: str) -> bool:
        real = os.path.realpath(folder)
        above = os.path.dirname(real)
        return _identity(real) in self._identities or (above != real and self._is_inside(above))


def identity_of(path: str, status: os.stat_result) -> FileIdentity:
    """Return device and inode of a file, which all its names have in common; ``status`` is its ``os.stat``."""
    # Some network drives of Windows number no files, so that all have 0.
    return status.st_dev, status.st_ino or os.path.normcase(os.path.realpath(path))


def is_same_file(path: str, other: str) -> bool:
    return identity_of(path, os.stat(path)) == identity_of(other, os.stat(other))


def why_read_only(folder: str) -> str:
    # Both checks are needed: root may write to any folder, but not to a file system that is mounted read-only.
    try:
        if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY:
            return "file system is mounted read-only"
    except OSError as error:
        return f"folder cannot be read ({error.strerror})"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "folder is read-only for you"


def _identity(path: str) -> FileIdentity | None:
    try:
        return identity_of(path, os.stat(path))
    except OSError:
        return None

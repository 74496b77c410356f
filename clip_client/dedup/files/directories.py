"""Sets of folders that recognise a folder under each of its names."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class DirectorySet:
    """A set of folders, and of single files.

    A folder has several names: through links, through mounts, in another case on some file systems. A search may find
    a file under one of them while the user has named another, so folders are compared by device and inode.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._identities = {identity for path in paths if (identity := _identity(path)) is not None}
        self._is_inside = functools.cache(self._look_up)
        """Tells whether a folder is one of the set or lies in one."""

    def contains(self, path: str) -> bool:
        """Tell whether the file at ``path`` is in one of the folders, at any depth, or in the set itself."""
        if not self._identities:
            return False
        return self._is_inside(os.path.dirname(os.path.abspath(path))) or _identity(path) in self._identities

    def _look_up(self, folder: str) -> bool:
        real = os.path.realpath(folder)
        above = os.path.dirname(real)
        return _identity(real) in self._identities or (above != real and self._is_inside(above))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino

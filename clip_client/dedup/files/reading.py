"""Reading files that may change, vanish or become something else while a search runs."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from clip_client.dedup.text import why_unreadable
from clip_client.dedup.types import FailedFile, PhotoFile
from preprocess_ensemble.cores import usable_cores

if TYPE_CHECKING:
    from io import FileIO

ReadFile: TypeAlias = Callable[[str], tuple[PhotoFile, bytes] | FailedFile]


def open_file(path: str) -> FileIO:
    """Open a regular file for reading, without a buffer. Raises OSError, or ValueError for a path with a null byte.

    A path that has become a FIFO since it was found does not block. The access time stays as it is if the system
    allows that.
    """
    # Some systems lack some of these flags.
    names = ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC")
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in names)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # Linux allows O_NOATIME to the owner of the file only
        descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return open(descriptor, "rb", buffering=0)


def read_file(path: str) -> tuple[PhotoFile, bytes] | FailedFile:
    """Read a whole file; return its content with its size and time of change. A failure is returned, not raised."""
    try:
        with open_file(path) as file:
            before = os.fstat(file.fileno())
            data = file.readall()
            after = os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        return FailedFile(path=path, code="UNREADABLE", message=why_unreadable(error))
    if (before.st_size, before.st_mtime_ns) != (len(data), after.st_mtime_ns):
        return FailedFile(path=path, code="UNREADABLE", message="It was changed while it was read.")
    if not data:
        return FailedFile(path=path, code="EMPTY", message="The file is empty.")
    return PhotoFile(path, len(data), after.st_mtime_ns), data


@dataclass(frozen=True, kw_only=True)
class PhotoReader:
    """How the photos of a search are read again, to decode them."""

    read: ReadFile = read_file
    threads: int = field(default_factory=usable_cores)
    """Photos that are read and decoded at a time."""


PLAIN_READER: Final = PhotoReader()


def is_unchanged(file: PhotoFile) -> bool:
    """Tell whether a file still has the size and time of change that it had when it was read."""
    try:
        status = os.stat(file.path)
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)

"""Reading files that may change, vanish or become something else while a search runs, and hashing their content."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from typing import Final, TypeAlias, TypeVar

from clip_client._files import FailedFile
from clip_client.dedup.text import why_unreadable
from clip_client.dedup.types import PhotoFile

Read = TypeVar("Read")
ReadFile: TypeAlias = Callable[[str], tuple[PhotoFile, bytes] | FailedFile]

_DATALESS: Final = 0x40000000
_RECALLED: Final = stat.FILE_ATTRIBUTE_OFFLINE | 0x40000 | 0x400000
"""Signs of a file whose content is only in the cloud: ``SF_DATALESS`` in ``st_flags`` of macOS; ``OFFLINE``,
``RECALL_ON_OPEN`` and ``RECALL_ON_DATA_ACCESS`` in ``st_file_attributes`` of Windows."""


def is_only_in_cloud(status: os.stat_result) -> bool:
    flags, attributes = (getattr(status, name, 0) for name in ("st_flags", "st_file_attributes"))
    return bool(flags & _DATALESS or attributes & _RECALLED)


def open_file(path: str) -> FileIO:
    """Open a regular file for reading, without a buffer. Raises OSError, or ValueError for a path with a null byte.

    Nothing is downloaded, a FIFO does not block, and the access time stays as it is if the system allows that.
    """
    # Some systems lack some of these flags.
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))
    if is_only_in_cloud(os.stat(path)):
        raise OSError(errno.ENODATA, "it is only in the cloud", path)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # Linux allows O_NOATIME to the owner of the file only
        descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return open(descriptor, "rb", buffering=0)


def read_file(path: str) -> tuple[PhotoFile, bytes] | FailedFile:
    return _read(path, lambda file: file.readall())


def hash_file(path: str) -> tuple[PhotoFile, str] | FailedFile:
    return _read(path, lambda file: hashlib.file_digest(file, "sha256").hexdigest())


def _read(path: str, read: Callable[[FileIO], Read]) -> tuple[PhotoFile, Read] | FailedFile:
    try:
        with open_file(path) as file:
            before = os.fstat(file.fileno())
            found = read(file)
            size_bytes, after = file.tell(), os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        return FailedFile(path=path, code="UNREADABLE", message=why_unreadable(error))
    if (before.st_size, before.st_mtime_ns) != (size_bytes, after.st_mtime_ns):
        return FailedFile(path=path, code="UNREADABLE", message="It was changed while it was read.")
    if not size_bytes:
        return FailedFile(path=path, code="EMPTY", message="The file is empty.")
    return PhotoFile.of(path, before), found


def read_content(path: str, sha256: str, read: ReadFile = read_file) -> bytes | None:
    """Read a file that had the content of this SHA-256; None if it has changed since, or cannot be read."""
    found = read(path)
    if isinstance(found, FailedFile) or hashlib.sha256(found[1]).hexdigest() != sha256:
        return None
    return found[1]


def sha256_of(path: str) -> str:
    found = hash_file(path)
    return "" if isinstance(found, FailedFile) else found[1]


def has_sha256(path: str, sha256: str) -> bool:
    return bool(sha256) and sha256_of(path) == sha256


def is_unchanged(file: PhotoFile) -> bool:
    with suppress(OSError):
        return PhotoFile.of(file.path, os.stat(file.path)).is_as(file)
    return False

"""The content hash of a file: equal hashes are equal bytes."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import Final

from clip_client.dedup.text import why_unreadable
from clip_client.dedup.types import FailedFile

_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a file holds, as far as its bytes say."""

    path: str
    sha256: str
    """Hexadecimal."""
    size_bytes: int


def sha256_of(path: str) -> str:
    """Return the SHA-256 of a file; empty for a file that is empty or cannot be read."""
    content = hash_file(path)
    return content.sha256 if isinstance(content, Content) else ""


def hash_file(path: str) -> Content | FailedFile:
    """Read the whole file once, in pieces; a file that cannot be read comes back as a failure, never as an exception.

    The path may have become something else since it was scanned, so it is opened without waiting for a writer, and
    checked again once it is open.
    """
    try:
        with open(_opened(path), "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return FailedFile(path=path, code="UNREADABLE", message="This is not a regular file.")
            digest, size_bytes = hashlib.sha256(), 0
            while piece := file.read(_CHUNK_BYTES):
                digest.update(piece)
                size_bytes += len(piece)
    except (OSError, ValueError) as error:
        return FailedFile(path=path, code="UNREADABLE", message=why_unreadable(error))
    if size_bytes == 0:
        return FailedFile(path=path, code="EMPTY", message="The file is empty.")
    return Content(path=path, sha256=digest.hexdigest(), size_bytes=size_bytes)


def _opened(path: str) -> int:
    """Open a file for reading; if the system lets us, its time of access stays as it is."""
    # O_NONBLOCK and O_BINARY exist on some systems only; a FIFO blocks nobody who opens it with the first.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # Linux allows O_NOATIME to the owner of the file only
        return os.open(path, flags)

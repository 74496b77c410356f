"""A photo's file as it was when it was examined."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FileVersion(os.PathLike[str]):
    """A path with the size and time that show whether the file has changed; a client embeds it like a path."""

    path: str
    """Absolute; a name that is not UTF-8 is kept with surrogateescape."""
    size_bytes: int | None = None
    mtime_ns: int | None = None
    """Modification time; None, like the size, if the file could not be examined."""

    def __fspath__(self) -> str:
        return self.path

    @classmethod
    def of(cls, path: str) -> FileVersion:
        """Examine a file; one that cannot be examined has neither size nor time."""
        try:
            status = os.stat(path)
        except OSError:
            return cls(path=os.path.abspath(path))
        return cls(path=os.path.abspath(path), size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)

    @property
    def key(self) -> bytes:
        """A 16-byte hash of path, size and time; small, because a million of them are held at once."""
        return version_key(os.fsencode(self.path), self.size_bytes, self.mtime_ns)


def version_key(path: bytes, size_bytes: int | None, mtime_ns: int | None) -> bytes:
    """Return :attr:`FileVersion.key` for its parts."""
    return hashlib.blake2b(b"%s\0%r\0%r" % (path, size_bytes, mtime_ns), digest_size=16).digest()

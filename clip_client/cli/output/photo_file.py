"""A photo as it lies on the disk: its path, and what shows that it is still the same file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from clip_client.dedup import FailedFile


@dataclass(frozen=True, kw_only=True, slots=True)
class PhotoFile(os.PathLike[str]):
    """A path with the file's size and time of change; a client embeds it as it would the path."""

    path: str
    """Absolute; a name that is not UTF-8 is kept with surrogateescape."""
    size_bytes: int | None = None
    mtime_ns: int | None = None
    """Time of the last change; like the size None where the file could not be looked at."""

    def __fspath__(self) -> str:
        """Make this a path like any other."""
        return self.path

    @classmethod
    def never_seen(cls, path: str) -> Self:
        """Name a file that the file system would not show, or that is none to read."""
        return cls(path=os.path.abspath(path))

    @classmethod
    def look_at(cls, path: str) -> Self:
        """Ask the file system; what cannot be looked at has neither size nor time."""
        try:
            status = os.stat(path)
        except OSError:
            return cls.never_seen(path)
        return cls(path=os.path.abspath(path), size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)

    @property
    def key(self) -> bytes:
        """16 bytes that stand for path, size and time: a million of them are held at once."""
        return file_key(os.fsencode(self.path), self.size_bytes, self.mtime_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class PhotoRow:
    """What became of one photo: either ``vector`` or ``failure`` is set."""

    file: PhotoFile
    vector: NDArray[np.float32] | None = None
    """Shape (D,)."""
    failure: FailedFile | None = None


def file_key(path: bytes, size_bytes: int | None, mtime_ns: int | None) -> bytes:
    """:attr:`PhotoFile.key` of its parts."""
    return hashlib.blake2b(b"%s\0%r\0%r" % (path, size_bytes, mtime_ns), digest_size=16).digest()

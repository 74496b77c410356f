"""The content hash of a file: files with the same hash have the same bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.reading import open_file
from clip_client.dedup.text import why_unreadable
from clip_client.dedup.types import FailedFile

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Content:
    """The bytes of a file, by their hash."""

    path: str
    sha256: str
    """Hexadecimal."""
    size_bytes: int


def hash_file(path: str) -> Content | FailedFile:
    """Hash a file of any size, in pieces. A failure is returned, not raised."""
    try:
        with open_file(path) as file:
            digest, size_bytes = hashlib.sha256(), 0
            while piece := file.read(_CHUNK_BYTES):
                digest.update(piece)
                size_bytes += len(piece)
    except (OSError, ValueError) as error:
        return FailedFile(path=path, code="UNREADABLE", message=why_unreadable(error))
    if size_bytes == 0:
        return FailedFile(path=path, code="EMPTY", message="The file is empty.")
    return Content(path=path, sha256=digest.hexdigest(), size_bytes=size_bytes)


def sha256_of(path: str) -> str:
    """Return the SHA-256 of a file; empty for a file that is empty or cannot be read."""
    content = hash_file(path)
    return content.sha256 if isinstance(content, Content) else ""


def has_sha256(path: str, sha256: str) -> bool:
    """Tell whether a file has the content of this SHA-256; False for a file that is empty or cannot be read."""
    return bool(sha256) and sha256_of(path) == sha256


def hash_files(paths: Iterable[str]) -> dict[str, str]:
    """Return path -> SHA-256 of each file. Raises OSError, whose text is a sentence for people, for one that fails."""
    found = {}
    for path in paths:
        content = hash_file(path)
        if isinstance(content, FailedFile):
            raise OSError(f"{path}: {content.message}")
        found[path] = content.sha256
    return found

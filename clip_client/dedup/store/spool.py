"""Bytes by key in a file without a name, which ends with the process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

_MOST_BYTES: Final = 4 * 2**30


class Spool(Mapping[str, bytes]):
    """Bytes that need not be kept, in a file; a context manager. Many threads may use it.

    What no longer fits on the disk, or makes the file larger than 4 GiB, is not kept.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)
        self._places: dict[str, tuple[int, int]] = {}
        """Key -> where its bytes begin, and how many there are."""
        self._end = 0
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __getitem__(self, key: str) -> bytes:
        with self._lock:
            start, size = self._places[key]
            self._file.seek(start)
            return self._file.read(size)

    def put(self, key: str, data: bytes) -> None:
        """Keep the bytes of a key, if there is room for them."""
        with self._lock:
            if self._end + len(data) > _MOST_BYTES:
                return
            try:
                self._file.seek(self._end)
                self._file.write(data)
                self._file.flush()
            except OSError:
                self._end = _MOST_BYTES  # the disk is full
            else:
                self._places[key] = self._end, len(data)
                self._end += len(data)

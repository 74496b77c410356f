"""Bytes by key in a file without a name, which ends with the process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self

_MOST_BYTES: Final = 4 * 2**30


class Spool(Mapping[str, bytes]):
    """Bytes that need not be kept, in a file; a context manager. Many threads may use it.

    What no longer fits on the disk, or makes the file larger than 4 GiB, is not kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._places: dict[str, tuple[int, int]] = {}
        """Key -> where its bytes begin, and how many there are."""
        self._end = 0
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __getitem__(self, key: str) -> bytes:
        with self._lock:
            start, size = self._places[key]
            assert self._file is not None
            self._file.seek(start)
            return self._file.read(size)

    def put(self, key: str, data: bytes) -> None:
        """Keep the bytes of a key, if there is room for them."""
        with self._lock:
            if self._end + len(data) > _MOST_BYTES:
                return
            written = 0
            with suppress(OSError):  # the disk is full, or the folder must not be written to
                if self._file is None:
                    # Without a buffer, of which a rest would fail again when the file is closed.
                    self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
                self._file.seek(self._end)
                written = self._file.write(data)
            if written == len(data):
                self._places[key] = self._end, written
                self._end += written
            else:
                self._end = _MOST_BYTES

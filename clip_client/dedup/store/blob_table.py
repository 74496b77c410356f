"""Bytes by key, for the data of the alignment. Each photo takes about 100 kB, so few photos are in memory at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO, Final, Self

from clip_client._storage.sqlite import Database, Tables

_MOST_BYTES: Final = 4 * 2**30


class BlobTable(Tables):
    """The bytes that one version of an algorithm made. The table is a cache: what is lost is computed again."""

    def __init__(self, database: Database, version: str) -> None:
        super().__init__(database)
        self._version = version

    def __contains__(self, key: str) -> bool:
        question = "SELECT 1 FROM blobs WHERE version = ? AND key = ?"
        return self._connection.execute(question, (self._version, bytes.fromhex(key))).fetchone() is not None

    def get(self, key: str) -> bytes | None:
        question = "SELECT data FROM blobs WHERE version = ? AND key = ?"
        found = self._connection.execute(question, (self._version, bytes.fromhex(key))).fetchone()
        return None if found is None else found[0]

    def put(self, rows: Iterable[tuple[str, bytes]]) -> None:
        blobs = ((self._version, bytes.fromhex(key), data) for key, data in rows)
        self._write("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", blobs)


class Spool(Mapping[str, bytes]):
    """Bytes of one search in a temporary file, for many threads; at most 4 GiB, and what fits on the disk, are kept."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0
        self._lock = Lock()
        self._file: IO[bytes] | None = None
        with suppress(OSError):  # the folder is full, or must not be written to
            # Without a buffer: closing the file would write the rest of a buffer, which fails on a full disk.
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)

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
        with self._lock:
            if self._file is None or self._end + len(data) > _MOST_BYTES:
                return
            written = 0
            with suppress(OSError):  # the disk is full
                self._file.seek(self._end)
                written = self._file.write(data)
            if written == len(data):
                self._places[key] = self._end, written
                self._end += written
            else:
                self._end = _MOST_BYTES

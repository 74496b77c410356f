"""``cache.sqlite``: what is known of files and contents, and can be computed again; and the pictures of one search."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import IO, Final

from clip_client._storage.sqlite import Database, Tables

_EARLIER: Final = (
    ("files.sqlite", 2, "files", "path, size_bytes, mtime_ns, sha256, ctime_ns"),
    ("copies.sqlite", 3, "copies", "sha256, picture"),
    ("keypoints/*-align-*.sqlite", 1, "blobs", ":name AS version, key, data"),
    ("keypoints/*.sqlite", 0, "", ""),
)
"""Files of earlier versions: names, and the format, table and columns taken over; not keypoints, which take 10 GB."""

_VERSIONS: Final = """
WITH RECURSIVE found (version) AS (
    SELECT min(version) FROM blobs
    UNION ALL SELECT (SELECT min(version) FROM blobs WHERE version > found.version) FROM found WHERE version NOT NULL
) SELECT version FROM found WHERE version NOT NULL
"""
"""Query for the versions in the table. It reads one row for each version: there may be a million keys."""
_MOST_BYTES: Final = 4 * 2**30


class BlobTable(Tables):
    """Bytes by key, which one version of an algorithm made: about 100 kB a photo, so few are in memory at a time."""

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


class Cache(Database):
    SCHEMA = files(__package__).joinpath("cache.sql").read_text("utf-8")
    DURABLE = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for name, version, table, columns in _EARLIER:
            for earlier in path.parent.glob(name):
                with suppress(sqlite3.DatabaseError):
                    self._connection.execute("ATTACH ? AS earlier", (os.fsencode(earlier),))
                    if self._connection.execute("PRAGMA earlier.user_version").fetchone() == (version,):
                        statement = f"INSERT OR IGNORE INTO main.{table} SELECT {columns} FROM earlier.{table}"
                        self._write(statement, [{"name": earlier.stem}])
                with suppress(sqlite3.OperationalError):  # the file was not a database
                    self._connection.execute("DETACH earlier")
                for file in earlier.parent.glob(f"{earlier.name}*"):
                    with suppress(OSError):  # Windows cannot remove a file that another process uses
                        file.unlink()
        with suppress(OSError):
            path.with_name("keypoints").rmdir()

    def other_versions(self, *versions: str) -> list[str]:
        return [version for (version,) in self._connection.execute(_VERSIONS) if version not in versions]

    def blob_tables(self, *versions: str) -> list[BlobTable]:
        if outdated := self.other_versions(*versions):
            self._write("DELETE FROM blobs WHERE version = ?", [(version,) for version in outdated])
            with suppress(sqlite3.OperationalError):  # another process is writing, or the disk is full
                self._connection.execute("VACUUM")
        return [BlobTable(self, version) for version in versions]


class Spool(Mapping[str, bytes], AbstractContextManager["Spool"]):
    """Bytes of one search in a temporary file, for many threads; ``most_bytes``, or what fits on the disk, are kept."""

    def __init__(self, folder: Path, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0
        self._lock = Lock()
        self._file: IO[bytes] | None = None
        with suppress(OSError):  # the folder is full, or must not be written to
            # Without a buffer: closing the file would write the rest of a buffer, which fails on a full disk.
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)

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
            if self._file is None or self._end + len(data) > self._most_bytes:
                return
            written = 0
            with suppress(OSError):  # the disk is full
                self._file.seek(self._end)
                written = self._file.write(data)
            if written == len(data):
                self._places[key] = self._end, written
                self._end += written
            else:
                self._end = self._most_bytes

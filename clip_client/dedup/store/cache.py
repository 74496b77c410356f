"""``cache.sqlite``: what is known of files and contents, and can be computed again."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Final

from clip_client._storage.sqlite import Database
from clip_client.dedup.store.blob_table import BlobTable

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

"""The content of each file when it was last read, by path, size and modification time."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from clip_client.dedup.store.sqlite import Database
from clip_client.dedup.types import PhotoFile

_AT_ONCE: Final = 900
"""Paths in one query; old versions of SQLite allow 999 values."""


class FileIndex(Database):
    """A table in the store. It may be lost at any time: then all files are read once more."""

    SCHEMA = """
    CREATE TABLE IF NOT EXISTS files (
        path BLOB PRIMARY KEY, size_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, sha256 BLOB NOT NULL
    ) WITHOUT ROWID
    """
    DURABLE = False

    def known(self, files: Sequence[PhotoFile]) -> dict[str, str]:
        """Return path -> SHA-256 (hexadecimal) of those files whose size and time of change are as they were."""
        found = {}
        for start in range(0, len(files), _AT_ONCE):
            by_name = {os.fsencode(os.path.abspath(file.path)): file for file in files[start : start + _AT_ONCE]}
            question = f"SELECT * FROM files WHERE path IN ({', '.join('?' * len(by_name))})"
            for name, size_bytes, mtime_ns, sha256 in self._connection.execute(question, list(by_name)):
                file = by_name[name]
                if (file.size_bytes, file.mtime_ns) == (size_bytes, mtime_ns):
                    found[file.path] = sha256.hex()
        return found

    def paths_of(self, contents: Collection[str]) -> dict[str, list[str]]:
        """Return SHA-256 (hexadecimal) -> the paths at which files with this content were last seen."""
        # Made when it is first needed, so that earlier programs can still use the file.
        self._connection.execute("CREATE INDEX IF NOT EXISTS files_by_content ON files (sha256)")
        keys = [bytes.fromhex(sha256) for sha256 in contents]
        found: dict[str, list[str]] = {sha256: [] for sha256 in contents}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            question = f"SELECT path, sha256 FROM files WHERE sha256 IN ({', '.join('?' * len(some))}) ORDER BY path"
            for name, sha256 in self._connection.execute(question, some):
                found[sha256.hex()].append(os.fsdecode(name))
        return found

    def contents_below(self, folder: str) -> set[str]:
        """Return the SHA-256 (hexadecimal) of the files that were last seen in a folder and below it."""
        first = os.path.join(os.fsencode(os.path.abspath(folder)), b"")
        question = "SELECT sha256 FROM files WHERE path >= ? AND path < ?"
        # The separator is one byte, so the next one is where the names of other folders begin.
        after = first[:-1] + bytes([first[-1] + 1])
        return {sha256.hex() for (sha256,) in self._connection.execute(question, (first, after))}

    def sha256_of(self, path: str, hash_file: Callable[[str], str]) -> str:
        """Return the SHA-256 of one file: the known one, or, if the file has changed since, that of ``hash_file``.

        Empty for a file that is empty or cannot be read.
        """
        try:
            status = os.stat(path)
        except OSError:
            return ""
        file = PhotoFile(path, status.st_size, status.st_mtime_ns)
        known = self.known([file]).get(path)
        if known is None and (known := hash_file(path)):
            self.remember([(file, known)])
        return known or ""

    def remember(self, files: Iterable[tuple[PhotoFile, str]]) -> None:
        """Write down the SHA-256 (hexadecimal) of files as they were when they were read."""
        rows = [
            (os.fsencode(os.path.abspath(file.path)), file.size_bytes, file.mtime_ns, bytes.fromhex(sha256))
            for file, sha256 in files
        ]
        if rows:
            self._write("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", rows)

"""Rows on disk that only this process reads, so that their number takes no memory."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar


class PrivateDatabase:
    """A SQLite file without a name, which ends with this object or its process. Threads may share it."""

    schema: ClassVar[str]

    def __init__(self) -> None:
        # An empty name is a file that SQLite removes itself. The lock lets one thread at a time use the connection.
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._lock = threading.RLock()
        self._connection.executescript(f"PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; {self.schema}")

    def close(self) -> None:
        """Close the file, which removes it."""
        with self._lock:
            self._connection.close()

    def _rows(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all of the block, or nothing."""
        with self._lock, self._connection:
            self._connection.execute("BEGIN")
            yield self._connection

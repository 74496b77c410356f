"""SQLite files that several processes can use at the same time and that survive a crash at any moment."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar, Final

from clip_client._storage.file_system import network_file_system
from preprocess_ensemble.errors import ReportedError

_BUSY_S: Final = 60.0
"""Longest wait for another process's transaction, which takes milliseconds."""

_TURN_S: Final = 0.01  # pause between two attempts where SQLite itself does not wait
_KEYS_AT_ONCE: Final = 900  # values in one query; old versions of SQLite allow 999


class StoreError(ReportedError):
    """The store cannot be used; ``message`` is one sentence that says what to do.

    With ``or_other``, the text also advises another store.
    """

    def __init__(self, message: str, *, or_other: bool = False) -> None:
        super().__init__(f"{message}, or choose another folder with --store" if or_other else message)
        self.message = message


class Database:
    """One SQLite file of a store. A change is on the disk when the method that makes it returns, if ``DURABLE``."""

    SCHEMA: ClassVar[str]
    """Statements that make what is missing in a new file or an earlier version's: ``IF NOT EXISTS``."""
    VERSION: ClassVar[int] = 1
    DURABLE: ClassVar[bool] = True
    """If False, a power failure may lose the last changes, but never corrupts the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RLock()
        with ExitStack() as on_error:
            try:
                # Several threads use the connection, one at a time, because a search waits in worker threads. The
                # connection never begins a transaction by itself.
                connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
                on_error.callback(connection.close)
                self._connection = connection
                # Processes share memory for a write-ahead log, and a network file system does not share memory.
                _set_journal_mode(connection, "DELETE" if network_file_system(path.parent) else "WAL")
                connection.execute(f"PRAGMA synchronous = {'FULL' if self.DURABLE else 'NORMAL'}")
                # Without this, macOS leaves what it writes in the memory of the disk. Other systems ignore it.
                connection.execute(f"PRAGMA fullfsync = {self.DURABLE}")
                (found,) = connection.execute("PRAGMA user_version").fetchone()
                if found > self.VERSION:
                    raise other_version(path, found, self.VERSION)
                if found < self.VERSION:
                    connection.executescript(
                        f"BEGIN IMMEDIATE; {self.SCHEMA}; PRAGMA user_version = {self.VERSION}; COMMIT"
                    )
            except sqlite3.Error as error:
                if isinstance(error, sqlite3.OperationalError):  # the disk or a permission; the file itself is intact
                    remedy = "make its folder writable, with space for it"
                else:
                    remedy = f"move it away to start again{', which loses its content' if self.DURABLE else ''}"
                raise StoreError(f"{path} cannot be used ({error}); {remedy}", or_other=True) from error
            on_error.pop_all()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the whole block at its end, or nothing; other processes wait with their writes.

        A transaction inside another one of the same thread is a part of it; another thread waits. Raises StoreError if
        the disk cannot be written.
        """
        with self._lock:
            is_part = self._connection.in_transaction
            if is_part:
                yield
                return
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:  # SQLite may have rolled back by itself
                    with suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")
                if not isinstance(error, sqlite3.OperationalError):
                    raise
                raise StoreError(f"{self.path} cannot be written ({error}); free some space on its disk") from error

    def _found(self, question: str, keys: Sequence[object]) -> Iterator[Any]:
        """Yield the rows of a query with ``IN ({})``, in which ``{}`` stands for any number of keys."""
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            yield from self._connection.execute(question.format(", ".join("?" * len(some))), some)

    def _write(self, statement: str, rows: Iterable[Sequence[object] | Mapping[str, object]]) -> int:
        """Run a statement for each of ``rows`` in one transaction; return the number of table rows that it changed."""
        with self.transaction():
            return self._connection.executemany(statement, rows).rowcount


class Tables:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection = database._connection
        self.transaction = database.transaction
        self._found = database._found
        self._write = database._write


def other_version(path: Path, found: int, known: int) -> StoreError:
    age = "an older" if found < known else "a newer"
    return StoreError(
        f"{path} was made by {age} version of clip-client (format {found}, this one knows {known}); use that version",
        or_other=True,
    )


def _set_journal_mode(connection: sqlite3.Connection, mode: str) -> None:
    """Set the journal mode: ``WAL`` lets readers and one writer work at the same time.

    If several processes do this to a new file at the same moment, SQLite refuses all but one, because each is already
    reading and would wait for the others. A refused process tries again.
    """
    give_up_at = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(_TURN_S)
        else:
            return

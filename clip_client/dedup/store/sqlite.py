"""SQLite files that several processes can use at the same time and that survive a crash at any moment."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_BUSY_S: Final = 60.0
"""How long to wait for another process's transaction; each takes milliseconds."""

_TURN_S: Final = 0.01
"""Pause between two attempts where SQLite itself does not wait."""


class StoreError(ReportedError):
    """The store cannot be used; the message is one sentence that says what to do."""


def open_database(
    path: Path,
    schema: str,
    *,
    version: int,
    durable: bool,
    upgrades: Mapping[int, str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> sqlite3.Connection:
    """Open the database at ``path``, or make it.

    ``schema`` runs if the file has an older version, so each statement needs ``IF NOT EXISTS``. ``upgrades`` maps a
    version to the statements that a file of the version before it needs beyond the schema. With ``durable`` a commit is
    on the disk when it returns; without it a power failure may lose the last commits, but never corrupts the file. The
    connection never begins a transaction by itself: use :func:`transaction`. Raises StoreError.
    """
    import sqlite3

    try:
        # Used by several threads, but only by one at a time: a search waits in worker threads.
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise StoreError(f"{path.name} of the store {path.parent} cannot be opened: {error}") from error
    with ExitStack() as on_error:
        on_error.callback(connection.close)
        try:
            _use_wal(connection, sleep)
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found > version:
                raise StoreError(
                    f"{path} was made by a newer version of clip-client (format {found}, this one knows {version}); "
                    "update clip-client, or choose another folder with --store"
                )
            if found < version:
                with transaction(connection):
                    # Again: another process may have upgraded the file while this one waited for its turn.
                    (found,) = connection.execute("PRAGMA user_version").fetchone()
                    needed = [text for number, text in (upgrades or {}).items() if 0 < found < number]
                    for statement in filter(str.strip, ";".join((schema, *needed)).split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {version}")
        except sqlite3.Error as error:
            if isinstance(error, sqlite3.OperationalError):  # the disk or a permission; the file itself is intact
                remedy = "make its folder writable"
            else:
                remedy = f"move it away to start again{', which loses its content' if durable else ''}"
            message = f"{path} cannot be used ({error}); {remedy}, or choose another folder with --store"
            raise StoreError(message) from error
        on_error.pop_all()
    return connection


def _use_wal(connection: sqlite3.Connection, sleep: Callable[[float], None]) -> None:
    """Let readers and one writer work at the same time.

    If several processes do this to a new file at the same moment, SQLite refuses all but one immediately, because each
    of them is already reading and would wait for the others.
    """
    import sqlite3

    give_up_at = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            sleep(_TURN_S)
        else:
            return


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all of the block at its end, or nothing; no other process writes at the same time.

    Raises StoreError if the disk cannot be written.
    """
    import sqlite3

    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:  # SQLite may have rolled back by itself
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        if not isinstance(error, sqlite3.OperationalError):
            raise
        _, _, path = connection.execute("PRAGMA database_list").fetchone()
        raise StoreError(f"{path} cannot be written ({error}); free some space on its disk") from error

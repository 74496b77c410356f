"""SQLite files that several processes use at once and that survive a crash at any moment."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

_BUSY_S: Final = 60.0
"""How long one process waits for another one's transaction; each takes milliseconds."""

_TURN_S: Final = 0.01
"""Between two tries where SQLite itself does not wait."""


class StoreError(ReportedError):
    """The store cannot be used; the text is one sentence for people, with the way out."""


def open_database(path: Path, schema: str, *, version: int, durable: bool) -> sqlite3.Connection:
    """Open or make the database at ``path``.

    ``schema`` is run where tables are missing, so it says ``IF NOT EXISTS`` throughout. With ``durable`` a commit is
    on the disk when it returns; without it a power cut may take the last commits, but never the file's soundness.
    The connection begins transactions by itself for nobody: use :func:`transaction`. Raises StoreError.
    """
    import sqlite3

    try:
        # Threads take turns: a search does its waiting in worker threads, one at a time.
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise StoreError(f"the store's {path.name} cannot be opened in {path.parent}: {error}") from error
    try:
        _use_wal(connection)
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > version:
            raise StoreError(
                f"{path} was made by a newer version of clip-client (format {found}, this one knows {version}); "
                "update clip-client, or name another folder with --store"
            )
        if found < version:
            with transaction(connection):
                for statement in filter(str.strip, schema.split(";")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version}")
    except sqlite3.OperationalError as error:  # a disk or a permission; the file itself is sound
        connection.close()
        raise StoreError(
            f"{path} cannot be used ({error}); see that its folder can be written, or name another one with --store"
        ) from error
    except sqlite3.Error as error:
        connection.close()
        lost = ", which forgets what it holds" if durable else ""
        raise StoreError(
            f"{path} cannot be used ({error}); move it away to start anew{lost}, or name another folder with --store"
        ) from error
    except StoreError:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work side by side.

    Of processes that do this to a new file at one moment SQLite refuses all but one at once, however long they would
    wait: each has begun to read and would wait for the others to end.
    """
    import sqlite3

    give_up_at = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(_TURN_S)
        else:
            return


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block is committed at its end, or none of it; no other process writes meanwhile.

    Raises StoreError where the disk takes no more.
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
        raise StoreError(f"{path} cannot be written ({error}); make room on its disk") from error

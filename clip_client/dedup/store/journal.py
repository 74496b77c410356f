"""What was done to files, written down before it is done, so that all of it can be undone.

The journal knows *units*: a photo and what belongs to it, such as its RAW file. A unit goes through these states::

    planned -> moved -> restoring -> restored
       |         `----> purging   -> purged
       `-> abandoned

The left one of each pair is written before the first file is touched. A unit that is found in ``planned``,
``restoring`` or ``purging`` belongs to a process that died, or is at work just now: an exclusive lock on the journal
tells which. ``restored`` and ``purged`` are left for good.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.store.sqlite import StoreError, open_database, transaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PLANNED: Final = "planned"
MOVED: Final = "moved"
ABANDONED: Final = "abandoned"
RESTORING: Final = "restoring"
RESTORED: Final = "restored"
PURGING: Final = "purging"
PURGED: Final = "purged"

IN_QUARANTINE: Final = (PLANNED, MOVED, RESTORING, PURGING)
"""States in which a file of the unit may lie in the quarantine."""

_VERSION: Final = 2
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS units (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, at_ns INTEGER NOT NULL, method TEXT NOT NULL, state TEXT NOT NULL,
    survivor BLOB NOT NULL, survivor_sha256 TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS units_by_state ON units (state);
CREATE TABLE IF NOT EXISTS files (
    unit INTEGER NOT NULL REFERENCES units (id), original BLOB NOT NULL, quarantined BLOB NOT NULL,
    sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL, atime_ns INTEGER NOT NULL, mtime_ns INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS files_by_unit ON files (unit);
CREATE INDEX IF NOT EXISTS files_by_original ON files (original);
CREATE TABLE IF NOT EXISTS sidecars (
    unit INTEGER NOT NULL REFERENCES units (id), path BLOB NOT NULL, sha256 TEXT NOT NULL, is_ours INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS sidecars_by_unit ON sidecars (unit);
CREATE INDEX IF NOT EXISTS sidecars_by_path ON sidecars (path)
"""


@dataclass(frozen=True, kw_only=True)
class MovedFile:
    """One file of a unit: where it was, where it went, and what it was before anybody read it."""

    original: str
    quarantined: str
    sha256: str
    size_bytes: int
    atime_ns: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """A sidecar beside the kept photo that says what only the moved photo said before."""

    path: str
    """Absolute."""
    sha256: str
    is_ours: bool
    """It was written for moved photos; else it was there before them."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Files that move together. The photo comes first, then what belongs to it."""

    id: int
    run: str
    """Names one call of ``dedup --apply``; sorts by time."""
    at_ns: int
    """When it was planned, nanoseconds since 1970."""
    method: str
    """``"quarantine"`` or ``"hardlink"``."""
    state: str
    survivor: str
    """Path of the photo that was kept instead."""
    survivor_sha256: str
    files: tuple[MovedFile, ...]
    sidecars: tuple[Sidecar, ...] = ()
    """What has to stay beside the kept photo while the unit is away."""


def new_run() -> str:
    """Return a name for a run: its time for people, and letters that make it unique over all stores."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"


class Journal:
    """The journal in one store folder; one thread's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection = open_database(path, _SCHEMA, version=_VERSION, durable=True)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Hold the right to touch files while the block runs; one process of all that use this store has it.

        The lock is the operating system's and ends with the process, however that ends. Raises StoreError where
        another process holds it, and where the file cannot be locked.
        """
        path = self._path.with_suffix(".lock")
        with ExitStack() as held:
            try:
                is_ours = _lock(held.enter_context(open(path, "a+b")).fileno())
            except OSError as error:
                raise StoreError(
                    f"{path} cannot be locked: {error.strerror}; name another folder with --store"
                ) from None
            if not is_ours:
                raise StoreError("another clip-client is moving files with this store; wait until it has finished")
            yield

    def plan(
        self,
        *,
        run: str,
        method: str,
        survivor: str,
        survivor_sha256: str,
        files: Sequence[MovedFile],
        sidecars: Sequence[Sidecar] = (),
    ) -> Unit:
        """Write down what is about to happen; on the disk when this returns."""
        at_ns = time.time_ns()
        with transaction(self._connection):
            cursor = self._connection.execute(
                "INSERT INTO units (run, at_ns, method, state, survivor, survivor_sha256) VALUES (?, ?, ?, ?, ?, ?)",
                (run, at_ns, method, PLANNED, os.fsencode(survivor), survivor_sha256),
            )
            number = int(cursor.lastrowid or 0)
            self._connection.executemany(
                "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        number,
                        os.fsencode(file.original),
                        os.fsencode(file.quarantined),
                        file.sha256,
                        file.size_bytes,
                        file.atime_ns,
                        file.mtime_ns,
                    )
                    for file in files
                ],
            )
            self._connection.executemany(
                "INSERT INTO sidecars VALUES (?, ?, ?, ?)",
                [(number, os.fsencode(sidecar.path), sidecar.sha256, sidecar.is_ours) for sidecar in sidecars],
            )
        return Unit(
            id=number,
            run=run,
            at_ns=at_ns,
            method=method,
            state=PLANNED,
            survivor=survivor,
            survivor_sha256=survivor_sha256,
            files=tuple(files),
            sidecars=tuple(sidecars),
        )

    def mark(self, unit: Unit, state: str) -> Unit:
        """Write down the state that a unit has reached, or is about to leave; on the disk when this returns."""
        with transaction(self._connection):
            self._connection.execute("UPDATE units SET state = ? WHERE id = ?", (state, unit.id))
        return replace(unit, state=state)

    def units(self, states: Sequence[str], *, run: str | None = None, original: str | None = None) -> list[Unit]:
        """Return the units in any of ``states``, oldest first; of one run, or those that hold one file."""
        wanted = f"SELECT * FROM units WHERE state IN ({', '.join('?' * len(states))})"
        values: list[object] = list(states)
        if run is not None:
            wanted += " AND run = ?"
            values.append(run)
        if original is not None:
            wanted += " AND id IN (SELECT unit FROM files WHERE original = ?)"
            values.append(os.fsencode(original))
        return [self._unit(row) for row in self._connection.execute(f"{wanted} ORDER BY id", values).fetchall()]

    def sidecars(self, path: str) -> list[tuple[int, Sidecar]]:
        """Return the units that need the sidecar at ``path`` (``Unit.id``), and how each has noted it."""
        states = (*IN_QUARANTINE, PURGED)
        rows = self._connection.execute(
            "SELECT unit, path, sha256, is_ours FROM sidecars JOIN units ON units.id = unit "
            f"WHERE path = ? AND state IN ({', '.join('?' * len(states))})",
            (os.fsencode(path), *states),
        )
        return [(number, _sidecar(row)) for number, *row in rows]

    def _unit(self, row: tuple[int, str, int, str, str, bytes, str]) -> Unit:
        number, run, at_ns, method, state, survivor, survivor_sha256 = row
        files = self._connection.execute("SELECT * FROM files WHERE unit = ? ORDER BY rowid", (number,))
        sidecars = self._connection.execute("SELECT path, sha256, is_ours FROM sidecars WHERE unit = ?", (number,))
        return Unit(
            id=number,
            run=run,
            at_ns=at_ns,
            method=method,
            state=state,
            survivor=os.fsdecode(survivor),
            survivor_sha256=survivor_sha256,
            files=tuple(
                MovedFile(
                    original=os.fsdecode(original),
                    quarantined=os.fsdecode(quarantined),
                    sha256=sha256,
                    size_bytes=size_bytes,
                    atime_ns=atime_ns,
                    mtime_ns=mtime_ns,
                )
                for _unit, original, quarantined, sha256, size_bytes, atime_ns, mtime_ns in files
            ),
            sidecars=tuple(map(_sidecar, sidecars)),
        )


def _sidecar(row: Sequence[Any]) -> Sidecar:
    path, sha256, is_ours = row
    return Sidecar(path=os.fsdecode(path), sha256=sha256, is_ours=bool(is_ours))


def _lock(descriptor: int) -> bool:
    """Take the lock of an open file at once; False where another process has it. Raises OSError without locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except PermissionError:
            return False
    else:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True

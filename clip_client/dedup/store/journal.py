"""The journal of file moves: each move is written down before it happens, so that it can be undone.

An entry is a photo and the companions that move with it, such as its RAW file. It goes through these states::

    planned -> moved -> restoring -> restored
       |         `----> purging   -> purged
       `-> abandoned

The state on the left of each arrow is written before the first file is touched. If a person chose the move, the
statement that writes ``moved`` or ``restored`` also says that the choice is done or undone: by a trigger.

An entry in ``planned``, ``restoring`` or ``purging`` belongs to a process that is working right now or was killed:
while it works, it holds the exclusive lock of the journal. ``restored``, ``purged`` and ``abandoned`` are final.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from clip_client._storage.lock import AlreadyLocked, exclusive_lock
from clip_client._storage.sqlite import Database, StoreError, Tables
from clip_client.dedup.store.choices import Choices
from clip_client.dedup.store.computer import this_computer


class State:
    PLANNED: Final = "planned"
    MOVED: Final = "moved"
    ABANDONED: Final = "abandoned"
    RESTORING: Final = "restoring"
    RESTORED: Final = "restored"
    PURGING: Final = "purging"
    PURGED: Final = "purged"


HARDLINK: Final = "hardlink"
"""Method of moves by the former option ``--hard-link``, which replaced the copy by a hard link to the kept photo."""
IN_QUARANTINE: Final = (State.PLANNED, State.MOVED, State.RESTORING, State.PURGING)

PROOF: Final = 6
"""Version of the proof by which photos move, recorded in each new entry. Raise it with any change that would have
refused an earlier move. Earlier versions proved less:

- 5 let the whole of a picture be sharpened two thirds more;
- 4 let chroma in busy blocks differ twice as much, and any black type hide colour; took a file's own steps for its
  limit however coarse they are; told the source of two equal files by the steps of one; and let a picture be sharpened
  as a whole by as much as each of its blocks hides.
- 3 moved re-encoded copies without the law of ``dedup/proof``.
- 2 compared the pixels and profiles that Pillow reports.
- 1 moved copies for any file with the metadata of a camera.
- 0, of versions without a number, compared photos at a reduced size only.
"""

_RUN_TIME: Final = "%Y%m%d-%H%M%S"
LONGEST_RUN: Final = "00000000-000000-00000000"
_LAST_RUN: Final = (
    "SELECT max(name) FROM (SELECT name FROM runs UNION ALL SELECT run FROM units) "
    "WHERE name GLOB '[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]-[0-9][0-9][0-9][0-9][0-9][0-9]-*'"
)
_COLUMNS: Final = "id run at_ns method state kept kept_sha256 tier proof is_chosen choice".split()
"""Fields of an entry, in the order of the columns of ``units``."""
_ENTRIES: Final = "SELECT units.*, coalesce(computer, '') FROM units LEFT JOIN runs ON name = run"


class MovedFile(NamedTuple):
    """One file of an entry: its old path, its path in the quarantine, and its size and times before it was read."""

    original: str
    quarantined: str
    sha256: str
    size_bytes: int
    atime_ns: int
    mtime_ns: int


class Folder(NamedTuple):
    """The mode and time of a folder before a move adds or removes names in it; they are restored after the move."""

    path: str
    mode: int
    mtime_ns: int


class Sidecar(NamedTuple):
    path: str
    sha256: str
    is_ours: bool
    """True if it was written for moved photos, False if it was there before."""


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """Files that move together: the photo first, then its companions."""

    id: int = 0
    run: str
    """Name of one call of ``dedup --apply``; names sort by time."""
    at_ns: int = field(default_factory=time.time_ns)
    method: str = "quarantine"
    state: str = State.PLANNED
    kept: str
    kept_sha256: str = ""
    tier: str = ""
    """Tier in which the kept photo showed the same; empty if an earlier version moved the photo."""
    proof: int = PROOF
    is_chosen: bool = False
    """True if a person chose this move: the photo may show more than the kept one."""
    choice: int | None = None
    computer: str = ""
    """The computer that moved the files; see :func:`.computer.this_computer`. Empty if an earlier version did."""
    files: tuple[MovedFile, ...]
    sidecars: tuple[Sidecar, ...] = ()
    """These have to stay beside the kept photo while the files are in the quarantine."""
    folders: tuple[Folder, ...] = ()


@contextmanager
def right_to_move(store: Path, *, wait_s: float = 0) -> Iterator[None]:
    """Hold the right to move files with a store. Raises StoreError if another process has it for ``wait_s`` seconds."""
    path = store / "journal.lock"
    try:
        lock = exclusive_lock(path, wait_s=wait_s)
    except AlreadyLocked:
        raise StoreError("another clip-client is moving files with this store; wait for it") from None
    except OSError as error:
        message = f"{path} cannot be locked ({error.strerror or error}); move the store to a local disk"
        raise StoreError(message, or_other=True) from None
    with lock:
        yield


class Journal(Tables):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.choices = Choices(database)
        self._is_held = False

    @property
    def directory(self) -> Path:
        return self._database.path.parent

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold :func:`right_to_move` for the duration of the block; inside the block, a second call does nothing."""
        if self._is_held:
            yield
            return
        with right_to_move(self.directory):
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False

    def new_run(self) -> str:
        """Return a name for a run that is unique across all stores and sorts after earlier runs of this store."""
        now = datetime.now().replace(microsecond=0)
        with self.transaction():
            (last,) = self._connection.execute(_LAST_RUN).fetchone()
            with suppress(ValueError, TypeError):  # this is the first run, or the last name is not a date
                now = max(now, datetime.strptime(last[:15], _RUN_TIME) + timedelta(seconds=1))
            name = f"{now:{_RUN_TIME}}-{uuid.uuid4().hex[:8]}"
            self._connection.execute("INSERT INTO runs VALUES (?, ?)", (name, this_computer()))
        return name

    def plan(self, entry: JournalEntry, left_behind: Sequence[str] = ()) -> JournalEntry:
        """Record a move before it happens; return the entry with its id. It is on the disk when this returns.

        ``left_behind`` holds the paths of companions that stay because they belong to another photo, too. A companion
        that moves with the last such photo belongs to the entries of all of them, and is restored with the first.
        """
        row = [getattr(entry, name) for name in _COLUMNS[1:]]
        row[_COLUMNS.index("kept") - 1] = os.fsencode(entry.kept)
        with self.transaction():
            number = self._connection.execute(f"INSERT INTO units VALUES (NULL, {_marks(row)})", row).lastrowid
            for file in entry.files:
                moved = os.fsencode(file.original), os.fsencode(file.quarantined), *file[2:]
                self._add("files", [(number, *moved)])
                sharing = self._connection.execute(
                    "SELECT unit, path FROM left_behind JOIN units ON id = unit WHERE path = ? AND state = ?",
                    (moved[0], State.MOVED),
                ).fetchall()
                self._connection.executemany("DELETE FROM files WHERE unit = ? AND original = ?", sharing)
                self._add("files", [(unit, *moved) for unit, _ in sharing])
            self._add("left_behind", [(os.fsencode(path), number) for path in left_behind])
            self._add("sidecars", [(number, os.fsencode(path), *rest) for path, *rest in entry.sidecars])
            self._add("folders", [(number, os.fsencode(path), *rest) for path, *rest in entry.folders])
        return self._entry(self._connection.execute(f"{_ENTRIES} WHERE id = ?", (number,)).fetchone())

    def _add(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            self._connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({_marks(rows[0])})", rows)

    def set_state(self, entry: JournalEntry, state: str, folders: Sequence[Folder] = ()) -> JournalEntry:
        with self.transaction():
            self._connection.execute("UPDATE units SET state = ? WHERE id = ?", (state, entry.id))
            self._add("folders", [(entry.id, os.fsencode(path), *rest) for path, *rest in folders])
        merged = {folder.path: folder for folder in (*entry.folders, *folders)}
        return replace(entry, state=state, folders=tuple(merged.values()))

    def is_shared(self, entry: JournalEntry, file: MovedFile) -> bool:
        found = self._connection.execute(
            "SELECT 1 FROM files JOIN units ON id = unit "
            f"WHERE original = ? AND quarantined = ? AND id != ? AND state IN ({_marks(IN_QUARANTINE)})",
            (os.fsencode(file.original), os.fsencode(file.quarantined), entry.id, *IN_QUARANTINE),
        )
        return found.fetchone() is not None

    def set_proved(self, entry: JournalEntry, tier: str) -> None:
        self._write("UPDATE units SET tier = ?, proof = ? WHERE id = ?", [(tier, PROOF, entry.id)])

    def entries(
        self, states: Sequence[str], *, run: str | None = None, original: str | None = None
    ) -> list[JournalEntry]:
        """Return entries in ``states``, oldest first; ``original`` is the path from which one of their files moved."""
        conditions, values = [f"state IN ({_marks(states)})"], list[object](states)
        if run is not None:
            conditions.append("run = ?")
            values.append(run)
        if original is not None:
            conditions.append("id IN (SELECT unit FROM files WHERE original = ?)")
            values.append(os.fsencode(original))
        rows = self._connection.execute(f"{_ENTRIES} WHERE {' AND '.join(conditions)} ORDER BY id", values)
        return list(map(self._entry, rows.fetchall()))

    def runs(self) -> dict[str, tuple[int, int]]:
        rows = self._connection.execute(  # a companion that two photos share counts once
            "SELECT run, count(DISTINCT id), sum(size_bytes) FROM units JOIN (SELECT max(unit) AS unit, size_bytes "
            f"FROM files JOIN units ON id = unit WHERE state IN ({_marks(IN_QUARANTINE)}) GROUP BY quarantined) "
            "ON unit = id GROUP BY run",
            IN_QUARANTINE,
        )
        return {run: (photos, size_bytes) for run, photos, size_bytes in rows}

    def moved_by_choices(self) -> dict[int, set[str]]:
        moved = defaultdict[int, set[str]](set)
        states = *IN_QUARANTINE, State.PURGED
        for choice, original in self._connection.execute(
            "SELECT choice, original FROM units JOIN files ON unit = id "
            f"WHERE choice IS NOT NULL AND state IN ({_marks(states)})",
            states,
        ):
            moved[choice].add(os.fsdecode(original))
        return moved

    def sidecars(self, path: str) -> list[tuple[int, Sidecar]]:
        rows = self._connection.execute(
            "SELECT unit, sha256, is_ours FROM sidecars JOIN units ON id = unit WHERE path = ? AND state NOT IN (?, ?)",
            (os.fsencode(path), State.RESTORED, State.ABANDONED),
        )
        return [(number, Sidecar(path, sha256, bool(is_ours))) for number, sha256, is_ours in rows]

    def _entry(self, row: Sequence[Any]) -> JournalEntry:
        def rows(table: str, columns: str) -> list[list[Any]]:
            question = f"SELECT {columns} FROM {table} WHERE unit = ?"
            return list(map(_decoded, self._connection.execute(question, row[:1])))

        return JournalEntry(
            **dict(zip((*_COLUMNS, "computer"), _decoded(row), strict=True)),
            files=tuple(MovedFile(*one[1:]) for one in rows("files", "*")),
            sidecars=tuple(Sidecar(*one) for one in rows("sidecars", "path, sha256, is_ours")),
            folders=tuple(Folder(*one) for one in rows("folders", "path, mode, mtime_ns")),
        )


def _decoded(row: Sequence[Any]) -> list[Any]:
    return [os.fsdecode(value) if isinstance(value, bytes) else value for value in row]


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))

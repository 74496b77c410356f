"""``history.sqlite``: moves, decisions, choices and settings, in one file, so that one transaction can change them."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final

from clip_client._storage.sqlite import Database, StoreError, other_version
from clip_client.dedup.store.choices import DONE, KEEP, UNDONE, WAITING, Choice, Choices
from clip_client.dedup.store.decisions import Decisions
from clip_client.dedup.store.journal import Journal, State, right_to_move
from clip_client.dedup.store.settings import Settings

_EARLIER: Final = {"journal.sqlite": (3, 4), "choices.sqlite": (2,), "decisions.sqlite": (1,), "settings.sqlite": (1,)}
"""Files of earlier versions, and the formats of each that are taken over."""
_NUMBERS: Final = frozenset({"id", "unit", "step", "decision"})
"""Columns with numbers of rows, which other rows may have here."""
_LAST_NUMBER: Final = (
    "SELECT max(number) FROM (SELECT max(id) AS number FROM units UNION SELECT max(id) FROM decisions "
    "UNION SELECT max(id) FROM choices UNION SELECT max(step) FROM choices)"
)
_BEGUN: Final = "begun"
"""State that earlier versions gave a choice while a run carried it out."""
_WAIT_S: Final = 60.0
"""Longest wait for another process that takes the same files over, in seconds."""

_Rows = tuple[str, list[str], list[Any]]
"""Name of a table, its columns, and its rows."""


class History(Database):
    """The moves, decisions, choices and settings of one store. A change is on the disk when the method returns."""

    # "taken_over" has the names of earlier files whose content is here and that still have to be renamed.
    SCHEMA = ";".join(
        (
            *(tables.SCHEMA for tables in (Journal, Choices, Decisions, Settings)),
            "CREATE TABLE IF NOT EXISTS taken_over (name TEXT PRIMARY KEY)",
        )
    )

    def __init__(self, path: Path) -> None:
        """Open the file at ``path``; take over the files that earlier versions kept beside it. Raises StoreError."""
        super().__init__(path)
        try:
            if self._earlier_files() or self._taken_over():
                with right_to_move(path.parent, wait_s=_WAIT_S):
                    self._take_over()
        except BaseException:
            self.close()
            raise

    def _earlier_files(self) -> list[Path]:
        """Return the files of earlier versions whose content is not here yet."""
        new = set(_EARLIER).difference(self._taken_over())
        return [file for name in _EARLIER if name in new and (file := self.path.with_name(name)).exists()]

    def _taken_over(self) -> list[str]:
        return [name for (name,) in self._connection.execute("SELECT name FROM taken_over")]

    def _take_over(self) -> None:
        """Copy the content of earlier files in one transaction, then rename them.

        A process that is killed leaves the rest to the next one. Files that an earlier version makes later are taken
        over, too.
        """
        files = self._earlier_files()
        found = [rows for file in files for rows in self._read(file)]
        with self.transaction():
            first = self._connection.execute(_LAST_NUMBER).fetchone()[0] or 0
            for table, columns, rows in found:
                values = ", ".join(f"? + {first}" if column in _NUMBERS else "?" for column in columns)
                statement = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({values})"
                self._connection.executemany(statement, rows)
            self._connection.executemany("INSERT INTO taken_over VALUES (?)", [(file.name,) for file in files])
            self._settle(first)
        for name in self._taken_over():
            file = self.path.with_name(name)
            if not file.exists() or _rename(file):
                self._write("DELETE FROM taken_over WHERE name = ?", [(name,)])

    def _settle(self, first: int) -> None:
        """Bring the states of choices above ``first`` up to date with the moves and decisions, and link these to them.

        Earlier versions wrote these one after the other, so a killed process may have left some of them behind.
        """
        made = defaultdict[tuple[str, frozenset[tuple[str, int]]], list[int]](list)
        for one in Decisions(self).all():
            made[one.what, frozenset(one.files.items())].append(one.id)
        for choice in [one for one in Choices(self).all() if one.id > first and one.state in (_BEGUN, DONE)]:
            if choice.what == KEEP:
                states = self._link(choice)
                is_undone = not states.isdisjoint((State.RESTORING, State.RESTORED))
                is_done = not states.isdisjoint((State.MOVED, State.PURGING, State.PURGED))
            else:
                files = Counter(photo.sha256 for photo in choice.photos)
                ids = made[choice.what, frozenset(files.items())]
                statement = "UPDATE decisions SET choice = ? WHERE id = ?"
                self._connection.executemany(statement, [(choice.id, number) for number in ids])
                is_undone, is_done = not ids and choice.state == DONE, bool(ids)
            state = UNDONE if is_undone else DONE if is_done or choice.state == DONE else WAITING
            statement = "UPDATE choices SET state = ?, run = iif(? = 'waiting', '', run) WHERE id = ?"
            self._connection.execute(statement, (state, state, choice.id))

    def _link(self, choice: Choice) -> set[str]:
        """Link the moves that carried out a choice to it, and return their states."""
        for photo in choice.photos:
            if photo.moves:
                self._connection.execute(
                    "UPDATE units SET choice = ? WHERE run = ? AND id IN (SELECT unit FROM files WHERE original = ?)",
                    (choice.id, choice.run, os.fsencode(photo.path)),
                )
        return {
            state for (state,) in self._connection.execute("SELECT state FROM units WHERE choice = ?", (choice.id,))
        }

    def _read(self, file: Path) -> list[_Rows]:
        """Read the tables of an earlier file that are still known."""
        found = []
        here = _columns(self._connection)
        try:
            with closing(sqlite3.connect(file)) as source:
                version, known = _format(source), _EARLIER[file.name]
                if version not in (0, *known):  # 0: the process that made the file was killed
                    raise other_version(file, version, known[-1])
                for table, columns in _columns(source).items():
                    if both := [column for column in columns if column in here.get(table, ())]:
                        rows = source.execute(f"SELECT {', '.join(both)} FROM {table}").fetchall()
                        found.append((table, both, rows))
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{file} cannot be used ({error}); restore it from a backup, move it away to start again, which loses "
                "its content, or choose another folder with --store"
            ) from error
        return found


def _columns(database: sqlite3.Connection) -> dict[str, list[str]]:
    """Return table -> names of its columns."""
    found: dict[str, list[str]] = {}
    for table, column in database.execute(
        "SELECT one.name, its.name FROM sqlite_master AS one, pragma_table_info(one.name) AS its "
        "WHERE one.type = 'table' AND one.name NOT GLOB 'sqlite_*'"
    ):
        found.setdefault(table, []).append(column)
    return found


def _format(database: sqlite3.Connection) -> int:
    found: int
    (found,) = database.execute("PRAGMA user_version").fetchone()
    return found


def _rename(file: Path) -> bool:
    """Give a file a new name, which has its format; return False if the system refuses that."""
    with closing(sqlite3.connect(file)) as source:
        name = f"{file.stem}-format-{_format(source)}"
    new = next(one for number in count(1) if not (one := file.with_name(f"{name}-{number}.sqlite")).exists())
    try:
        # Another process may still have the file open, so that a part of it is in its log.
        for log in ("-wal", ""):
            if os.path.exists(f"{file}{log}"):
                os.rename(f"{file}{log}", f"{new}{log}")
    except OSError:  # on Windows, a file that another process has open
        return False
    return True

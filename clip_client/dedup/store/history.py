"""``history.sqlite``: moves, decisions, choices and settings, in one file, so that one transaction can change them."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Final

from clip_client._storage.sqlite import Database, StoreError, other_version
from clip_client.dedup.store.choices import DONE, KEEP, UNDONE, WAITING, Choice, Choices
from clip_client.dedup.store.decisions import Decisions
from clip_client.dedup.store.journal import State, right_to_move

_EARLIER: Final = {"journal.sqlite": (3, 4), "choices.sqlite": (2,), "decisions.sqlite": (1,), "settings.sqlite": (1,)}
"""Files of earlier versions, and the formats of each that are taken over."""
_NUMBERS: Final = frozenset({"id", "unit", "step", "decision"})
"""Columns with ids, which other rows may already have here."""
_LAST_NUMBER: Final = (
    "SELECT coalesce(max(number), 0) FROM (SELECT max(id) AS number FROM units UNION SELECT max(id) FROM decisions "
    "UNION SELECT max(id) FROM choices UNION SELECT max(step) FROM choices)"
)
_COLUMNS: Final = """
SELECT one.name, group_concat(its.name) FROM {0}.sqlite_master AS one, pragma_table_info(one.name, '{0}') AS its,
    pragma_table_info(one.name, 'main') AS ours WHERE one.type = 'table' AND its.name = ours.name GROUP BY one.name
"""
"""Query for the tables of an attached file that are still known, and the columns that both have."""
_BEGUN: Final = "begun"
"""State that earlier versions gave a choice while a run carried it out."""
_WAIT_S: Final = 60.0


class History(Database):
    SCHEMA = files(__package__).joinpath("history.sql").read_text("utf-8")
    VERSION = 2

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            if self._earlier_files() or self._taken_over():
                with right_to_move(path.parent, wait_s=_WAIT_S):
                    self._take_over()
        except BaseException:
            self.close()
            raise

    def _earlier_files(self) -> list[Path]:
        old = self._taken_over()
        return [file for name in _EARLIER if name not in old and (file := self.path.with_name(name)).exists()]

    def _taken_over(self) -> list[str]:
        return [name for (name,) in self._connection.execute("SELECT name FROM taken_over")]

    def _take_over(self) -> None:
        """Copy earlier files' content in one transaction, then rename them; after a kill, the next process goes on."""
        earlier = self._earlier_files()
        file = self.path
        try:
            for file in earlier:
                self._connection.execute(f"ATTACH ? AS {file.stem}", (os.fsencode(file),))
                (version,) = self._connection.execute(f"PRAGMA {file.stem}.user_version").fetchone()
                if version not in (0, *_EARLIER[file.name]):  # 0: the process that made the file was killed
                    raise other_version(file, version, _EARLIER[file.name][-1])
            with self.transaction():
                (first,) = self._connection.execute(_LAST_NUMBER).fetchone()
                for file in earlier:
                    for table, columns in self._connection.execute(_COLUMNS.format(file.stem)).fetchall():
                        values = [f"{name} + {first}" if name in _NUMBERS else name for name in columns.split(",")]
                        self._connection.execute(
                            f"INSERT OR IGNORE INTO main.{table} ({columns}) "
                            f"SELECT {', '.join(values)} FROM {file.stem}.{table}"
                        )
                self._connection.executemany("INSERT INTO taken_over VALUES (?)", [(file.name,) for file in earlier])
                self._settle(first)
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{file} cannot be used ({error}); restore it from a backup, or move it away to start again, which "
                "loses its content",
                or_other=True,
            ) from error
        for file in earlier:
            self._connection.execute(f"DETACH {file.stem}")
        for name in self._taken_over():
            file = self.path.with_name(name)
            if not file.exists() or _rename(file):
                self._write("DELETE FROM taken_over WHERE name = ?", [(name,)])

    def _settle(self, first: int) -> None:
        """Link moves and decisions to choices above ``first``; correct states that a killed earlier version left."""
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
        for photo in choice.photos:
            if photo.moves:
                self._connection.execute(
                    "UPDATE units SET choice = ? WHERE run = ? AND id IN (SELECT unit FROM files WHERE original = ?)",
                    (choice.id, choice.run, os.fsencode(photo.path)),
                )
        return {
            state for (state,) in self._connection.execute("SELECT state FROM units WHERE choice = ?", (choice.id,))
        }


def _rename(file: Path) -> bool:
    with closing(sqlite3.connect(file)) as source:
        (version,) = source.execute("PRAGMA user_version").fetchone()
    name = f"{file.stem}-format-{version}"
    new = next(one for number in count(1) if not (one := file.with_name(f"{name}-{number}.sqlite")).exists())
    try:
        # Another process may still have the file open, so that a part of it is in its log.
        for log in ("-wal", ""):
            if os.path.exists(f"{file}{log}"):
                os.rename(f"{file}{log}", f"{new}{log}")
    except OSError:  # on Windows, a file that another process has open
        return False
    return True

"""Choices of a person about found photos, by path and content, kept until they are carried out.

A choice becomes ``done`` with its first move or with its decision, and ``undone`` when a photo is back or the decision
is removed, each time in one transaction. A choice that waits also becomes undone if its photos moved in another way and
were brought back: after an undo, a person has to choose again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from clip_client._storage.sqlite import Database, Tables
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.types import SAFE_TIERS

KEEP: Final = "keep"
"""The first photo stays, and the marked photos move."""
SKIP: Final = "skip"
"""The photos stay as they are; the person wants to decide later."""
OPEN: Final = "open"
CHOICES: Final = (KEEP, DIFFERENT, KEEP_ALL, SKIP, OPEN)

WAITING: Final = "waiting"
DONE: Final = "done"
UNDONE: Final = "undone"

_VERSION: Final = """
SELECT data_version, (SELECT seq FROM sqlite_sequence WHERE name = 'choices'),
    (SELECT group_concat(state || number) FROM (SELECT state, count(*) AS number FROM choices GROUP BY state))
FROM pragma_data_version
"""
"""One query, so that nothing changes between its values."""
_WITHDRAW: Final = (
    "DELETE FROM choices WHERE id = ? AND state IN ('waiting', 'undone') "
    "AND NOT EXISTS (SELECT 1 FROM units WHERE units.choice = choices.id AND units.state = 'planned')"
)


class ChosenPhoto(NamedTuple):
    path: str
    sha256: str
    moves: bool = False


@dataclass(frozen=True)
class Choice:
    """One choice about one group of photos. A later choice about the same photos replaces it."""

    id: int
    step: int
    """Choices of one step were made together, and are taken back together."""
    what: str
    at_ns: int
    rules: str
    """Rules that made the choice for many groups at once; empty if a person looked at the group."""
    run: str
    state: str
    photos: tuple[ChosenPhoto, ...]


def moving_tiers(rules: str) -> tuple[str, ...] | None:
    """Return the tiers that a choice by these rules moves; None, for all that can, if a person looked at the group."""
    return SAFE_TIERS if rules else None  # rules of an earlier version may name further tiers


class Choices(Tables):
    """The choices in one store. A change is on the disk when the method returns."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._seen = self._version()

    def changed_elsewhere(self) -> bool:
        """Tell whether another connection wrote to the file, and any changed the choices, since the last call."""
        before, self._seen = self._seen, self._version()
        return before[0] != self._seen[0] and before[1:] != self._seen[1:]

    def _version(self) -> tuple[object, ...]:
        """Return a number that other writers change, and two that choices change: their states never go back."""
        return tuple(self._connection.execute(_VERSION).fetchone())

    def add(self, choices: Iterable[tuple[str, Sequence[ChosenPhoto]]], *, rules: str = "") -> list[Choice]:
        at_ns = time.time_ns()
        with self.transaction():
            (step,) = self._connection.execute("SELECT coalesce(max(step), 0) + 1 FROM choices").fetchone()
            self._connection.executemany(
                "INSERT INTO choices (step, what, at_ns, rules, photos) VALUES (?, ?, ?, ?, ?)",
                [(step, what, at_ns, rules, json.dumps(photos)) for what, photos in choices],
            )
        return list(self.all(step=step))

    def all(self, **equal: object) -> Iterator[Choice]:
        columns = "id, step, what, at_ns, rules, run, state, photos"
        conditions = " AND ".join(f"{column} = ?" for column in equal) or "TRUE"
        question = f"SELECT {columns} FROM choices WHERE {conditions} ORDER BY id"
        rows = self._connection.execute(question, tuple(equal.values()))
        for number, step, what, at_ns, rules, run, state, photos in rows:
            chosen = tuple(ChosenPhoto(*photo) for photo in json.loads(photos))
            yield Choice(number, step, what, at_ns, rules, run, state, chosen)

    def runs(self, what: str) -> dict[str, int]:
        rows = self._connection.execute(
            "SELECT run, count(*) FROM choices WHERE state = ? AND what = ? GROUP BY run", (DONE, what)
        )
        return dict(rows.fetchall())

    def waiting(self, ids: Collection[int]) -> frozenset[int]:
        question = "SELECT id FROM choices WHERE state = 'waiting' AND id IN ({})"
        return frozenset(number for (number,) in self._found(question, list(ids)))

    def may_move(self, number: int, run: str) -> bool:
        question = "SELECT 1 FROM choices WHERE id = ? AND (state = 'waiting' OR state = 'done' AND run = ?)"
        return self._connection.execute(question, (number, run)).fetchone() is not None

    def finish(self, ids: Collection[int], run: str) -> int:
        return self._write(
            "UPDATE choices SET run = ?, state = 'done' WHERE id = ? AND state = 'waiting'",
            [(run, number) for number in ids],
        )

    def take_back(self, ids: Collection[int]) -> None:
        self._write("UPDATE choices SET state = 'undone' WHERE id = ?", [(number,) for number in ids])

    def withdraw(self, ids: Collection[int]) -> None:
        self._write(_WITHDRAW, [(number,) for number in ids])

    def forget(self, paths: Container[str]) -> int:
        found = [choice.id for choice in self.all() if any(photo.path in paths for photo in choice.photos)]
        self._write("DELETE FROM choices WHERE id = ?", [(number,) for number in found])
        return len(found)

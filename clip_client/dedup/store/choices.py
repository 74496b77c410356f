"""What a person chose to do with found photos, before it is done: which stay and which move, what is no duplicate.

A choice names its photos by path and content, so it is found again by a later search, in another process, and by
``dedup --apply --act-on chosen``. It stays in the store until it is taken back, also after it has been carried out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.store.sqlite import open_database, transaction
from clip_client.dedup.types import SAFE_TIERS

if TYPE_CHECKING:
    from pathlib import Path

KEEP: Final = "keep"
"""The first photo stays, and those that are marked move."""
SKIP: Final = "skip"
"""Nothing happens to the photos; a person wants to decide later."""
OPEN: Final = "open"
"""An earlier choice about the photos no longer holds."""
CHOICES: Final = (KEEP, DIFFERENT, KEEP_ALL, SKIP, OPEN)

ACT_ON: Final = "act-on="
"""Before a tier that rules move besides the safe ones."""

# AUTOINCREMENT, so that no later choice gets the id of one that was taken back: a run in progress may know the first.
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS choices (
    id INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER NOT NULL, what TEXT NOT NULL, at_ns INTEGER NOT NULL,
    rules TEXT NOT NULL, run TEXT NOT NULL DEFAULT '', photos TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS choices_by_run ON choices (run);
CREATE INDEX IF NOT EXISTS choices_by_step ON choices (step)
"""


class ChosenPhoto(NamedTuple):
    """A photo as it was when a person chose."""

    path: str
    """Absolute."""
    sha256: str
    moves: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice about one group of photos. Of several choices about the same photos, the last one holds."""

    id: int
    step: int
    """Choices of one step were made together, and are taken back together."""
    what: str
    """One of :data:`CHOICES`."""
    at_ns: int
    rules: str
    """The rules that made it for many groups at once; empty if a person looked at the group."""
    run: str
    """Name of the run that carried it out; empty if none has."""
    photos: tuple[ChosenPhoto, ...]


def moving_tiers(rules: str) -> tuple[str, ...] | None:
    """Return which tiers a choice of these rules moves: the safe ones and those that were added.

    None if a person looked at the group: then all moves that can.
    """
    if not rules:
        return None
    names = rules.split(", ")
    return (*SAFE_TIERS, *(name.removeprefix(ACT_ON) for name in names if name.startswith(ACT_ON)))


class Choices:
    """The choices in one store. A change is on the disk when the method returns."""

    def __init__(self, path: Path) -> None:
        self._connection = open_database(path, _SCHEMA, version=_VERSION, durable=True)
        self._seen = self._data_version()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def changed_elsewhere(self) -> bool:
        """Tell whether another process, or another :class:`Choices`, has changed the file since the last call."""
        before, self._seen = self._seen, self._data_version()
        return before != self._seen

    def _data_version(self) -> int:
        (number,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(number)

    def add(self, choices: Iterable[tuple[str, Sequence[ChosenPhoto]]], *, rules: str = "") -> list[Choice]:
        """Record choices, each (what, photos), as one step."""
        at_ns, added = time.time_ns(), []
        with transaction(self._connection):
            (step,) = self._connection.execute("SELECT coalesce(max(step), 0) + 1 FROM choices").fetchone()
            for what, photos in choices:
                cursor = self._connection.execute(
                    "INSERT INTO choices (step, what, at_ns, rules, photos) VALUES (?, ?, ?, ?, ?)",
                    (step, what, at_ns, rules, json.dumps(photos)),
                )
                number = int(cursor.lastrowid or 0)
                added.append(
                    Choice(id=number, step=step, what=what, at_ns=at_ns, rules=rules, run="", photos=tuple(photos))
                )
        return added

    def all(self, *, run: str | None = None) -> Iterator[Choice]:
        """Yield every choice, or those that one run carried out, oldest first."""
        which, values = ("", ()) if run is None else (" WHERE run = ?", (run,))
        for number, step, what, at_ns, rules, of_run, photos in self._connection.execute(
            f"SELECT id, step, what, at_ns, rules, run, photos FROM choices{which} ORDER BY id", values
        ):
            yield Choice(
                id=number,
                step=step,
                what=what,
                at_ns=at_ns,
                rules=rules,
                run=of_run,
                photos=tuple(ChosenPhoto(path, sha256, bool(moves)) for path, sha256, moves in json.loads(photos)),
            )

    def reopen(self) -> list[int]:
        """Let the choices hold again of which all photos are back where they were; return their ids."""
        back = [
            choice.id
            for choice in self.all()
            if choice.run and choice.what == KEEP and all(os.path.lexists(photo.path) for photo in choice.photos)
        ]
        self.set_run(back, "")
        return back

    def runs(self, what: str) -> dict[str, int]:
        """Return run -> number of choices of one kind that it carried out."""
        rows = self._connection.execute(
            "SELECT run, count(*) FROM choices WHERE run != '' AND what = ? GROUP BY run", (what,)
        )
        return dict(rows.fetchall())

    def set_run(self, ids: Collection[int], run: str) -> None:
        """Record which run carries the choices out; an empty name says that none does."""
        self._for_each("UPDATE choices SET run = ? WHERE id = ?", [(run, number) for number in ids])

    def remove(self, ids: Collection[int]) -> None:
        """Take choices back."""
        self._for_each("DELETE FROM choices WHERE id = ?", [(number,) for number in ids])

    def forget(self, paths: Container[str]) -> int:
        """Remove every choice about any of the absolute ``paths``; return their number."""
        found = [choice.id for choice in self.all() if any(photo.path in paths for photo in choice.photos)]
        self.remove(found)
        return len(found)

    def _for_each(self, statement: str, values: Sequence[tuple[object, ...]]) -> None:
        with transaction(self._connection):
            self._connection.executemany(statement, values)

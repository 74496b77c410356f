"""Decisions of a person about photos, by content: they stay valid when files move, and apply to later copies."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.store.sqlite import open_database, transaction

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

DIFFERENT: Final = "different"
"""The photos are different pictures."""
KEEP_ALL: Final = "keep-all"
"""All photos are wanted, even if they are copies."""

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS decisions (id INTEGER PRIMARY KEY, what TEXT NOT NULL, at_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS contents (decision INTEGER NOT NULL REFERENCES decisions (id), sha256 TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS contents_by_hash ON contents (sha256)
"""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision."""

    id: int
    what: str
    """``"different"`` or ``"keep-all"``."""
    at_ns: int
    contents: frozenset[str]
    """SHA-256 (hexadecimal) of two or more contents. They are never grouped with each other again."""


class Decisions:
    """The decisions in one store. A change is on the disk when the method returns."""

    def __init__(self, path: Path) -> None:
        self._connection = open_database(path, _SCHEMA, version=_VERSION, durable=True)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def add(self, what: str, contents: Iterable[str]) -> Decision:
        """Record that the ``contents`` must not be grouped. Raises ValueError for fewer than two."""
        if what not in (DIFFERENT, KEEP_ALL):
            raise ValueError(f"a decision is {DIFFERENT!r} or {KEEP_ALL!r}, not {what!r}")
        different = frozenset(contents)
        if len(different) < 2:
            raise ValueError(
                "a decision needs two photos with different bytes; files with the same bytes are one photo"
            )
        at_ns = time.time_ns()
        with transaction(self._connection):
            cursor = self._connection.execute("INSERT INTO decisions (what, at_ns) VALUES (?, ?)", (what, at_ns))
            number = int(cursor.lastrowid or 0)
            self._connection.executemany(
                "INSERT INTO contents VALUES (?, ?)", [(number, sha256) for sha256 in sorted(different)]
            )
        return Decision(id=number, what=what, at_ns=at_ns, contents=different)

    def forget(self, contents: Collection[str]) -> int:
        """Remove every decision about any of ``contents``; return their number."""
        found = [decision.id for decision in self.all() if not decision.contents.isdisjoint(contents)]
        with transaction(self._connection):
            for table, column in (("contents", "decision"), ("decisions", "id")):
                self._connection.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(number,) for number in found])
        return len(found)

    def all(self) -> list[Decision]:
        """Return every decision, oldest first."""
        members: dict[int, set[str]] = {}
        for number, sha256 in self._connection.execute("SELECT decision, sha256 FROM contents"):
            members.setdefault(number, set()).add(sha256)
        return [
            Decision(id=number, what=what, at_ns=at_ns, contents=frozenset(members.get(number, ())))
            for number, what, at_ns in self._connection.execute("SELECT id, what, at_ns FROM decisions ORDER BY id")
        ]

"""Decisions of a person about photos, by content: they stay valid when files move, and apply to later copies."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from clip_client._storage.sqlite import Tables

DIFFERENT: Final = "different"
KEEP_ALL: Final = "keep-all"


@dataclass(frozen=True)
class Decision:
    id: int
    what: str
    at_ns: int
    choice: int | None
    files: Mapping[str, int]
    """SHA-256 -> number of files with this content that the decision is about."""

    @property
    def contents(self) -> frozenset[str]:
        """The contents, no two of which are ever grouped again; if all are wanted, not even their files are."""
        return frozenset(self.files)


class Decisions(Tables):
    """The decisions in one store. A change is on the disk when the method returns."""

    def add(self, what: str, contents: Iterable[str], *, choice: int | None = None) -> Decision:
        """``contents`` has the SHA-256 of each file, so copies are repeated. Raises ValueError for other than two
        photos."""
        if what not in (DIFFERENT, KEEP_ALL):
            raise ValueError(f"a decision must be {DIFFERENT!r} or {KEEP_ALL!r}, not {what!r}")
        files = Counter(contents)
        if files.total() < 2:
            raise ValueError("a decision needs at least two photos: name another one")
        if len(files) < 2 and what == DIFFERENT:
            raise ValueError("files with the same bytes are one photo: name two photos with different bytes")
        at_ns = time.time_ns()
        with self.transaction():
            row = (what, at_ns, choice)
            number = self._connection.execute("INSERT INTO decisions VALUES (NULL, ?, ?, ?)", row).lastrowid or 0
            rows = [(number, sha256) for sha256 in files.elements()]
            self._connection.executemany("INSERT INTO contents VALUES (?, ?)", rows)
        return Decision(number, what, at_ns, choice, files)

    def forget(self, contents: Collection[str]) -> int:
        return self.remove([one.id for one in self.all() if not one.contents.isdisjoint(contents)])

    def remove(self, ids: Collection[int]) -> int:
        """Remove decisions; return how many of them existed. A trigger undoes the choices that made them."""
        return self._write("DELETE FROM decisions WHERE id = ?", [(number,) for number in ids])

    def all(self) -> list[Decision]:
        files: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for number, sha256 in self._connection.execute("SELECT decision, sha256 FROM contents"):
            files[number][sha256] += 1
        rows = self._connection.execute("SELECT id, what, at_ns, choice FROM decisions ORDER BY id")
        return [Decision(number, what, at_ns, choice, files[number]) for number, what, at_ns, choice in rows]

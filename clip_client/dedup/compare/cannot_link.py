"""Rows that must not share a group, as sets: the pairs of 5,000 photos that a person keeps would take 200 MB."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from clip_client.dedup.store.decisions import Decision

    Indices = NDArray[np.intp]


class CannotLink:
    """Sets of rows; no two rows of one set may share a group."""

    def __init__(self, sets: Iterable[Indices] = ()) -> None:
        """Take sets of rows, each in ascending order."""
        self._sets = [rows for rows in sets if len(rows) > 1]
        self._sets_of: defaultdict[int, list[int]] = defaultdict(list)
        for number, rows in enumerate(self._sets):
            for row in rows.tolist():
                self._sets_of[row].append(number)

    @classmethod
    def from_pairs(cls, pairs_of: Mapping[int, Indices]) -> CannotLink:
        """Take a mapping of each row to the rows that it must not share a group with."""
        pairs = {(min(row, other), max(row, other)) for row, others in pairs_of.items() for other in others.tolist()}
        return cls(np.array(pair) for pair in sorted(pairs) if pair[0] != pair[1])

    @classmethod
    def from_decisions(cls, contents: Sequence[str], decisions: Sequence[Decision]) -> CannotLink:
        """Take the SHA-256 of each row, and what a person declared to be different, or wants to keep all."""
        decided = frozenset[str]().union(*(decision.contents for decision in decisions))
        rows = {sha256: row for row, sha256 in enumerate(contents) if sha256 in decided}
        present = (sorted(rows[sha256] for sha256 in decision.contents & rows.keys()) for decision in decisions)
        return cls(np.array(some, dtype=np.intp) for some in present)

    def __bool__(self) -> bool:
        return bool(self._sets)

    def sets_of(self, row: int) -> list[int]:
        """Return the numbers of the sets of ``row``; two rows may share a group if they have no set in common."""
        return self._sets_of.get(row, [])

    def after(self, row: int) -> Iterable[Indices]:
        """Yield the rows after ``row`` that must not share a group with it, one set at a time."""
        for number in self.sets_of(row):
            rows = self._sets[number]
            yield rows[np.searchsorted(rows, row, side="right") :]

    def among(self, rows: Indices) -> CannotLink:
        """Return the sets reduced to ``rows``, as positions in ``rows``."""
        if not self:
            return self
        sets: defaultdict[int, list[int]] = defaultdict(list)
        for position, row in enumerate(rows.tolist()):
            for number in self.sets_of(row):
                sets[number].append(position)
        return CannotLink(np.array(positions) for positions in sets.values())

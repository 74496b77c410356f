"""What the last plan says about each photo that a person wants to move, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from clip_client.dedup.text import printable
from clip_client.review.state.private_database import PrivateDatabase

MOVES: Final = "moves"
STAYS: Final = "stays"
MOVED: Final = "moved"
FAILED: Final = "failed"
OUTCOMES: Final = (MOVES, STAYS, MOVED, FAILED)
"""The first two are planned; the others are what came of a planned move."""

_SCHEMA: Final = """
CREATE TABLE lines (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, path BLOB NOT NULL, label TEXT NOT NULL, kept TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, along INTEGER NOT NULL, tier TEXT NOT NULL, outcome TEXT NOT NULL,
    reason TEXT NOT NULL);
CREATE INDEX lines_by_path ON lines (path);
CREATE INDEX lines_by_outcome ON lines (outcome, size_bytes)
"""


class PlanLine(NamedTuple):
    """What happens, or happened, to one photo."""

    group: int
    path: str
    """As the report has it; printable when it comes from :meth:`PlanLines.page`."""
    kept: str
    """The photo that stays instead; empty if this one stays, too."""
    size_bytes: int
    along: int
    """Number of files that move with it."""
    tier: str
    """How certain it is that the photo that stays shows the same."""
    outcome: str
    """One of :data:`OUTCOMES`."""
    reason: str
    """Why it stays, why only a choice moves it, or what came of the move."""


class LineTotal(NamedTuple):
    """The lines with one outcome."""

    outcome: str
    photos: int
    size_bytes: int


class PlanLines(PrivateDatabase):
    """The lines of one plan. Threads may share it."""

    schema = _SCHEMA

    def clear(self) -> None:
        """Forget the last plan."""
        self._rows("DELETE FROM lines")

    def add(self, lines: Iterable[PlanLine]) -> None:
        """Add lines of a new plan."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO lines VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        line.group,
                        os.fsencode(line.path),
                        printable(line.path),
                        printable(line.kept),
                        *line[3:7],
                        printable(line.reason),
                    )
                    for line in lines
                ),
            )

    def set_outcomes(self, outcomes: Iterable[tuple[str, bool, str]]) -> None:
        """Record what came of moves, each (path, whether it is done, a sentence)."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE lines SET outcome = ?, reason = ? WHERE path = ?",
                (
                    (MOVED if done else FAILED, printable(message), os.fsencode(path))
                    for path, done, message in outcomes
                ),
            )

    def totals(self) -> list[LineTotal]:
        """Return the number and size of the photos with each outcome that there is."""
        rows = self._rows("SELECT outcome, count(*), sum(size_bytes) FROM lines GROUP BY outcome")
        return sorted((LineTotal(*row) for row in rows), key=lambda total: OUTCOMES.index(total.outcome))

    def page(self, outcome: str, *, start: int, most: int) -> list[PlanLine]:
        """Return up to ``most`` lines with an outcome, from the ``start``-th on, counted from 0."""
        rows = self._rows(
            "SELECT group_id, label, kept, size_bytes, along, tier, outcome, reason FROM lines WHERE outcome = ? "
            "ORDER BY id LIMIT ? OFFSET ?",
            [outcome, most, start],
        )
        return [PlanLine(*row) for row in rows]

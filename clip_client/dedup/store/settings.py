"""What a person has set for this store: named keep rules, and thresholds that were tuned for a model.

It also notes with which threshold each model was searched, because that decides which pairs a person has seen.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from typing import Final

from clip_client.dedup.store.sqlite import Database
from clip_client.dedup.types import Thresholds

_NAME: Final = re.compile(r"[\w. -]{1,64}")


class Settings(Database):
    """The settings of one store. A change is on the disk when the method returns."""

    # Earlier versions tuned a second threshold, near_identical, and read this table; now it repeats the first one.
    SCHEMA = """
    CREATE TABLE IF NOT EXISTS keep_rules (name TEXT PRIMARY KEY, rules TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS tuned (
        vector_id TEXT PRIMARY KEY, near_identical REAL NOT NULL, similar REAL NOT NULL, source TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS searches (vector_id TEXT NOT NULL, at_ns INTEGER NOT NULL, threshold REAL NOT NULL)
    """

    def keep_rules(self) -> dict[str, tuple[str, ...]]:
        """Return name -> the saved rules, in the order of the names."""
        rows = self._connection.execute("SELECT name, rules FROM keep_rules ORDER BY name")
        return {name: tuple(json.loads(rules)) for name, rules in rows}

    def save_keep_rules(self, name: str, rules: Sequence[str]) -> tuple[str, ...]:
        """Save rules that ``KeepRules`` has accepted under a name, in place of those that have it.

        Returns them as they are saved: a folder is absolute, because a later search may start elsewhere. Raises
        ValueError for a name that is not 1 to 64 letters, digits, spaces and ``. _ -``.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"a name of rules is 1 to 64 letters, digits, spaces and . _ -, not {name!r}")
        saved = tuple(map(_with_absolute_folder, rules))
        self._write("INSERT OR REPLACE INTO keep_rules VALUES (?, ?)", [(name, json.dumps(saved))])
        return saved

    def delete_keep_rules(self, name: str) -> bool:
        """Delete the rules of this name; return whether there were any."""
        return self._write("DELETE FROM keep_rules WHERE name = ?", [(name,)]) > 0

    def tuned(self, vector_id: str) -> Thresholds | None:
        """Return the thresholds that were tuned for the vectors of this id, if any."""
        row = self._connection.execute("SELECT similar, source FROM tuned WHERE vector_id = ?", (vector_id,)).fetchone()
        return row and Thresholds(similar=row[0], source=row[1], recommended=True)

    def set_tuned(self, vector_id: str, thresholds: Thresholds | None) -> None:
        """Use ``thresholds`` in each later search with these vectors; with None, those of the model again."""
        with self._transaction():
            self._connection.execute("DELETE FROM tuned WHERE vector_id = ?", (vector_id,))
            if thresholds is not None:
                values = (vector_id, thresholds.similar, thresholds.similar, thresholds.source)
                self._connection.execute("INSERT INTO tuned VALUES (?, ?, ?, ?)", values)

    def note_search(self, vector_id: str, threshold: float) -> None:
        """Note that from now on a person sees the pairs whose similarity reaches ``threshold``."""
        with self._transaction():
            known = self.searches(vector_id)
            if not known or known[-1][1] != threshold:
                self._connection.execute(
                    "INSERT INTO searches VALUES (?, ?, ?)", (vector_id, time.time_ns(), threshold)
                )

    def searches(self, vector_id: str) -> list[tuple[int, float]]:
        """Return since when (nanoseconds since 1970) each threshold was used with these vectors, oldest first."""
        rows = self._connection.execute(
            "SELECT at_ns, threshold FROM searches WHERE vector_id = ? ORDER BY at_ns", (vector_id,)
        )
        return rows.fetchall()


def _with_absolute_folder(rule: str) -> str:
    kind, _, folder = rule.partition("=")
    return f"folder={os.path.abspath(os.path.expanduser(folder))}" if kind == "folder" else rule

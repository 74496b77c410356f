"""Settings of a store: the keep rules that a person has named and saved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Final

from clip_client._storage.sqlite import Tables

_NAME: Final = re.compile(r"[\w. -]{1,64}")


class Settings(Tables):
    def keep_rules(self) -> dict[str, tuple[str, ...]]:
        rows = self._connection.execute("SELECT name, rules FROM keep_rules ORDER BY name")
        return {name: tuple(json.loads(rules)) for name, rules in rows}

    def save_keep_rules(self, name: str, rules: Sequence[str]) -> tuple[str, ...]:
        """Return the rules with absolute folders. Raises ValueError unless the name is 1 to 64 letters, digits, spaces
        and ``. _ -``."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name rules: use 1 to 64 letters, digits, spaces and . _ -")
        saved = tuple(map(_with_absolute_folder, rules))
        self._write("INSERT OR REPLACE INTO keep_rules VALUES (?, ?)", [(name, json.dumps(saved))])
        return saved

    def delete_keep_rules(self, name: str) -> bool:
        return self._write("DELETE FROM keep_rules WHERE name = ?", [(name,)]) > 0

    def take_tuned(self) -> list[tuple[str, float]]:
        """Return the vector id and the threshold of each row that the removed command ``tune`` wrote; delete them."""
        found = self._connection.execute("SELECT vector_id, similar FROM tuned").fetchall()
        self._write("DELETE FROM tuned WHERE vector_id = ?", [(vector_id,) for vector_id, _ in found])
        return found


def _with_absolute_folder(rule: str) -> str:
    kind, _, folder = rule.partition("=")
    return f"folder={os.path.abspath(os.path.expanduser(folder))}" if kind == "folder" else rule

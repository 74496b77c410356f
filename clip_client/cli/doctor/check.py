"""One line of what ``clip-client doctor`` found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Level(str, Enum):
    """How much a check matters."""

    OK = "ok"
    HINT = "hint"
    """Something that only some commands need, or that will be slow."""
    PROBLEM = "problem"
    """Photos cannot be embedded until it is put right."""


SERVER: Final = "server"
CLIENT: Final = "client"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What was looked at, what was found, and what to do."""

    about: str
    """``"server"`` or ``"client"``."""
    name: str
    value: str
    level: Level = Level.OK
    remedy: str = ""
    """What to do; empty where nothing is to be done."""

    def to_mapping(self) -> dict[str, str]:
        """The check as JSON holds it."""
        return {
            "about": self.about,
            "name": self.name,
            "value": self.value,
            "level": self.level.value,
            "remedy": self.remedy,
        }

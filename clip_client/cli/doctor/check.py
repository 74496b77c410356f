"""One line of ``clip-client doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Level(str, Enum):
    """How serious a result is."""

    OK = "ok"
    HINT = "hint"
    """Something that only some commands need, or that is slow."""
    PROBLEM = "problem"
    """Photos cannot be embedded until this is fixed."""


SERVER: Final = "server"
CLIENT: Final = "client"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What was checked, the result, and how to fix it."""

    about: str
    """``"server"`` or ``"client"``."""
    name: str
    value: str
    level: Level = Level.OK
    remedy: str = ""
    """How to fix it; empty if there is nothing to fix."""

    def to_mapping(self) -> dict[str, str]:
        """The check as JSON holds it."""
        return {
            "about": self.about,
            "name": self.name,
            "value": self.value,
            "level": self.level.value,
            "remedy": self.remedy,
        }

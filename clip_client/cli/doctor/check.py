"""One line of ``clip-client doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Level(StrEnum):
    """How serious a result is."""

    OK = "ok"
    HINT = "hint"
    """Something that only some commands need, or that is slow."""
    PROBLEM = "problem"
    """Photos cannot be embedded until this is fixed."""


SERVER: Final = "server"
CLIENT: Final = "client"


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked, the result, and how to fix it; the fields are the keys of the JSON form."""

    about: str
    """``"server"`` or ``"client"``."""
    name: str
    value: str
    level: Level = Level.OK
    remedy: str = ""
    """How to fix it; empty if there is nothing to fix."""

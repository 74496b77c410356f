"""One line of ``clip-client doctor``, and the table of all of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from clip_client.dedup.text import counted
from preprocess_ensemble.tritonserver import open_holes


class Level(StrEnum):
    """How serious a result is."""

    OK = "ok"
    HINT = "hint"
    """Something that only some commands need, or that is slow."""
    PROBLEM = "problem"
    """Photos cannot be embedded until this is fixed."""


SERVER: Final = "server"
CLIENT: Final = "client"

_TITLES: Final = {SERVER: "The server, or the model in this process", CLIENT: "This machine"}
_MARKS: Final = {Level.OK: " ", Level.HINT: "-", Level.PROBLEM: "!"}
_COLOURS: Final = {Level.OK: "", Level.HINT: "\x1b[33m", Level.PROBLEM: "\x1b[1;31m"}
_PLAIN: Final = "\x1b[0m"


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


def known_holes(about: str, triton_version: str) -> Iterator[Check]:
    """Name the published holes that this version of Triton is not known to close."""
    if holes := open_holes(triton_version):
        remedy = (
            "trust all who can connect, put Envoy in front, or run a newer release with: clip-serve --triton; see "
            "docs/security.md"
        )
        yield Check(about, "known holes", "; ".join(holes), Level.HINT, remedy)


def table_lines(checks: Sequence[Check], *, width: int, colour: bool) -> Iterator[str]:
    """Write the checks for people, in lines of at most ``width`` characters or 40, and then what there is to fix."""
    names = 2 + max(len(check.name) for check in checks)
    values = textwrap.TextWrapper(width=max(40, width), subsequent_indent=" " * (names + 2), break_on_hyphens=False)
    for about, title in _TITLES.items():
        yield title
        for check in checks:
            if check.about == about:
                line = values.fill(f"{_MARKS[check.level]} {check.name:{names}}{check.value}")
                yield f"{_COLOURS[check.level]}{line}{_PLAIN}" if colour and _COLOURS[check.level] else line
                if check.remedy:
                    yield values.fill(" " * (names + 2) + check.remedy)
        yield ""
    problems = sum(check.level is Level.PROBLEM for check in checks)
    hints = sum(check.level is Level.HINT for check in checks)
    if problems:
        yield f"! {counted(problems, 'problem')} to fix before photos can be embedded"
    if hints:
        yield f"- {counted(hints, 'hint')}"
    if not problems and not hints:
        yield "no problems found"

"""How every room writes the name and the time of a file, and why one has no result."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

LATEST_NS: Final = 2**63 - 1
"""In April 2262. SQLite and Parquet hold no later time, and some file systems do."""

_ZERO_WIDTH_JOINER: Final = "\u200d"


@dataclass(frozen=True, kw_only=True)
class FailedFile:
    """A file that was not compared, and why."""

    path: str
    code: str
    """Name of an ``ImageStatus``, or ``"UNREADABLE"``."""
    message: str
    """One sentence for people."""


def stored_ns(time_ns: int) -> int:
    """Return the time of a file as it is stored and compared; later times than the year 2262 count as its April."""
    return max(-LATEST_NS, min(time_ns, LATEST_NS))


def printable(path: str) -> str:
    """Return a file name to show: control characters, and bytes that are not UTF-8, become backslash escapes.

    A line break or a terminal's escape sequence in a name could otherwise forge what is on the screen.
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    # Python does not count the character that joins the parts of an emoji as printable.
    return "".join(
        char if char.isprintable() or char == _ZERO_WIDTH_JOINER else char.encode("unicode_escape").decode()
        for char in text
    )

"""How names and times of files are written everywhere, and files without a result."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

URL: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)

LATEST_NS: Final = 2**63 - 1
"""The latest time that SQLite and Parquet hold, in April 2262. Some file systems hold later times."""

_ZERO_WIDTH_JOINER: Final = "\u200d"


@dataclass(frozen=True, kw_only=True)
class FailedFile:
    """A file that was not compared, and the reason."""

    path: str
    code: str
    """Name of an ``ImageStatus``, or ``"UNREADABLE"``."""
    message: str
    """One sentence for people."""
    is_folder: bool = False
    """True for a folder that cannot be read: the number of its photos is unknown."""


def stored_ns(time_ns: int) -> int:
    """Return the time of a file (nanoseconds since 1970), limited to the times that can be stored."""
    return max(-LATEST_NS, min(time_ns, LATEST_NS))


def printable(path: str) -> str:
    """Escape control characters, with which a name could forge text on the screen, and bytes that are not UTF-8."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    # Python does not count the character that joins the parts of an emoji as printable.
    return "".join(
        char if char.isprintable() or char == _ZERO_WIDTH_JOINER else char.encode("unicode_escape").decode()
        for char in text
    )

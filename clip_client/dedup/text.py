"""Names, numbers and sizes, as reports and messages write them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Final

_MOST_KINDS: Final = 12


def folder_above(folders: Sequence[str]) -> str:
    """Return ``/home/anna/`` if all ``folders`` are in ``/home/anna/Pictures``; empty if they have none in common."""
    try:
        shared = os.path.commonpath(folders)
    except ValueError:  # no path, relative beside absolute ones, or two drives
        return ""
    above = os.path.dirname(shared)
    # Keep the root: without it, a path directly below would look relative.
    return "" if os.path.dirname(above) == above else os.path.join(above, "")


def escaped(path: str) -> str:
    """Write two backslashes for one, and ``\\xNN`` for a byte that is not printable UTF-8; ``printf %b`` undoes it."""
    chars = path.replace("\\", "\\\\")
    return "".join(c if c.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(c)) for c in chars)


def why_unreadable(error: OSError | ValueError, what: str = "file") -> str:
    # Python raises ValueError for a path that no system call accepts, such as one with a null byte.
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return f"The {what} cannot be read: {reason}."


def counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def percent(share: float) -> str:
    """Write ``"12%"``; a share near 0 or 1 becomes ``"less than 1%"`` or ``"more than 99%"``."""
    if 0 < share < 0.01:
        return "less than 1%"
    return "more than 99%" if 0.99 < share < 1 else f"{share:.0%}"


def date_and_time(iso: str) -> str:
    """Write a date, or a date and a time, as all outputs for people do: ``"2019-05-03 12:34"``."""
    return iso[:16].replace("T", " ")


def human_bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def at_least(similarity: float) -> str:
    """Write a similarity with four decimals, rounded down, so that it remains a lower bound."""
    return f"{math.floor(round(similarity * 1e4, 2)) / 1e4:.4f}"


def skipped_files(skipped: Mapping[str, int]) -> str:
    kinds = [f"{number:,} {kind}" for kind, number in skipped.items()]
    more = [counted(len(kinds) - _MOST_KINDS, "more kind")] if len(kinds) > _MOST_KINDS else []
    text = f"{counted(sum(skipped.values()), 'file')} skipped, not named like photos: "
    return text + ", ".join([*kinds[:_MOST_KINDS], *more])

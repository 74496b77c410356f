"""The processes of one group, by the kernel's own books (``proc(5)``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("any_runs", "processor_time_s")

_PROC: Final = Path("/proc")
_STATE, _GROUP, _USER_TIME, _SYSTEM_TIME = 0, 2, 11, 12
"""Places in ``/proc/PID/stat``, counted from behind the name, which may itself hold spaces and parentheses."""


def processor_time_s(group: int) -> float:
    """Seconds that the living processes of process group ``group`` have computed so far, all threads together.

    It falls when one of them ends. 0 where there is no such group, or no ``/proc``.
    """
    ticks = sum(int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME]) for fields in _members(group))
    return ticks / os.sysconf("SC_CLK_TCK")


def any_runs(group: int) -> bool:
    """Whether a process of ``group`` has not ended yet. False where there is no ``/proc``.

    A signal to the group does not tell, as it also reaches those that have ended and that nobody has waited for.
    """
    return any(fields[_STATE] not in ("Z", "X") for fields in _members(group))


def _members(group: int) -> Iterator[list[str]]:
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            # It has ended since it was listed.
            continue
        if int(fields[_GROUP]) == group:
            yield fields

"""What the processes of one group have used, by the kernel's own books (``proc(5)``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ("processor_time_s",)

_PROC: Final = Path("/proc")
_GROUP, _USER_TIME, _SYSTEM_TIME = 2, 11, 12
"""Places in ``/proc/PID/stat``, counted from behind the name, which may itself hold spaces and parentheses."""


def processor_time_s(group: int) -> float:
    """Seconds that the living processes of process group ``group`` have computed so far, all threads together.

    It falls when one of them ends. 0 where there is no such group, or no ``/proc``.
    """
    ticks = 0
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            # It has ended since it was listed.
            continue
        if int(fields[_GROUP]) == group:
            ticks += int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])
    return ticks / os.sysconf("SC_CLK_TCK")

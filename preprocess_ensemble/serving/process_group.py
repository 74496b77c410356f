"""The processes of one group, by the kernel's own books (``proc(5)``)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ("EndWatch", "any_runs", "processor_time_s")

_PROC: Final = Path("/proc")
_STATE, _GROUP, _USER_TIME, _SYSTEM_TIME = 0, 2, 11, 12
"""Places in ``/proc/PID/stat``, counted from behind the name, which may itself hold spaces and parentheses."""


def processor_time_s(group: int) -> float:
    """Seconds that the living processes of process group ``group`` have computed so far, all threads together.

    It falls when one of them ends. 0 where there is no such group, or no ``/proc``.
    """
    ticks = sum(int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME]) for _, fields in _members(group))
    return ticks / os.sysconf("SC_CLK_TCK")


def any_runs(group: int) -> bool:
    """Whether a process of ``group`` has not ended yet. False where there is no ``/proc``.

    A signal to the group does not tell, as it also reaches those that have ended and that nobody has waited for.
    """
    return any(fields[_STATE] not in ("Z", "X") for _, fields in _members(group))


class EndWatch:
    """Tells when a process of a group ends, at that moment and also of those that are no children of this process.

    From ``pidfd_open(2)``; where the kernel has none or forbids it, nothing is told. Use it in one event loop.
    """

    def __init__(self, group: int, ended: Callable[[], None]) -> None:
        """Call ``ended`` for each process that is in ``group`` now, but its leader, when it ends."""
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._descriptors: set[int] = set()
        for pid, _ in list(_members(group)):
            if pid != group:
                self._add(pid)

    def _add(self, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return
        self._descriptors.add(descriptor)
        self._loop.add_reader(descriptor, self._tell, descriptor)

    def _tell(self, descriptor: int) -> None:
        self._forget(descriptor)
        self._ended()

    def _forget(self, descriptor: int) -> None:
        self._descriptors.remove(descriptor)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        """Tell nothing more."""
        for descriptor in list(self._descriptors):
            self._forget(descriptor)


def _members(group: int) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of each."""
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            # It has ended since it was listed.
            continue
        if int(fields[_GROUP]) == group:
            yield int(stat.parent.name), fields

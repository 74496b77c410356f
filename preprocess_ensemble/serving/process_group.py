"""Processes as Linux shows them in ``/proc``: the time and the end of a group, and the secret in a command line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

_STATE, _GROUP, _USER_TICKS, _SYSTEM_TICKS, _START_TICKS, _ARGUMENTS_START, _ARGUMENTS_END = 0, 2, 11, 12, 19, 45, 46
"""Positions in ``/proc/PID/stat`` after the name, which may itself contain spaces and parentheses; see ``proc(5)``."""

_PROC: Final = Path("/proc")


def all_processes() -> Iterator[int]:
    """Yield the PIDs of this machine."""
    return (int(name) for name in os.listdir(_PROC) if name.isdecimal())


def processor_time_s(group: int) -> float:
    """Return how many seconds the living processes of process group ``group`` have computed, all threads together.

    The value falls when one of them ends. It is 0 if there is no such group.
    """
    ticks = (int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS]) for _, stat in _members(group))
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def any_runs(group: int) -> bool:
    """Whether a process of ``group`` has not ended yet.

    Sending a signal to the group does not tell: that also reaches processes that have ended and that their parent has
    not waited for.
    """
    return any(True for _ in _members(group))


def watch_ends(group: int, ended: Callable[[], None]) -> ExitStack:
    """Call ``ended`` when a process ends that is in ``group`` now, except its leader; close the result to stop that.

    The process need not be a child of this one. Uses ``pidfd_open(2)``: if the kernel does not support or allow that,
    ``ended`` is not called.
    """
    loop, watched = asyncio.get_running_loop(), ExitStack()

    def on_end(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        ended()

    for pid, _ in _members(group):
        if pid != group:
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                watched.callback(os.close, descriptor)
                watched.callback(loop.remove_reader, descriptor)
                loop.add_reader(descriptor, on_end, descriptor)
    return watched


def start_ticks(pid: int) -> int | None:
    """Return the clock ticks between boot and the start of a process, or None if it has ended."""
    stat = _stat(pid)
    return int(stat[_START_TICKS]) if stat else None


def hide_argument(pid: int, secret: bytes, *, program: str) -> bool:
    """Overwrite ``secret`` with ``x`` in the command line of a child process; return whether that was done.

    tritonserver takes secrets on its command line only, and every user of the machine can read that. The kernel shows
    what is in the process's memory, and a parent may write there. The answer is False if it may not, if the process
    does not execute ``program`` yet, or if it has ended.
    """
    process = _PROC / str(pid)
    try:
        if (process / "exe").readlink().name != program or not (stat := _stat(pid)):
            return False
        start, end = int(stat[_ARGUMENTS_START]), int(stat[_ARGUMENTS_END])
        with (process / "mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            arguments = memory.read(end - start)
            memory.seek(start)
            memory.write(arguments.replace(secret, b"x" * len(secret)))
    except OSError:
        return False
    return True


def _members(group: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the PID and the status of each process of ``group`` that has not ended."""
    for pid in all_processes():
        stat: list[bytes] = []
        with suppress(PermissionError):  # another user's, if /proc hides those
            stat = _stat(pid)
        if stat and int(stat[_GROUP]) == group:
            yield pid, stat


def _stat(pid: int) -> list[bytes]:
    """The status of a process; empty if it has ended, also if its parent has not waited for it."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if stat[_STATE] in (b"Z", b"X") else stat

"""The processes of one group: their processor time, their end, and the secret in the leader's command line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import psutil

T = TypeVar("T")

_STATE, _START_TICKS, _ARGUMENTS_START, _ARGUMENTS_END = 0, 19, 45, 46
"""Positions in ``/proc/PID/stat`` after the name, which may itself contain spaces and parentheses; see ``proc(5)``."""


def processor_time_s(group: int) -> float:
    """Return how many seconds the living processes of process group ``group`` have computed, all threads together.

    The value falls when one of them ends. It is 0 if there is no such group.
    """
    return sum(_of_members(group, lambda process: sum(process.cpu_times()[:2])))  # user and system


def any_runs(group: int) -> bool:
    """Whether a process of ``group`` has not ended yet.

    Sending a signal to the group does not tell: that also reaches processes that have ended and that their parent has
    not waited for.
    """
    import psutil

    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return any(_of_members(group, lambda process: process.status() not in ended))


def watch_ends(group: int, ended: Callable[[], None]) -> ExitStack:
    """Call ``ended`` when a process ends that is in ``group`` now, except its leader; close the result to stop that.

    The process need not be a child of this one. Uses ``pidfd_open(2)``: if the kernel does not support or allow that,
    ``ended`` is not called.
    """
    loop, watched = asyncio.get_running_loop(), ExitStack()

    def on_end(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        ended()

    for pid in _of_members(group, lambda process: process.pid):
        if pid != group:
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                watched.callback(os.close, descriptor)
                watched.callback(loop.remove_reader, descriptor)
                loop.add_reader(descriptor, on_end, descriptor)
    return watched


def start_ticks(pid: int) -> int | None:
    """Return the clock ticks between boot and the start of a process, or None if it has ended.

    Not psutil's ``create_time``: that is a time of day, and changes when the machine's clock is set.
    """
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE] in (b"Z", b"X") else int(fields[_START_TICKS])


def hide_argument(pid: int, secret: bytes, *, program: str) -> bool:
    """Overwrite ``secret`` with ``x`` in the command line of a child process; return whether that was done.

    tritonserver takes secrets on its command line only, and every user of the machine can read that. The kernel shows
    what is in the process's memory, and a parent may write there. The answer is False if it may not, if the process
    does not execute ``program`` yet, or if it has ended.
    """
    process = Path("/proc", str(pid))
    try:
        if (process / "exe").readlink().name != program:
            return False
        fields = _stat(pid)
        start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
        with (process / "mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            arguments = memory.read(end - start)
            found = arguments.find(secret)
            while found >= 0:
                memory.seek(start + found)
                memory.write(b"x" * len(secret))
                found = arguments.find(secret, found + len(secret))
    except OSError:
        return False
    return True


def _of_members(group: int, read: Callable[[psutil.Process], T]) -> list[T]:
    """What ``read`` returns for each process of ``group``, without those that end meanwhile."""
    import psutil

    values = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(pid) == group:
                values.append(read(psutil.Process(pid)))
    return values


def _stat(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()

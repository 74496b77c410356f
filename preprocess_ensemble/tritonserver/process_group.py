"""Processes as Linux shows them in ``/proc``: the time and the end of a group, and the secret in a command line."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

_STATE, _PARENT, _GROUP, _USER_TICKS, _SYSTEM_TICKS, _START_TICKS = 0, 1, 2, 11, 12, 19
_ARGUMENTS_START, _ARGUMENTS_END = 45, 46
"""Positions in ``/proc/PID/stat`` after the name, which may itself contain spaces and parentheses; see ``proc(5)``."""

_SOCKET_STATE, _INODE, _LISTENS = 3, 9, "0A"  # positions in ``/proc/PID/net/tcp``, and a listener's state

_PROC: Final = Path("/proc")


def all_processes() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdecimal())


def processor_time_s(group: int) -> float:
    """Return the processor time of the living processes of ``group``, in seconds; it falls when a process ends."""
    ticks = (int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS]) for _, stat in _members(group))
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def any_runs(group: int) -> bool:
    """Whether a process of ``group`` has not ended yet. A signal also reaches those that were not waited for."""
    return any(True for _ in _members(group))


def ended_children(pid: int) -> set[int]:
    """Return the PIDs of the children that have ended and that process ``pid`` has not waited for."""
    stats = ((child, _raw_stat(child)) for child in all_processes())
    return {child for child, stat in stats if stat and stat[_STATE] == b"Z" and int(stat[_PARENT]) == pid}


def listening_addresses(pid: int, port: int) -> list[tuple[socket.AddressFamily, str]] | None:
    """Return the addresses at which ``pid`` itself listens on TCP ``port``; None if the kernel does not tell."""
    sockets = _sockets(pid, port)
    return None if sockets is None else [_address(local) for local, state in sockets[0] if state == _LISTENS]


def shares_port(pid: int, port: int) -> bool:
    of_process, of_others = _sockets(pid, port) or ([], [])
    return any(one in of_process for one in of_others if one[1] == _LISTENS)


def connections(pid: int, port: int) -> int | None:
    sockets = _sockets(pid, port)
    return None if sockets is None else sum(state != _LISTENS for _, state in sockets[0])


def _sockets(pid: int, port: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]] | None:
    """Return local address and state of the TCP sockets with this local ``port``: those of ``pid``, and all others."""
    try:
        tables = [(_PROC / str(pid) / "net" / name) for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
        descriptors = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return None
    inodes = set()
    for descriptor in descriptors:
        with suppress(OSError):  # closed meanwhile
            inodes.add(os.readlink(descriptor).removeprefix("socket:").strip("[]"))
    found: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for row in rows:
        if row[1].endswith(f":{port:04X}"):
            found[row[_INODE] not in inodes].append((row[1], row[_SOCKET_STATE]))
    return found


def _address(local: str) -> tuple[socket.AddressFamily, str]:
    """Read an address of ``/proc/PID/net/tcp``: words of 32 bits in the machine's order."""
    raw = bytes.fromhex(local.partition(":")[0])
    words = b"".join(int.from_bytes(raw[at : at + 4], sys.byteorder).to_bytes(4, "big") for at in range(0, len(raw), 4))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return family, socket.inet_ntop(family, words)


def watch_ends(group: int, ended: Callable[[], None]) -> ExitStack:
    """Call ``ended`` once for each process of ``group`` that ends, except its leader. Close the result to stop.

    It is never called where the kernel forbids ``pidfd_open``.
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


def started_at(pid: int) -> float | None:
    """Return when a process was started, in seconds since the epoch, to the second; None if it has ended."""
    ticks = start_ticks(pid)
    boot = re.search(rb"^btime (\d+)", (_PROC / "stat").read_bytes(), re.MULTILINE)
    return None if ticks is None or boot is None else int(boot[1]) + ticks / os.sysconf("SC_CLK_TCK")


def hide_argument(pid: int, secret: bytes, *, program: str) -> bool:
    """Overwrite ``secret`` with ``x`` in the command line of a child process; return whether that was done.

    tritonserver takes secrets only on its command line, which every user of the machine can read. The kernel shows the
    command line from the process's memory, where a parent may write. Returns False if the parent may not write there,
    or if the process does not execute ``program`` yet or has ended.
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
    for pid in all_processes():
        stat = _stat(pid)
        if stat and int(stat[_GROUP]) == group:
            yield pid, stat


def _stat(pid: int) -> list[bytes]:
    """Return the status of a process; empty if it has ended, whether or not its parent has waited for it."""
    stat = _raw_stat(pid)
    return [] if stat and stat[_STATE] in (b"Z", b"X") else stat


def _raw_stat(pid: int) -> list[bytes]:
    """Return the status of a process; empty if the process is gone, or is another user's and hidden by /proc."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return []

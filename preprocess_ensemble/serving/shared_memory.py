"""Names for the shared-memory regions of one server, and removal of those whose server is dead.

Triton's Python backend keeps one region in ``/dev/shm`` for each model instance. A server that is killed leaves its
regions behind, and nothing in them says whose they were. So the launcher gives each server a prefix that names its
process: PID namespace, PID and start time. The start time tells a recycled PID from the old one; the namespace keeps a
container from removing the regions of a neighbour with which it shares ``/dev/shm`` but not its PIDs.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

__all__ = ("free_bytes", "is_of_dead_server", "region_prefix", "remove_stale_regions")

SHARED_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "clip_triton"
_REGION: Final = re.compile(rf"{_PREFIX}_(?P<namespace>\d+)_(?P<pid>\d+)_(?P<started>\d+)_")


def region_prefix(pid: int) -> str:
    """Prefix of all regions that belong to the server with this PID, such as ``clip_triton_4026531836_812_99120_``.

    Raises ``ProcessLookupError`` where no such process runs.
    """
    started = _start_time(pid)
    if started is None:
        raise ProcessLookupError(f"No process has the number {pid}.")
    return f"{_PREFIX}_{_pid_namespace()}_{pid}_{started}_"


def remove_stale_regions() -> list[str]:
    """Remove regions of dead servers.

    Returns the names removed. Regions without the prefix, and those of another PID namespace or user, are left alone.
    """
    removed = []
    for region in sorted(SHARED_MEMORY.glob(f"{_PREFIX}_*")):
        if not is_of_dead_server(region.name):
            continue
        try:
            region.unlink()
        except (FileNotFoundError, PermissionError):
            # Another start was faster, or the region is another user's.
            continue
        removed.append(region.name)
    return removed


def free_bytes(prefix: str) -> int:
    """Shared memory that the server with this prefix has or can still get."""
    usage = os.statvfs(SHARED_MEMORY)
    own = 0
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            own += region.stat().st_blocks * 512
    return usage.f_bavail * usage.f_frsize + own


def is_of_dead_server(region: str) -> bool:
    """Whether the region of this name belonged to a server of this PID namespace that does not run any more."""
    owner = _REGION.match(region)
    if owner is None or int(owner["namespace"]) != _pid_namespace():
        return False
    return _start_time(int(owner["pid"])) != int(owner["started"])


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of the process, or ``None`` if it is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command in parentheses may itself hold spaces and parentheses, so count the fields behind the last one: state
    # is the 3rd field of proc(5), the start time the 22nd.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])

"""What a server leaves behind if it is killed, and the removal of that: shared-memory regions and stub processes.

Triton's Python backend keeps one region in ``/dev/shm`` for each model instance, and nothing in it says which server
made it. So the launcher gives each server a prefix that identifies its process: PID namespace, PID and start time. The
start time distinguishes a recycled PID. The namespace protects containers that share ``/dev/shm`` from each other.

A stub is the process in which the Python backend runs a model instance. It ends by itself after its server has died,
unless it is sending an answer at that moment: then it waits without limit, and keeps its memory, also that on a GPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Final

from preprocess_ensemble.serving.process_group import all_processes, start_ticks

SHARED_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "clip_triton"
_REGION: Final = re.compile(rf"{_PREFIX}_(?P<namespace>\d+)_(?P<pid>\d+)_(?P<started>\d+)_")
_STUB: Final = "triton_python_backend_stub"


def region_prefix(pid: int) -> str:
    """Return the prefix of all regions of the server with this PID, such as ``clip_triton_4026531836_812_99120_``.

    Raises ``ProcessLookupError`` if no such process runs.
    """
    started = start_ticks(pid)
    if started is None:
        raise ProcessLookupError(f"No process has the PID {pid}.")
    return f"{_PREFIX}_{_pid_namespace()}_{pid}_{started}_"


def free_bytes(prefix: str) -> int:
    """Return how many bytes of shared memory the server with this prefix has or can still get."""
    usage = os.statvfs(SHARED_MEMORY)
    own = 0
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            own += region.stat().st_blocks * 512
    return usage.f_bavail * usage.f_frsize + own


def remove_stale_regions(directory: Path = SHARED_MEMORY) -> list[str]:
    """Remove the regions of dead servers from ``directory`` and return their names.

    Regions without the prefix, of another PID namespace or of another user stay.
    """
    removed = []
    for region in sorted(directory.glob(f"{_PREFIX}_*")):
        # Another start may be faster, and the region may be another user's.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if _is_of_dead_server(region.name):
                region.unlink()
                removed.append(region.name)
    return removed


def end_orphaned_stubs() -> list[int]:
    """Kill the stubs of dead servers and return their PIDs.

    A stub's command line names its region of shared memory, and that identifies the server. Stubs of servers that the
    launcher did not start, of another PID namespace and of other users stay.
    """
    ended = []
    for pid in all_processes():
        with contextlib.suppress(OSError):
            program, *arguments = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
            if os.path.basename(program) == _STUB and any(map(_is_of_dead_server, arguments)):
                os.kill(pid, signal.SIGKILL)
                ended.append(pid)
    return ended


def _is_of_dead_server(region: str) -> bool:
    """Whether the server of this PID namespace that owned the region of this name has ended."""
    owner = _REGION.match(region)
    if owner is None or int(owner["namespace"]) != _pid_namespace():
        return False
    return start_ticks(int(owner["pid"])) != int(owner["started"])


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino

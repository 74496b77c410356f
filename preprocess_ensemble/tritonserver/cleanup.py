"""Removes the leftovers of a killed server: processes, shared memory, links and folders.

Triton's Python backend keeps one region in ``/dev/shm`` for each model instance, and nothing in it says which server
made it. So the launcher gives each server a prefix that identifies its process: PID namespace, PID and start time. The
start time distinguishes a recycled PID, and the namespace containers that share ``/dev/shm``. The folder with the
launcher's links has the same prefix.

A stub is the process in which the Python backend runs a model instance. It ends by itself after its server has died,
unless it is sending an answer at that moment: then it waits without limit, and keeps its memory, also that on a GPU. A
guardian, which outlives the server and its supervisor, ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.tritonserver.process_group import all_processes, any_runs, start_ticks, started_at

SHARED_MEMORY: Final = Path("/dev/shm")
LINKS_SUFFIX: Final = "links"  # end of the name of the folder of a server's links
TEMPORARY: Final = Path("/tmp")  # folder for the links and Triton's Python backend, which ignores TMPDIR
_PREFIX: Final = "clip_triton"
OWNED: Final = re.compile(rf"{_PREFIX}_(?P<namespace>\d+)_(?P<pid>\d+)_(?P<started>\d+)_")
"""Prefix of the regions, links and arguments that belong to a server."""
_STUB: Final = "triton_python_backend_stub"
_ENVIRONMENTS: Final = "python_env_??????"
"""An empty folder that Triton's Python backend makes in TEMPORARY, and removes only if it ends in order."""

_STUBS_END_S: Final = 2.0  # time of stubs to end after their server; an idle stub needs a second
_POLL_S: Final = 0.05

_CLOCK_S: Final = 1.0  # the kernel gives the time of the boot, to which it relates all starts, in whole seconds
_PR_SET_PDEATHSIG: Final = 1  # the value in ``linux/prctl.h``


def region_prefix(pid: int) -> str:
    """Return the prefix of a server's regions, ``clip_triton_4026531836_812_99120_``. Raises ``ProcessLookupError``."""
    started = start_ticks(pid)
    if started is None:
        raise ProcessLookupError(f"No process has the PID {pid}.")
    return f"{_PREFIX}_{_pid_namespace()}_{pid}_{started}_"


def free_bytes(prefix: str) -> int:
    """Return how many bytes of shared memory the server with this prefix has or can still get."""
    usage = os.statvfs(SHARED_MEMORY)
    in_use = 0
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            in_use += region.stat().st_blocks * 512
    return usage.f_bavail * usage.f_frsize + in_use


def remove_leftovers(shared_memory: Path = SHARED_MEMORY) -> None:
    """Remove what dead servers of this PID namespace and user have left: stubs, regions, links, empty folders."""
    for pid in _stubs_of_dead_servers():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for region in shared_memory.glob(f"{_PREFIX}_*"):
        # Another start may be faster, and the region may be another user's.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if _is_of_dead_server(region.name):
                region.unlink()
    for links in TEMPORARY.glob(f"{_PREFIX}_*_{LINKS_SUFFIX}"):
        if _is_of_dead_server(links.name):
            shutil.rmtree(links, ignore_errors=True)
    starts = (started_at(pid) for pid, program, _ in _programs() if program == "tritonserver")
    oldest = min((start for start in starts if start is not None), default=float("inf"))
    for folder in TEMPORARY.glob(_ENVIRONMENTS):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < oldest - _CLOCK_S:
                folder.rmdir()


def _stubs_of_dead_servers() -> list[int]:
    return [
        pid for pid, program, arguments in _programs() if program == _STUB and any(map(_is_of_dead_server, arguments))
    ]


def die_with_parent(number: signal.Signals, parent: int) -> bool:
    """Let the kernel send this process ``number``, also after ``exec``, when the thread that started it ends.

    Returns False if the parent, whose PID is ``parent``, has ended already: then the signal never comes. Raises
    ``ReportedError`` if the kernel does not support this.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise ReportedError(
            f"The kernel refuses to end the server with its supervisor: {os.strerror(ctypes.get_errno())}."
        )
    return os.getppid() == parent


def start_guardian(environment: Mapping[str, str], *, owns_group: bool) -> None:
    """Start a guardian. When this process ends, the guardian ends the remaining stubs, and cleans up.

    Call it just before this process becomes tritonserver. With ``owns_group``, it also ends all of this process's
    group. The guardian keeps the server's output open until it has finished, so that a supervisor can wait for it.
    """
    group = ["group"] if owns_group else []
    # The guardian is a new program, because a fork would show this process's arguments, and the secret among them, as
    # long as it runs. It has a session of its own, so that Ctrl-C and signals to the server's group do not reach it.
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(os.getpid()), *group],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def guard(server: int, *, owns_group: bool) -> None:
    """Wait until ``server``, the parent, has ended; give its stubs their time, kill the rest and clean up."""
    waited_for = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    runs = die_with_parent(signal.SIGTERM, server)
    while runs:
        signal.sigwait(waited_for)
        # A service manager may send SIGTERM to every process of a service.
        runs = os.getppid() == server
    deadline = time.monotonic() + _STUBS_END_S
    while time.monotonic() < deadline and (any_runs(server) if owns_group else _stubs_of_dead_servers()):
        time.sleep(_POLL_S)
    if owns_group:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server, signal.SIGKILL)
    remove_leftovers()


def _programs() -> Iterator[tuple[int, str, list[str]]]:
    for pid in all_processes():
        with contextlib.suppress(OSError):
            program, *arguments = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
            yield pid, os.path.basename(program), arguments


def _is_of_dead_server(name: str) -> bool:
    owner = OWNED.match(name)
    if owner is None or int(owner["namespace"]) != _pid_namespace():
        return False
    return start_ticks(int(owner["pid"])) != int(owner["started"])


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


if __name__ == "__main__":
    guard(int(sys.argv[1]), owns_group="group" in sys.argv)

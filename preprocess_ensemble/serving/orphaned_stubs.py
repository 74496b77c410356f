"""The processes that dead servers left behind.

A stub of Triton's Python backend ends by itself when its server has died. One that was just then handing over an answer
does not: it waits without limit for the server to take it, holding Python's lock, which the thread that would end it
needs. Such a stub would keep its memory, a GPU's too, for ever, so the next server's start ends it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from preprocess_ensemble.serving.shared_memory import is_of_dead_server

__all__ = ("end_orphaned_stubs",)

_PROC: Final = Path("/proc")
_STUB: Final = "triton_python_backend_stub"


def end_orphaned_stubs() -> list[int]:
    """Kill the stubs of dead servers; return their process numbers.

    A stub's command line names its region of shared memory, and that names the server. Stubs of servers that the
    launcher did not start, of another PID namespace and of other users are left alone.
    """
    ended = []
    for entry in _PROC.glob("[0-9]*/cmdline"):
        with suppress(OSError):
            # Opened before it is looked at: the number may be another process's by the time of the signal.
            process = os.pidfd_open(int(entry.parent.name))
            try:
                program, *arguments = os.fsdecode(entry.read_bytes()).split("\0")
                if os.path.basename(program) == _STUB and any(map(is_of_dead_server, arguments)):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    ended.append(int(entry.parent.name))
            finally:
                os.close(process)
    return ended

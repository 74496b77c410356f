"""Nothing that a measurement started may outlive it: a stub whose server was killed would hold a card's memory."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

POLL_S: Final = 0.1
_PR_SET_CHILD_SUBREAPER: Final = 36
"""From ``linux/prctl.h``."""


def adopt() -> None:
    """Make this process the parent of every descendant whose own parent ends, whatever session it is in."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_group(group: int, *, within_s: float) -> None:
    """Let a process group end, clip-serve its tritonserver with it, and kill what is left of it after ``within_s``.

    The second signal tells clip-serve not to wait for answers that nobody waits for.
    """
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        os.killpg(group, signal.SIGINT)
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            _reap()
            os.killpg(group, 0)
            time.sleep(POLL_S)
        os.killpg(group, signal.SIGKILL)


def kill_children(*, within_s: float) -> int:
    """Kill all children of this process, those that they leave behind, too; returns how many there were."""
    killed: set[int] = set()
    end = time.monotonic() + within_s
    while (left := _children()) and time.monotonic() < end:
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        killed |= left
        _reap()
        time.sleep(POLL_S)
    return len(killed)


def _children() -> set[int]:
    """Processes whose parent this is, but for those that have ended."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in brackets, may hold anything; after it come state and parent.
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(stat.parent.name))
    return found


def _reap() -> None:
    """Take note of children that have ended, so that their group counts as gone."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass

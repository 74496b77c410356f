"""Ends every process that a measurement started: a stub whose server was killed would hold a card's memory."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from typing import Final

import psutil

POLL_S: Final = 0.1
_PR_SET_CHILD_SUBREAPER: Final = 36
"""From ``linux/prctl.h``."""


def adopt() -> None:
    """Make this process the parent of every descendant whose own parent ends, in any session."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_group(group: int, *, within_s: float) -> int:
    """Let a process group end, including clip-serve's tritonserver; kill what is left of all descendants.

    Waits up to ``within_s`` before it kills, and up to as long afterwards. Returns how many were killed. The second
    signal tells clip-serve not to wait for requests under way: their callers are gone.
    """
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        os.killpg(group, signal.SIGINT)
    psutil.wait_procs(psutil.Process().children(recursive=True), timeout=within_s)
    killed: set[int] = set()
    end = time.monotonic() + within_s
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < end:
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        killed |= {child.pid for child in left}
        psutil.wait_procs(left, timeout=POLL_S)
    return len(killed)

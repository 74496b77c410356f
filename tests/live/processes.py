"""Find the processes of a server that are still running."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def still_running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have not ended.

    psutil calls a process running if it has ended and was not reaped. If its tritonserver has ended, a stub is reaped
    by the machine's init, which can be late; some containers have no init at all.
    """
    return [process for process in processes if not _has_ended(process)]


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True

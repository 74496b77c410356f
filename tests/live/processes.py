"""Which processes of a server are left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable


def still_running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended.

    psutil calls running what has ended and was not reaped. A stub whose tritonserver is gone is reaped by the machine's
    init, in its own time, or never where a container has none.
    """
    return [process for process in processes if not _has_ended(process)]


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True

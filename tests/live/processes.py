"""The health of a server, and its processes that are still running."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

import psutil

from benchmarks.fixtures.server import Server


def health(server: Server) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the report of the health port."""
    try:
        with urllib.request.urlopen(server.health_url, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


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

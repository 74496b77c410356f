"""What the work on a folder of photos costs: time, and processor time of this process and of the server it calls."""

from __future__ import annotations

import time

import psutil


class Stopwatch:
    """Counts from its construction. ``server`` is the process id of the server whose processor time counts too."""

    def __init__(self, server: int | None = None) -> None:
        self._server = server
        self._started = self._now()

    def per_photo(self, photos: int) -> dict[str, float]:
        """Photos per second since the start, and milliseconds of processor time per photo: all, and the server's."""
        seconds, own_s, server_s = (now - before for now, before in zip(self._now(), self._started, strict=True))
        return {
            "photos_per_second": photos / seconds,
            "processor_ms_per_photo": 1e3 * (own_s + server_s) / photos,
            "server_ms_per_photo": 1e3 * server_s / photos,
        }

    def _now(self) -> tuple[float, float, float]:
        """The clock, and the processor seconds of this process and of the server."""
        return time.perf_counter(), time.process_time(), 0.0 if self._server is None else tree_s(self._server)


def tree_s(process: int) -> float:
    """Processor seconds of a process and its children so far."""
    parent = psutil.Process(process)
    times = [one.cpu_times() for one in (parent, *parent.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))

"""What a measurement costs: processor time, an NVIDIA card (NVML), and a Ray cluster, read at intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import psutil

_EVERY_S: Final = 0.2


@contextmanager
def sampling(read: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call ``read`` every ``every_s`` seconds until the end of the block, which raises what ``read`` raised."""
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(every_s):
            read()

    with ThreadPoolExecutor(1, thread_name_prefix="sampling") as thread:
        running = thread.submit(sample)
        try:
            yield
        finally:
            ended.set()
            running.result()


class GpuMeter:
    """Memory, utilisation, power and energy of an NVIDIA card during a block; nothing without a card."""

    def __init__(self) -> None:
        self._samples: list[dict[str, float]] = []
        self._seconds = 0.0
        self._joules: float | None = None

    @classmethod
    @contextmanager
    def running(cls, index: int = 0) -> Iterator[GpuMeter]:
        """Sample card ``index`` until the end of the block."""
        meter = cls()
        try:
            import pynvml

            pynvml.nvmlInit()
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
        except Exception:  # no package, no driver or no card: NVML has a class for each of some thirty errors
            yield meter
            return

        def read(what: str, *arguments: int) -> Any:
            try:
                return getattr(pynvml, f"nvmlDeviceGet{what}")(card, *arguments)
            except Exception:  # see above; virtual cards support few functions
                return None

        def sample() -> None:
            watts, rates, memory = read("PowerUsage"), read("UtilizationRates"), read("MemoryInfo")
            found = {
                "s": round(time.perf_counter() - start, 3),
                "watts": None if watts is None else watts / 1e3,
                "gpu_percent": None if rates is None else rates.gpu,
                "memory_percent": None if rates is None else rates.memory,
                "memory_mb": None if memory is None else round(memory.used / 1e6, 1),
                "sm_mhz": read("ClockInfo", pynvml.NVML_CLOCK_SM),
            }
            meter._samples.append({name: value for name, value in found.items() if value is not None})

        start, before_mj = time.perf_counter(), read("TotalEnergyConsumption")
        with sampling(sample, _EVERY_S):
            yield meter
        meter._seconds, after_mj = time.perf_counter() - start, read("TotalEnergyConsumption")
        if before_mj is not None and after_mj is not None:
            meter._joules = (after_mj - before_mj) / 1e3
        pynvml.nvmlShutdown()

    def report(self, images: int) -> dict[str, Any] | None:
        """After the block: seconds, joules, images per joule and the samples over time; None without a card.

        Joules are None for cards before Volta, which have no energy counter.
        """
        if not self._seconds:
            return None
        return {
            "seconds": self._seconds,
            "joules": self._joules,
            "images_per_joule": images / self._joules if self._joules else None,
            "samples": self._samples,
        }


class RayGauge:
    """What Ray's object store and workers take while it runs."""

    def __init__(self) -> None:
        self.store_bytes = 0
        """Peak of the object store."""
        self.worker_bytes = 0
        """Peak of the largest worker, without memory that it shares."""
        self._processor_s: dict[int, float] = {}

    @property
    def processor_s(self) -> float:
        """Processor seconds of all workers until now, the ended ones included."""
        return sum(self._processor_s.values())

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[RayGauge]:
        """Look at both every few milliseconds."""
        import ray
        from ray._private.internal_api import get_memory_info_reply, get_state_from_address

        gauge = cls()
        state = get_state_from_address(ray.get_runtime_context().gcs_address)

        def poll() -> None:
            used = get_memory_info_reply(state).store_stats.object_store_bytes_used
            gauge.store_bytes = max(gauge.store_bytes, used)
            gauge.read_workers()

        with sampling(poll, _EVERY_S):
            yield gauge

    def read_workers(self) -> None:
        """Note memory and time of Ray's workers on this machine."""
        for process in psutil.process_iter(["cmdline"]):
            try:
                if process.info["cmdline"] and process.info["cmdline"][0].startswith("ray::"):
                    self.worker_bytes = max(self.worker_bytes, process.memory_full_info().uss)
                    times = process.cpu_times()
                    self._processor_s[process.pid] = times.user + times.system
            except psutil.Error:  # it has ended
                continue


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

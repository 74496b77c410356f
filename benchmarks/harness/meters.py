"""What a measurement costs: processor time, an NVIDIA card (NVML), and a Ray cluster, read at intervals."""

from __future__ import annotations

import statistics
import threading
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


@contextmanager
def nvml_card(index: int = 0) -> Iterator[tuple[Any, Any]]:
    """Give NVML and its handle of card ``index``; both are None without package, driver or card."""
    try:
        import pynvml

        pynvml.nvmlInit()
        found = pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:  # NVML has a class for each of some thirty errors
        yield None, None
        return
    try:
        yield found
    finally:
        pynvml.nvmlShutdown()


class GpuMeter:
    """Memory, utilisation, power and energy of an NVIDIA card during a block; nothing without a card."""

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {"watts": [], "gpu_percent": [], "memory_mb": []}
        self._joules = 0.0

    @classmethod
    @contextmanager
    def running(cls, index: int = 0) -> Iterator[GpuMeter]:
        """Sample card ``index`` until the end of the block."""
        meter = cls()
        with nvml_card(index) as (nvml, card):
            if nvml is None:
                yield meter
                return

            def read(what: str) -> Any:
                try:
                    return getattr(nvml, f"nvmlDeviceGet{what}")(card)
                except nvml.NVMLError:  # virtual cards support few functions
                    return None

            def sample() -> None:
                if (milliwatts := read("PowerUsage")) is not None:
                    meter._samples["watts"].append(milliwatts / 1e3)
                if (rates := read("UtilizationRates")) is not None:
                    meter._samples["gpu_percent"].append(rates.gpu)
                if (memory := read("MemoryInfo")) is not None:
                    meter._samples["memory_mb"].append(memory.used / 1e6)

            before_mj = read("TotalEnergyConsumption")
            with sampling(sample, _EVERY_S):
                yield meter
            if before_mj is not None:
                meter._joules = (read("TotalEnergyConsumption") - before_mj) / 1e3

    def report(self, images: int) -> dict[str, float]:
        """After the block: the medians of what the card could tell, and images per joule; empty without a card."""
        found = {name: statistics.median(values) for name, values in self._samples.items() if values}
        return {**found, **({"images_per_joule": images / self._joules} if self._joules else {})}


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


def tree_s(process: int) -> float:
    """Processor seconds of a process and its children so far."""
    parent = psutil.Process(process)
    times = [one.cpu_times() for one in (parent, *parent.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))

"""Meters of cost: processor time, memory of a new process, an NVIDIA card (NVML), and a Ray cluster."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

# Not forked, because a process that has used gRPC cannot be.
SPAWN: Final = multiprocessing.get_context("spawn")
_EVERY_S: Final = 0.2
_GPU_FIGURES: Final[dict[str, tuple[str, Callable[[Any], float]]]] = {
    "watts": ("PowerUsage", lambda milliwatts: milliwatts / 1e3),
    "gpu_percent": ("UtilizationRates", lambda rates: float(rates.gpu)),
    "memory_mb": ("MemoryInfo", lambda memory: memory.used / 1e6),
}
"""Name -> NVML's function, and what is made of its value."""


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


@contextmanager
def gpu_meter(index: int = 0) -> Iterator[dict[str, float]]:
    """Sample an NVIDIA card until the end of the block, which fills what this gives: medians, and joules.

    It stays empty without a card, and without what a card cannot tell.
    """
    found: dict[str, float] = {}
    samples: defaultdict[str, list[float]] = defaultdict(list)
    with nvml_card(index) as (nvml, card):

        def read(what: str) -> Any:
            try:
                return getattr(nvml, f"nvmlDeviceGet{what}")(card)
            except nvml.NVMLError:  # virtual cards support few functions
                return None

        def sample() -> None:
            for name, (what, figure_of) in _GPU_FIGURES.items():
                if (value := read(what)) is not None:
                    samples[name].append(figure_of(value))

        if nvml is None:
            yield found
            return
        before_mj = read("TotalEnergyConsumption")
        with sampling(sample, _EVERY_S):
            yield found
        found.update((name, statistics.median(values)) for name, values in samples.items())
        if before_mj is not None:
            found["joules"] = (read("TotalEnergyConsumption") - before_mj) / 1e3


class RayGauge:
    """Measures the memory of Ray's object store and workers on this machine while it runs."""

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
        """Measure until the end of the block."""
        import ray
        from ray._private.internal_api import get_memory_info_reply, get_state_from_address

        gauge = cls()
        state = get_state_from_address(ray.get_runtime_context().gcs_address)

        def poll() -> None:
            used = get_memory_info_reply(state).store_stats.object_store_bytes_used
            gauge.store_bytes = max(gauge.store_bytes, used)
            for process in psutil.process_iter(["cmdline"]):
                with suppress(psutil.Error):  # it has ended
                    if process.info["cmdline"] and process.info["cmdline"][0].startswith("ray::"):
                        gauge.worker_bytes = max(gauge.worker_bytes, process.memory_full_info().uss)
                        gauge._processor_s[process.pid] = sum(process.cpu_times()[:2])

        with sampling(poll, _EVERY_S):
            yield gauge


def tree_s(process: int) -> float:
    """Processor seconds of a process and its children so far."""
    parent = psutil.Process(process)
    return float(sum(sum(one.cpu_times()[:2]) for one in (parent, *parent.children(recursive=True))))


def memory_mb(process: int) -> dict[str, float]:
    """Memory of a process and its children: of their own, and on the first NVIDIA card, if there is one."""
    parent = psutil.Process(process)
    every = {one.pid: one.memory_full_info().uss for one in (parent, *parent.children(recursive=True))}
    found = {"own": sum(every.values()) / 1e6}
    with nvml_card() as (nvml, card):
        if nvml is not None:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(card)
            found["card"] = sum(one.usedGpuMemory or 0 for one in running if one.pid in every) / 1e6
    return found


def in_new_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call ``measure`` in a new Python process, whose peak of memory holds no earlier measurement."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        return pool.submit(measure, *arguments).result()


def peak_memory_mb() -> float:
    """Peak resident memory of this process; ``ru_maxrss`` would include the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6

"""Memory, utilisation, power and energy of an NVIDIA card during a measurement, sampled through NVML."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import ModuleType

    from typing_extensions import Self

INTERVAL_S: Final = 0.2


class GpuMeter:
    """A context manager that samples GPU ``index`` until its block ends; without a card it does nothing."""

    def __init__(self, index: int = 0) -> None:
        self._index = index
        self._nvml: ModuleType | None = None
        self._samples: list[dict[str, float]] = []
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
        except Exception:  # no package, no driver or no card: NVML has a class for each of some thirty errors
            return self
        self._nvml = pynvml
        self._start = time.perf_counter()
        self._energy_mj = self._read("nvmlDeviceGetTotalEnergyConsumption")
        self._thread = threading.Thread(target=self._sample, name="GPU meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._nvml is None:
            return
        self._ended.set()
        self._thread.join()
        self._seconds = time.perf_counter() - self._start
        before, after = self._energy_mj, self._read("nvmlDeviceGetTotalEnergyConsumption")
        if before is None or after is None:  # cards before Volta have no energy counter
            watts = [sample["watts"] for sample in self._samples if "watts" in sample]
            self._joules = sum(watts) / max(1, len(watts)) * self._seconds
        else:
            self._joules = (after - before) / 1e3
        self._nvml.nvmlShutdown()

    def report(self, images: int) -> dict[str, Any] | None:
        """After the block: seconds, joules, images per joule and the samples over time; None without a card."""
        if self._nvml is None:
            return None
        return {
            "seconds": self._seconds,
            "joules": self._joules,
            "images_per_joule": images / self._joules if self._joules else None,
            "samples": self._samples,
        }

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            sample = {"s": round(time.perf_counter() - self._start, 3)}
            if (watts := self._read("nvmlDeviceGetPowerUsage")) is not None:
                sample["watts"] = watts / 1e3
            if (rates := self._read("nvmlDeviceGetUtilizationRates")) is not None:
                sample["gpu_percent"], sample["memory_percent"] = rates.gpu, rates.memory
            if (memory := self._read("nvmlDeviceGetMemoryInfo")) is not None:
                sample["memory_mb"] = round(memory.used / 1e6, 1)
            if (clock := self._read("nvmlDeviceGetClockInfo", 1)) is not None:  # NVML_CLOCK_SM
                sample["sm_mhz"] = clock
            self._samples.append(sample)

    def _read(self, function: str, *arguments: int) -> Any:
        """Call an NVML function; None if this card does not support it."""
        assert self._nvml is not None
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except Exception:  # see above; virtual cards support few functions
            return None

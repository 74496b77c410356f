"""What this processor can do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Set
from pathlib import Path
from typing import Final

_CPU_INFO: Final = Path("/proc/cpuinfo")
_DEVICES: Final = Path("/sys/devices")

_BF16: Final = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags of which either makes bf16 fast. Without them bf16 is emulated, or fp32 is used in its place."""

_FAST: Final = 0.8
"""Share of the highest clock that a performance core reaches; those of one processor differ by a few per cent."""


def has_fast_bf16(cpu_info: Path = _CPU_INFO) -> bool:
    """Return whether the processor multiplies bf16 numbers in hardware; False where Linux does not say so."""
    try:
        lines = cpu_info.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not _BF16.isdisjoint(flags)


def performance_cores(devices: Path = _DEVICES, usable: Set[int] | None = None) -> int:
    """Return how many fast cores of a hybrid processor this process may use; 0 if its cores are alike or unknown.

    ONNX Runtime gives each of its threads the same share of a product, so a thread on an efficiency core would make
    the others wait. Two hyper-threads are one core. ``usable`` are the processors of the process, by Linux's numbers,
    for tests. Windows does not say which cores are fast.
    """
    if sys.platform == "darwin":
        return _performance_cores_of_a_mac()
    if usable is None:
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    cpus = devices / "system" / "cpu"
    fast = _listed(devices / "cpu_core" / "cpus")  # Intel
    if not fast:
        clocks = {cpu: max(_listed(cpus / f"cpu{cpu}" / "cpufreq" / "cpuinfo_max_freq"), default=0) for cpu in usable}
        fast = {cpu for cpu, clock in clocks.items() if clock >= _FAST * max(clocks.values())}
    if usable <= fast:
        return 0
    siblings = {cpu: _listed(cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list") for cpu in usable & fast}
    return len({min(found, default=cpu) for cpu, found in siblings.items()})


def _performance_cores_of_a_mac() -> int:
    """Not tested on a Mac; one with an Intel processor does not know the name."""
    command = ("sysctl", "-n", "hw.perflevel0.physicalcpu")
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return int(found) if found.isdecimal() else 0


def _listed(file: Path) -> set[int]:
    """Return the numbers in a file such as ``0-3,8``; none if it cannot be read."""
    try:
        ranges = [part.partition("-") for part in file.read_text(encoding="ascii").strip().split(",") if part]
    except OSError:
        return set()
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}

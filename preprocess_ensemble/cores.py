"""Numbers of cores and threads. The server, the client and the model all count cores with this module."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")

_FAST: Final = 0.8
"""Share of the highest clock that every performance core reaches; their clocks differ by a few per cent."""


def usable_cores(root: Path = _ROOT) -> int:
    """Return the cores that this process may use, by affinity and by its groups' quotas: 1.5 cores count as two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, _cpu_quotas(root))]))


def model_threads(root: Path = _ROOT) -> int:
    """Return the number of threads that a model should have; 0 leaves it to the runtime, which then takes all cores.

    On a hybrid processor it is the number of usable performance cores. If the process may use only some cores, it is
    their number: ONNX Runtime by itself would pin a thread to each core of the machine.
    """
    usable = usable_cores(root)
    is_limited = usable < (os.cpu_count() or usable)
    return min(performance_cores(root), usable) or (usable if is_limited else 0)


def performance_cores(root: Path = _ROOT) -> int:
    """Return the number of fast cores that this process may use; 0 if all cores are alike or unknown.

    ONNX Runtime gives each of its threads the same share of a product, so a thread on an efficiency core would make
    the others wait. Two hyper-threads count as one core. Windows does not say which cores are fast.
    """
    if sys.platform == "darwin":
        # Never tested on a Mac. A Mac with an Intel processor has no such level.
        command = ("sysctl", "-n", "hw.perflevel0.physicalcpu")
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        return int(found) if found.isdecimal() else 0
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    devices = root / "sys" / "devices"
    cpus = devices / "system" / "cpu"
    fast = _listed(devices / "cpu_core" / "cpus")  # Intel
    if not fast:
        clocks = {cpu: max(_listed(cpus / f"cpu{cpu}" / "cpufreq" / "cpuinfo_max_freq"), default=0) for cpu in usable}
        fast = {cpu for cpu, clock in clocks.items() if clock >= _FAST * max(clocks.values())}
    if usable <= fast:
        return 0
    siblings = {cpu: _listed(cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list") for cpu in usable & fast}
    return len({min(found, default=cpu) for cpu, found in siblings.items()})


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of the control groups of this process; a container's runtime sets such a quota."""
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        mount = root / "sys" / "fs" / "cgroup"
        if controllers:  # version 1
            if "cpu" not in controllers.split(","):
                continue
            mount /= "cpu"
        group = mount / path.lstrip("/")
        # In a container, the path may be the path on the host, although only the last group is mounted.
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(mount))):
            if controllers:
                quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
            else:
                quota, _, period = _text(folder / "cpu.max").partition(" ")
            # The text is "max", or -1 in version 1, if there is no quota.
            if quota.isdecimal() and period.isdecimal() and int(period):
                yield int(quota) / int(period)


def _listed(file: Path) -> set[int]:
    ranges = [part.partition("-") for part in _text(file).split(",") if part]
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

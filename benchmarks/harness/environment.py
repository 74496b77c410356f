"""The machine, versions and commit that a result was measured with, so that its numbers can be judged later."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = (
    "numpy",
    "pillow",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "torch",
    "open_clip_torch",
    "grpcio",
    "tritonclient",
    "nvidia-pytriton",
    "fastapi",
    "uvicorn",
)
FLAGS: Final = frozenset({"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"})
"""CPU flags that decide which precision is fast."""
LOAD_BEFORE: Final = round(os.getloadavg()[0], 2)
"""Other load on the machine when this program started; at its end most of the load is its own."""
CARRIED_COMMIT: Final = Path(__file__).parents[2] / "COMMIT"
"""Written by ``gpu_kit``, because the tree of an offline bundle has no git."""


def environment() -> dict[str, Any]:
    """Describe the machine, the versions and the commit."""
    described = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    cpu = {key.strip(): value.strip() for key, _, value in described}
    carried = CARRIED_COMMIT.read_text().strip() if CARRIED_COMMIT.exists() else None
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_flags": sorted(FLAGS & set(cpu.get("flags", "").split())),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_average_before": LOAD_BEFORE,
        "load_average": round(os.getloadavg()[0], 2),
        "gpu": output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") or card_name(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": carried or output("git", "rev-parse", "--short", "HEAD"),
        "modified": bool(output("git", "status", "--porcelain", "--untracked-files=no")),
    }


def output(*command: str) -> str | None:
    """Return what a command prints, stripped; None if it fails or is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def card_name() -> str | None:
    """Name and driver of the first GPU in nvidia-smi's form, for machines without it; None without a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        listed = f"{name}, {pynvml.nvmlSystemGetDriverVersion()}"
        pynvml.nvmlShutdown()
    except Exception:  # no package, no driver or no card: NVML has a class for each of some thirty errors
        return None
    return listed


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

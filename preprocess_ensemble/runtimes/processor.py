"""What this processor can do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CPU_INFO: Final = Path("/proc/cpuinfo")

_BF16: Final = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags of which either makes bf16 fast. Without them bf16 is emulated, or fp32 is used in its place."""


def has_fast_bf16(cpu_info: Path = _CPU_INFO) -> bool:
    """Return whether the processor multiplies bf16 numbers in hardware; False where Linux does not say so."""
    try:
        lines = cpu_info.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not _BF16.isdisjoint(flags)

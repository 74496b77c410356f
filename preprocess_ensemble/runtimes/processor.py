"""What this processor is."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Final

_CPU_INFO: Final = Path("/proc/cpuinfo")

_BF16: Final = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags of which either means instructions for bf16. Without them bf16 is emulated, or fp32 is used in its place."""

_IDENTITY: Final = ("vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags")
"""Fields of cpuinfo that tell kinds of processors apart. A virtual machine may hide the name but not the flags."""


def has_bf16(cpu_info: Path = _CPU_INFO) -> bool:
    """Return whether the processor has instructions for bf16; False where Linux does not say so.

    They may be slower than fp32: on an Intel processor with avx512_bf16 but without AMX, bf16 had 0.6 times the rate.
    """
    return not _BF16.isdisjoint(_fields(cpu_info).get("flags", "").split())


def processor_id(cpu_info: Path = _CPU_INFO) -> str:
    """Return a name of this kind of processor, with a digest of all that is known of it."""
    fields = _fields(cpu_info)
    known = [fields.get(name, "") for name in _IDENTITY] if fields else [platform.processor(), platform.machine()]
    digest = hashlib.sha256("\n".join(known).encode()).hexdigest()[:8]
    return f"{fields.get('model name') or platform.processor() or platform.machine()} {digest}"


def _fields(cpu_info: Path) -> dict[str, str]:
    """Return the fields of the first processor; none where there is no such file."""
    try:
        text = cpu_info.read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}

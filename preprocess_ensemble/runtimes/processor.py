"""The kind of this processor, and the fastest runtime on it: a table of measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CPU_INFO: Final = Path("/proc/cpuinfo")

_BF16: Final = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags for instructions with bf16; one is enough. Without them bf16 is emulated, or replaced by fp32."""

ONNX_RUNTIME: Final = "ONNX Runtime fp32"
OPENVINO: Final = "OpenVINO fp32"
OPENVINO_BF16: Final = "OpenVINO bf16"


@dataclass(frozen=True, kw_only=True)
class Processor:
    """A kind of processor, as Linux describes it; empty on other systems."""

    vendor: str = ""  # such as ``"AuthenticAMD"``
    flags: frozenset[str] = frozenset()

    @classmethod
    def here(cls, cpu_info: Path | None = None) -> Processor:
        try:
            text = (cpu_info or _CPU_INFO).read_text(encoding="ascii", errors="replace")
        except OSError:
            return cls()
        lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
        return cls(vendor=fields.get("vendor_id", ""), flags=frozenset(fields.get("flags", "").split()))

    @property
    def has_bf16(self) -> bool:
        """Whether the processor has instructions for bf16. They may still be slower than fp32."""
        return not _BF16.isdisjoint(self.flags)


@dataclass(frozen=True, kw_only=True)
class Row:
    vendor: str
    flag: str  # one of ``Processor.flags``
    images: str
    """ONNX_RUNTIME, OPENVINO or OPENVINO_BF16, the fastest for an image tower; among equals, the most exact."""
    texts: str
    measured: str  # the measurement behind the choice, and gaps in it

    @property
    def processors(self) -> str:
        return f"{_VENDORS[self.vendor]} with {self.flag}"

    def __str__(self) -> str:
        return f"{self.processors}, ViT-B-32 in batches of 1 / 8 / 32: {self.measured}"


_VENDORS: Final[Mapping[str, str]] = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}

TABLE: Final = (
    Row(
        vendor="AuthenticAMD",
        flag="avx512_bf16",
        images=OPENVINO_BF16,
        texts=OPENVINO_BF16,
        measured="ONNX Runtime fp32 35.8 / 51.4 / 51.9 images/s, OpenVINO fp32 39.6 / 53.9 / 54.3, bf16 72.3 / 93.8 / "
        "104.3; ONNX Runtime fp32 180.9 / 411.9 / 499.3 texts/s, OpenVINO fp32 185.9 / 445.9 / 516.9, bf16 355.1 / "
        "710.2 / 818.2",
    ),
    Row(
        vendor="GenuineIntel",
        flag="amx_bf16",
        images=OPENVINO_BF16,
        texts=OPENVINO_BF16,
        measured="ONNX Runtime fp32 19.4 / 27.7 / 27.3 images/s, OpenVINO fp32 18.9 / 30.6 / 31.9, bf16 49.5 / 107.7 / "
        "117.0; ONNX Runtime fp32 82.9 / 203.3 / 277.0 texts/s, OpenVINO fp32 73.7 / 223.7 / 303.5, bf16 176.3 / 498.6 "
        "/ 911.2",
    ),
    Row(
        vendor="GenuineIntel",
        flag="avx512_bf16",
        images=OPENVINO,
        texts=OPENVINO,
        measured="ONNX Runtime fp32 21.5 / 30.9 / 30.4 images/s, OpenVINO fp32 23.0 / 32.2 / 33.7, bf16 17.3 / 18.2 / "
        "19.5; texts not measured",
    ),
    Row(
        vendor="AuthenticAMD",
        flag="avx2",
        images=ONNX_RUNTIME,
        texts=ONNX_RUNTIME,
        measured="ONNX Runtime fp32 9.0 / 11.7 / 10.2 images/s, OpenVINO fp32 8.6 / 11.8 / 10.5; "
        "ONNX Runtime fp32 11.4 / 15.3 / 13.4 texts/s of 77 tokens each, OpenVINO fp32 11.3 / 12.6 / 15.3; other work "
        "slowed both",
    ),
)
"""The first row that matches a processor's vendor and flags counts. Rates are those of ViT-B-32 on two cores, for
batches of 1 / 8 / 32, medians of rounds in which the runtimes took turns; ``python -m benchmarks runtimes`` measures a
row. Flags alone do not tell the fastest runtime: with avx512_bf16, bf16 is twice as fast as fp32 on AMD, but slower on
Intel."""


def row_of(processor: Processor) -> Row | None:
    """Return the row for ``processor``; None if no such processor was measured."""
    return next((row for row in TABLE if row.vendor == processor.vendor and row.flag in processor.flags), None)

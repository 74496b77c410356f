"""NVIDIA cards and their peaks, from the maker's data sheets.

Peaks are dense tensor-core rates with fp32 accumulation, in TFLOP/s, at the stated boost clock. Rates that a sheet
gives only "with sparsity" are halved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Card:
    """The peaks of one card in TFLOP/s, and where they are stated."""

    fp16: float
    tf32: float
    fp32: float
    """Of the plain cores, which run fp32 without TF32."""
    memory: float
    """Bandwidth in TB/s."""
    source: str


CARDS: Final[Mapping[str, Card]] = {
    # The first entry whose words all occur in the name is used.
    "H200": Card(
        fp16=989.4, tf32=494.7, fp32=66.9, memory=4.8, source="NVIDIA H200 Tensor Core GPU data sheet (halved)"
    ),
    "H100 PCIe": Card(fp16=756.0, tf32=378.0, fp32=51.2, memory=2.0, source="NVIDIA H100 PCIe data sheet (halved)"),
    "H100 NVL": Card(fp16=835.5, tf32=417.5, fp32=60.0, memory=3.9, source="NVIDIA H100 NVL data sheet (halved)"),
    "H100": Card(
        fp16=989.4, tf32=494.7, fp32=66.9, memory=3.35, source="NVIDIA H100 Tensor Core GPU Architecture, table 2"
    ),
    "A100 80GB": Card(fp16=312.0, tf32=156.0, fp32=19.5, memory=1.935, source="NVIDIA A100 data sheet (PCIe)"),
    "A100": Card(fp16=312.0, tf32=156.0, fp32=19.5, memory=1.555, source="NVIDIA A100 data sheet (40 GB)"),
    "L40S": Card(fp16=362.1, tf32=183.0, fp32=91.6, memory=0.864, source="NVIDIA L40S data sheet"),
    "L4": Card(fp16=121.0, tf32=60.0, fp32=30.3, memory=0.3, source="NVIDIA L4 data sheet (halved)"),
    "A10": Card(fp16=125.0, tf32=62.5, fp32=31.2, memory=0.6, source="NVIDIA A10 data sheet"),
    "T4": Card(fp16=65.0, tf32=8.1, fp32=8.1, memory=0.32, source="NVIDIA T4 data sheet"),
}


def card(name: str | None) -> Card | None:
    """Return the card that ``name`` (as nvidia-smi prints it) stands for; None if it is not in :data:`CARDS`."""
    words = (name or "").replace(",", " ").replace("-", " ").split()
    return next((known for key, known in CARDS.items() if set(key.split()) <= set(words)), None)

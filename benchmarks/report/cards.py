"""NVIDIA cards and their peaks, from the maker's data sheets.

Peaks are dense tensor-core rates with fp32 accumulation, in TFLOP/s, at the stated boost clock. Rates that a sheet
gives only "with sparsity" are halved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Card(NamedTuple):
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
    "H200": Card(989.4, 494.7, 66.9, 4.8, "NVIDIA H200 Tensor Core GPU data sheet (halved)"),
    "H100 PCIe": Card(756.0, 378.0, 51.2, 2.0, "NVIDIA H100 PCIe data sheet (halved)"),
    "H100 NVL": Card(835.5, 417.5, 60.0, 3.9, "NVIDIA H100 NVL data sheet (halved)"),
    "H100": Card(989.4, 494.7, 66.9, 3.35, "NVIDIA H100 Tensor Core GPU Architecture, table 2"),
    "A100 80GB": Card(312.0, 156.0, 19.5, 1.935, "NVIDIA A100 data sheet (PCIe)"),
    "A100": Card(312.0, 156.0, 19.5, 1.555, "NVIDIA A100 data sheet (40 GB)"),
    "L40S": Card(362.1, 183.0, 91.6, 0.864, "NVIDIA L40S data sheet"),
    "L4": Card(121.0, 60.0, 30.3, 0.3, "NVIDIA L4 data sheet (halved)"),
    "A10": Card(125.0, 62.5, 31.2, 0.6, "NVIDIA A10 data sheet"),
    "T4": Card(65.0, 8.1, 8.1, 0.32, "NVIDIA T4 data sheet"),
}


def card(name: str | None) -> Card | None:
    """Return the card that ``name`` (as nvidia-smi prints it) stands for; None if it is not in :data:`CARDS`."""
    words = (name or "").replace(",", " ").replace("-", " ").split()
    return next((known for key, known in CARDS.items() if set(key.split()) <= set(words)), None)

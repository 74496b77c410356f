"""How images travel: as the files that they are, or reduced to what the model needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

TransferName = Literal["thumbnail", "thumbnail-small", "original"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Jpeg:
    """Settings of Pillow's JPEG encoder."""

    quality: int
    subsampling: int
    """0 is 4:4:4, which keeps the colour's full resolution; 2 is 4:2:0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageEncoding:
    """One way for images to travel."""

    id: str
    """Part of a vector's id."""
    jpeg: Jpeg | None
    """How a reduced picture is encoded; None where files are never reduced."""
    unchanged_up_to: int
    """A file of no more bytes than that travels as it is: what a reduced picture would cost on average."""


IMAGE_ENCODINGS: Final[Mapping[TransferName, ImageEncoding]] = {
    "thumbnail": ImageEncoding(
        id="thumb-jpeg-q90-444", jpeg=Jpeg(quality=90, subsampling=0), unchanged_up_to=16 * 1024
    ),
    "thumbnail-small": ImageEncoding(
        id="thumb-jpeg-q80-420", jpeg=Jpeg(quality=80, subsampling=2), unchanged_up_to=10 * 1024
    ),
    "original": ImageEncoding(id="original", jpeg=None, unchanged_up_to=sys.maxsize),
}
"""Chosen from the table that ``python -m benchmarks transfer`` prints; ``docs/client.md`` says how. WebP is smaller at
equal error, and takes ten times as long to encode; what is lossless is three times as large."""

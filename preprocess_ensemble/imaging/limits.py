"""What one image may cost, and the error for an image that cannot be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preprocess_ensemble.contract import ImageStatus

__all__ = ("DecodeError", "DecodeLimits")


class DecodeError(ValueError):
    """One image could not be decoded; ``message`` is one sentence for people, without a path or a traceback."""

    def __init__(self, status: ImageStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, kw_only=True)
class DecodeLimits:
    """What an image may cost; all but ``max_bytes`` are checked on its header, before a pixel is decoded."""

    max_bytes: int = 64 * 2**20
    max_pixels: int = 128_000_000
    """Room for the 108-megapixel cameras of telephones. A pixel takes 4 bytes, 8 while it is turned, 12 with
    alpha: at this limit half a gigabyte to one and a half. Images over 32 megapixels take turns for it.

    Above twice ``PIL.Image.MAX_IMAGE_PIXELS`` (179 megapixels) Pillow refuses some formats by itself."""
    max_side_ratio: float = 50.0
    """Longer side over shorter side."""
    max_frames: int = 10_000
    """Only the first frame is decoded; a file with more frames than this is no photo."""
    max_metadata_bytes: int = 8 * 2**20
    """EXIF, XMP, colour profile and text together."""
    allow_truncated: bool = False
    """Take what a file that ends early still shows; the rest is grey or black."""

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_side_ratio", "max_frames", "max_metadata_bytes"):
            value = getattr(self, name)
            if not value >= 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")

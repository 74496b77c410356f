"""What may become of an image file: its status, the error that carries one, and the limits behind some of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ("DecodeError", "DecodeLimits", "ImageStatus")


class ImageStatus(IntEnum):
    """What became of one image; the number travels in the ``status`` tensor, the name in every error and report."""

    OK = 0
    EMPTY = 1
    """No bytes at all."""
    NOT_AN_IMAGE = 2
    """The bytes are of no image format that is known here."""
    UNSUPPORTED_FORMAT = 3
    """An image, but of a format or variant that cannot be read here."""
    TRUNCATED = 4
    """The file ends before the picture does."""
    CORRUPT = 5
    """The file contradicts itself."""
    TOO_LARGE = 6
    """More bytes or pixels than the limits allow."""
    LIMIT = 7
    """Another limit: side ratio, frames, size of metadata, time."""
    INTERNAL = 8
    """A defect of this program, not of the image."""


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

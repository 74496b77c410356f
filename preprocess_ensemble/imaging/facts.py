"""Facts about a file that are known before a pixel is decoded, and the one check of them against the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.limits import DecodeError, check_count
from preprocess_ensemble.imaging.structure_limits import scans_within_limit

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.limits import DecodeLimits

_MAX_ANIMATED_PIXELS: Final = 32_000_000
"""Limit for animations. Their decoders hold the canvas several times, 16 bytes per pixel in all, and a file of 4 KB may
claim any size."""

_MAX_SLOW_PIXELS: Final = 1_000_000
"""Limit for variants that Pillow decodes in Python, at a microsecond or more per pixel and with the GIL held."""

_RLE_BYTES_PER_PIXEL: Final = 3
_RLE_BYTES: Final = 65_536
"""Limits of a run-length BMP. A run of one pixel takes two bytes; the rest is for header, palette and ends of lines."""


class Facts(NamedTuple):
    """Header and structure of a file, as far as limits concern them."""

    file_bytes: int
    width: int
    """Pixels, as stored."""
    height: int
    frames: int = 1
    """At most one more than the limit."""
    metadata_bytes: int = 0
    scans: int = 0
    """Number for a progressive JPEG; 0 for other files."""
    is_slow: bool = False
    """True if Pillow decodes the pixels in Python."""
    is_animated: bool = False
    """True for an animation whose decoder holds the canvas several times."""
    is_run_length: bool = False
    """True for a BMP with run-length coding."""


def check(facts: Facts, limits: DecodeLimits) -> None:
    """Raise :class:`DecodeError` for a file whose pixels must not be decoded.

    - TOO_LARGE: more pixels than the limit, or than a limit for this variant of the format.
    - LIMIT: side ratio, frames, metadata, scans, or codes without pixels.
    """
    pixels, sides = facts.width * facts.height, f"{facts.width} x {facts.height}"
    for applies, most, where in (
        (True, limits.max_pixels, ""),
        (facts.is_slow, _MAX_SLOW_PIXELS, " for this rare variant of its format, which is slow to decode"),
        (facts.is_animated, _MAX_ANIMATED_PIXELS, " for an animation"),
    ):
        if applies and pixels > most:
            message = f"The image has {pixels / 1e6:,.1f} megapixels ({sides}); the limit is {most / 1e6:g}{where}."
            raise DecodeError(ImageStatus.TOO_LARGE, message)
    # Limit the bytes of a run-length BMP: codes that only move the position hold no pixels, but cost as much.
    most = _RLE_BYTES_PER_PIXEL * pixels + _RLE_BYTES
    if facts.is_run_length and facts.file_bytes > most:
        message = f"The BMP file has {facts.file_bytes:,} bytes; the limit is {most:,} for {sides} pixels "
        raise DecodeError(ImageStatus.LIMIT, message + "with run-length coding.")
    ratio = max(facts.width, facts.height) / min(facts.width, facts.height)
    if ratio > limits.max_side_ratio:
        message = f"The image's sides, {sides}, have a ratio of {ratio:.1f}; the limit is {limits.max_side_ratio:g}."
        raise DecodeError(ImageStatus.LIMIT, message)
    check_count(facts.frames, limits.max_frames, "image", "frames")
    if facts.metadata_bytes > limits.max_metadata_bytes:
        message = f"The image carries {facts.metadata_bytes:,} bytes of metadata (EXIF, XMP, colour profile); "
        raise DecodeError(ImageStatus.LIMIT, f"{message}the limit is {limits.max_metadata_bytes:,}.")
    if not scans_within_limit(facts.scans, pixels):
        message = f"The JPEG file has {facts.scans:,} scans, too many for its {sides} pixels."
        raise DecodeError(ImageStatus.LIMIT, message)

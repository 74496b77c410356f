"""The header of a JPEG file: what is needed to choose a decoder.

Only headers that follow ITU-T T.81 to the letter are read. All other files go to Pillow, whose reader is lenient and
whose answer counts.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

Sampling = tuple[tuple[int, int], ...]

_START_OF_SCAN: Final = 0xDA
_COMMENT: Final = 0xFE
# T.81, table B.1: these have the layout of a frame header; 0xC4, 0xC8 and 0xCC lie between them and have another.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers without a length: TEM, restart markers, start and end of image. None of them belongs in a header.
_BARE: Final = frozenset({0x00, 0x01, *range(0xD0, 0xDA), 0xFF})

_SEGMENT: Final = struct.Struct(">BBH")
"""0xFF, the marker, and the length of what follows the marker."""
_FRAME: Final = struct.Struct(">BHHB")
"""Bits per sample, height, width, number of components."""

_PROGRESSIVE: Final = 0xC2
_HUFFMAN_8_BIT: Final = frozenset({0xC0, 0xC1, _PROGRESSIVE})
"""Baseline, extended sequential and progressive. Arithmetic and lossless coding are rare; some libraries lack them."""

_MAX_SCANS: Final = 1000
_MAX_SCANNED_PIXELS: Final = 2_000_000_000
"""Scans times pixels. A scan of a few bytes takes up to 0.65 ms per megapixel to decode, so this is 1.3 s; encoders
make about ten scans, so 128 megapixels fit."""


class JpegHeader(NamedTuple):
    """The frame header and what stands before the first scan."""

    width: int
    height: int
    coding: int
    """The frame's marker, 0xC0 to 0xCF."""
    precision: int
    """Bits per sample."""
    sampling: Sampling
    """(horizontal, vertical) factor of each component."""
    metadata_bytes: int
    """Total length of application segments and comments."""
    has_app1: bool
    """Whether there is an EXIF or XMP block, which may hold an orientation."""

    @property
    def is_progressive(self) -> bool:
        """Whether a decoder must hold all frequencies of the picture before it can make a pixel."""
        return self.coding == _PROGRESSIVE

    @property
    def is_plain(self) -> bool:
        """Whether it has one or three components of 8 bits, in a coding that every JPEG library reads."""
        return self.coding in _HUFFMAN_8_BIT and self.precision == 8 and len(self.sampling) in (1, 3)


def read_header(data: bytes) -> JpegHeader | None:
    """Read up to the first scan; None for anything unusual, such as padding, a second frame or a missing part."""
    metadata_bytes = 0
    has_app1 = False
    frame: tuple[int, int, int, int, Sampling] | None = None
    position = 2
    try:
        while True:
            start, marker, length = _SEGMENT.unpack_from(data, position)
            if start != 0xFF or marker in _BARE:
                return None
            body = position + 4
            position += 2 + length
            if length < 2 or position > len(data):
                return None
            if marker == _START_OF_SCAN:
                break
            if 0xE0 <= marker <= 0xEF or marker == _COMMENT:
                metadata_bytes += length
                has_app1 |= marker == 0xE1
            elif marker in _FRAMES:
                if frame is not None:
                    return None
                precision, height, width, count = _FRAME.unpack_from(data, body)
                if length != 8 + 3 * count:
                    return None
                factors = data[body + 7 : position : 3]
                sampling = tuple([(factor >> 4, factor & 15) for factor in factors])
                frame = (width, height, marker, precision, sampling)
    except struct.error:
        return None
    if frame is None or not (frame[0] and frame[1]):
        return None
    return JpegHeader(*frame, metadata_bytes, has_app1)


def count_scans(data: bytes) -> int:
    """Return how many scans the file may have; those of a picture inside the metadata count too."""
    return data.count(b"\xff\xda")


def scans_within_limit(data: bytes, pixels: int) -> bool:
    """Whether the scans of a file of ``pixels`` (width times height) can be decoded in reasonable time."""
    scans = count_scans(data)
    return scans <= _MAX_SCANS and scans * pixels <= _MAX_SCANNED_PIXELS

"""Conditions on two files before a pixel is compared: a proof about pixels says nothing about the rest of a file.

Photos of the same numbers under two profiles look different, and a file of 16 bits holds more than its high bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from PIL import Image

from clip_client.dedup.formats.embedded_parts import EmbeddedParts, embedded_parts
from clip_client.dedup.formats.encoding import Encoding, read_encoding, read_pixels
from clip_client.dedup.types import Floats, Pixels

UNREADABLE: Final = "cannot be read"
LOSSY_WITHOUT_STEPS: Final = "lossy format without known steps"
UNUSUAL_CODING: Final = "unusual coding"
"""A JPEG in RGB, CMYK or YCCK, of 12 bits, of arithmetic or lossless coding, or whose steps cannot be known."""
UNEVEN_SAMPLING: Final = "unevenly sampled colours"
COARSE: Final = "coarse steps"
DEEP: Final = "more than 8 bits"
MORE_THAN_A_PICTURE: Final = "transparency, frames or channels"
FURTHER_PARTS: Final = "further parts"
GREY_OF_COLOUR: Final = "grey of a colour photo"
OTHER_PROFILE: Final = "another colour profile"

_JPEG_START: Final = b"\xff\xd8\xff"
_STEPS, _SCAN = b"\xdb", b"\xda"
"""Markers of a table of steps, and of the start of a scan."""
_JPEG_XL: Final = (b"\xff\x0a", b"\0\0\0\x0cJXL ")
_MOST_COLOUR: Final = 2
"""Levels of chroma of a grey picture: RGB is rounded on the way to YCbCr and back, which leaves one."""


class NotProvedError(Exception):
    """Nothing can be proved about the two files; the text is the reason."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Checked:
    """A file that passed the gate."""

    data: bytes
    """The file; of a JPEG XL that was made from a JPEG without loss, that JPEG."""
    encoding: Encoding
    pixels: Pixels | None
    """(H, W, 3): upright, RGB. None for a duplicate in JPEG, which is decoded on its own grid."""

    @cached_property
    def stored_luma(self) -> tuple[Pixels, Floats] | None:
        """Y (H, W) of a JPEG as it is stored, and its steps (64,); None for another file."""
        if not self.data.startswith(_JPEG_START):
            return None  # before a reader decodes all of it
        with suppress(Exception), Image.open(io.BytesIO(self.data)) as opened:
            image: Any = opened
            steps = np.array(image.quantization[image.layer[0][3]], np.float32)
            image.draft("L", image.size)
            return np.asarray(image), steps
        return None

    def stored_chroma(self) -> list[Pixels]:
        """Return Cb and Cr, (H, W) each, of a JPEG that stores them; none of one that stores grey or RGB."""
        with suppress(Exception), Image.open(io.BytesIO(self.data)) as image:  # one that stores RGB fails to load
            image.draft("YCbCr", image.size)
            return [np.asarray(image.getchannel(band)) for band in ("Cb", "Cr")]
        return []


class PhotoFile:
    """An encoded photo. What is decoded of it stays, because it is compared with several others."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def _parts(self) -> EmbeddedParts:
        return embedded_parts(self.data)

    def check_parts(self, kept: PhotoFile) -> None:
        """Check that ``kept`` holds the further parts of this file. Raises :class:`NotProvedError`."""
        if self._parts.kinds and self._parts.digest != kept._parts.digest:
            raise NotProvedError(FURTHER_PARTS)

    @cached_property
    def as_kept(self) -> Checked:
        """The photo as one that stays. Raises :class:`NotProvedError`."""
        data = _without_jpeg_xl(self.data)
        return _decoded_jpeg(data) or _decoded(data, may_be_deep=True)

    @cached_property
    def as_duplicate(self) -> Checked:
        """The photo as one that moves. Raises :class:`NotProvedError`."""
        data = _without_jpeg_xl(self.data)
        if data.startswith(_JPEG_START):
            encoding = read_encoding(data)
            if encoding is None:
                raise NotProvedError(UNREADABLE)
            _check_coding(data)
            return Checked(data=data, encoding=encoding, pixels=None)
        copy = _decoded(data)
        if not copy.encoding.is_lossless:
            raise NotProvedError(LOSSY_WITHOUT_STEPS)
        return copy


def _without_jpeg_xl(data: bytes) -> bytes:
    if not data.startswith(_JPEG_XL):
        return data
    from preprocess_ensemble.imaging.jpeg_xl import restored_jpeg

    try:
        return restored_jpeg(data) or data
    except Exception as error:  # its decoder may raise anything for a damaged file
        raise NotProvedError(UNREADABLE) from error


def _check_coding(data: bytes) -> None:
    from preprocess_ensemble.imaging.containers.jpeg import read_header, segments

    header = read_header(data)
    if header is None:
        raise NotProvedError(UNUSUAL_CODING)
    _, scan, scans = bytes(marker for marker, *_ in segments(data)).partition(_SCAN)
    if not scan or _STEPS in scans:
        # Later scans have these steps (T.81, section B.2.4.1), and Pillow tells those of the header.
        raise NotProvedError(UNUSUAL_CODING)
    luma, *colours = header.sampling
    if colours and (
        colours[0] != colours[1] or any(ours % theirs for ours, theirs in zip(luma, colours[0], strict=True))
    ):
        raise NotProvedError(UNEVEN_SAMPLING)


def _decoded_jpeg(data: bytes) -> Checked | None:
    """Decode a JPEG of three colours into an array, in half the time of :func:`_decoded`; None for other files."""
    from preprocess_ensemble.imaging.containers.jpeg import read_header
    from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode_image
    from preprocess_ensemble.imaging.inspection import Facts, check

    header = read_header(data) if data.startswith(_JPEG_START) else None
    encoding = None if header is None or len(header.sampling) != 3 else read_encoding(data)
    if header is None or encoding is None or encoding.extras:
        return None
    try:
        check(Facts(len(data), header.width, header.height), DecodeLimits())
        pixels = np.empty((header.height, header.width, 3), np.uint8)
        turned = decode_image(data, out=pixels).image
    except DecodeError as error:
        raise NotProvedError(UNREADABLE) from error
    if turned is None or turned.mode == "RGB":
        return Checked(data=data, encoding=encoding, pixels=pixels if turned is None else np.asarray(turned))
    return None


def _decoded(data: bytes, *, may_be_deep: bool = False) -> Checked:
    """Decode a file that shows one opaque picture; 16 bits, if they may be, are reduced to 8."""
    encoding, pictures = read_pixels(data)
    if encoding is None:
        raise NotProvedError(UNREADABLE)
    if not pictures:
        raise NotProvedError(MORE_THAN_A_PICTURE if encoding.extras else UNREADABLE)
    if pictures[0].mode == "CMYK":
        raise NotProvedError(UNUSUAL_CODING)
    if pictures[0].mode != "RGB":
        raise NotProvedError(MORE_THAN_A_PICTURE)
    if len(pictures) > 1 and not may_be_deep:
        raise NotProvedError(DEEP)
    pixels, *low = map(np.asarray, pictures)
    if low:  # round(v / 257), as every converter does
        pixels = ((pixels.astype(np.uint32) * 256 + low[0] + 128) // 257).astype(np.uint8)
    return Checked(data=data, encoding=encoding, pixels=pixels)


def check_grey(colours: Sequence[Pixels]) -> None:
    """Raise :class:`NotProvedError` if the kept photo of a grey duplicate has colour in its chroma planes (H, W)."""
    if any(np.abs(plane.astype(np.int16) - 128).max() > _MOST_COLOUR for plane in colours):
        raise NotProvedError(GREY_OF_COLOUR)

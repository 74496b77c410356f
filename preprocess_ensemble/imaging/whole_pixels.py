"""Decode all that a file shows, also below transparency and in each bit. :mod:`.decode`, for models, shows less."""

from __future__ import annotations

import struct
import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin

from preprocess_ensemble.imaging.containers.container import Layout, number
from preprocess_ensemble.imaging.containers.plain import BIT_FIELDS, bmp_size
from preprocess_ensemble.imaging.decode import DecodeLimits, decode
from preprocess_ensemble.imaging.formats import identify
from preprocess_ensemble.imaging.limits import DecodeError, unsupported_variant
from preprocess_ensemble.imaging.pillow_decoder import WHITE_IS_ZERO, PillowFile, with_alpha
from preprocess_ensemble.imaging.quiet import quiet_libraries

_IN_OTHER_ORDER: Final = {  # raw modes of Pillow for channels of 16 bits, and those of the opposite byte order
    f"{mode};16{order}": f"{mode};16{other}"
    for mode in ("RGB", "RGBA", "RGBX", "CMYK")
    for order, other in (("B", "L"), ("L", "B"), ("N", "B" if sys.byteorder == "little" else "L"))
}


def decode_whole(data: bytes, layout: Layout) -> list[Image.Image]:
    """Decode the first picture of a file whose header says ``layout``, and apply its EXIF orientation.

    Returns the picture in mode RGB or CMYK, or in RGBA if any pixel is not opaque. If its channels have more than 8
    bits of information, a second picture of the same mode follows, with their low bytes. Raises
    :class:`~.limits.DecodeError` for a file that cannot be decoded, or that has channels or bits which the pictures
    would not show.
    """
    if not (layout.has_alpha or layout.further_channels or layout.depth > 8):
        picture = decode(data)
        return [picture if picture.mode in ("RGB", "CMYK") else picture.convert("RGB")]  # a conversion copies
    image_format = identify(data)
    assert image_format is not None  # its header was read
    refusal = unsupported_variant(image_format.name)
    if layout.further_channels:
        raise refusal
    is_deep = layout.depth > 8
    with quiet_libraries():
        parts = [_as_it_is(PillowFile(data, image_format, DecodeLimits()))]
        if is_deep and parts[0].mode.startswith("I"):
            values = np.asarray(parts[0]).astype(np.uint16) << (16 - min(16, layout.depth))
            parts = [Image.fromarray((values >> shift).astype(np.uint8)) for shift in (8, 0)]
        elif is_deep:
            file = PillowFile(data, image_format, DecodeLimits())
            if not file.image.tile:  # the reader has already reduced it to 8 bits
                raise refusal
            file.image.tile = [tile._replace(args=_of_low_bytes(tile.args, refusal)) for tile in file.image.tile]
            parts.append(_as_it_is(file))
    if image_format.name == "BMP" and layout.has_alpha and parts[0].mode != "RGBA":
        bits = _unused_bits(data)
        if bits.min() != bits.max():
            raise refusal
    mode = parts[0].mode
    if mode != "CMYK" and not (mode == "RGBA" and parts[0].getchannel("A").getextrema() != (255, 255)):
        mode = "RGB"
    parts = [part.convert(mode) for part in parts]
    if (len(parts) > 1 and not parts[1].getbbox(alpha_only=False)) or parts[0].tobytes() == parts[-1].tobytes():
        return parts[:1]
    return parts


def _as_it_is(file: PillowFile) -> Image.Image:
    """Return the picture in mode L, RGB, CMYK or YCbCr; RGBA if it may have transparency; I or I;16 for deeper grey."""
    image = file.load()
    if image.mode.startswith("I"):
        is_inverted = file.tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == WHITE_IS_ZERO
        if is_inverted or "transparency" in image.info:
            raise unsupported_variant(file.name)
        return image
    return with_alpha(image) if image.has_transparency_data else file.in_plain_mode(image)


def _of_low_bytes(arguments: Any, refusal: DecodeError) -> Any:
    """Return arguments that make Pillow's reader of 16-bit channels read the low bytes, by the opposite byte order."""
    raw_mode, *others = arguments if isinstance(arguments, tuple) else (arguments,)
    if not isinstance(raw_mode, str) or raw_mode not in _IN_OTHER_ORDER:
        raise refusal
    other = _IN_OTHER_ORDER[raw_mode]
    return (other, *others) if isinstance(arguments, tuple) else other


def _unused_bits(data: bytes) -> npt.NDArray[np.uint32]:
    """Return the bits of each pixel (H, W) of a BMP with 16 or 32 bits that show no colour."""
    bits, compression = number(data, 28, 2, "little"), number(data, 30, 4, "little")
    masks = {16: (0x7C00, 0x3E0, 0x1F), 32: (0xFF0000, 0xFF00, 0xFF)}[bits]
    if compression in BIT_FIELDS:
        masks = struct.unpack_from("<3I", data, 54)
    width, height = bmp_size(data)
    values = np.frombuffer(data, "<u2" if bits == 16 else "<u4", count=-(-width * bits // 32) * 32 // bits * height,
                           offset=number(data, 10, 4, "little"))  # fmt: skip
    unused: int = ~(masks[0] | masks[1] | masks[2]) & ((1 << bits) - 1)
    return values.reshape(height, -1)[:, :width].astype(np.uint32) & np.uint32(unused)

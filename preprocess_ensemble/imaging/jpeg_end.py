"""Tell whether a JPEG without its end marker lacks anything else.

libjpeg fills missing blocks silently. The file is therefore decoded with several different ends: if a block, or a part
of a block, is missing, it is made from the end, and the pictures differ.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Final

from PIL import Image, JpegImagePlugin

from preprocess_ensemble.imaging.containers.jpeg import is_complete

JPEG_END: Final = b"\xff\xd9"

_TAILS: Final = (b"\x55", b"\xaa", b"\x33", b"\xcc", b"\x0f", b"\xf0")
"""Ends to try. Every missing bit, and every missing pair of bits, differs between two of them."""
_TAIL_BYTES: Final = 2_560
"""Length of an end. It fills the blocks that are coded together, because the last of these may lie outside the picture.
They are at most ten (T.81, section B.2.3) of 64 numbers, each with a code and a value of up to 16 bits."""
_RESTART: Final = re.compile(rb"\xff([\xd0-\xd7])")
_STRIP: Final = 256
"""Rows that are compared at a time, so that large pictures are not copied whole."""


def lacks_only_its_end(data: bytes) -> bool:
    """Whether ``data``, a JPEG that ends early, has the whole picture.

    Decodes the file up to seven times. Raises the errors of Pillow.
    """
    if not is_complete(data):
        return False
    data = data.removesuffix(b"\xff")  # half a marker
    # In a file with restart markers, the whole last part may be missing; then its marker must come first.
    *_, last = [b"\xd7", *_RESTART.findall(data)]
    restart = bytes([0xFF, 0xD0 + (last[0] - 0xD0 + 1) % 8])
    whole = _decoded(data)
    return all(_are_equal(whole, _decoded(data + (tail * _TAIL_BYTES + restart) * 2)) for tail in _TAILS)


def _decoded(data: bytes) -> Image.Image:
    image = JpegImagePlugin.JpegImageFile(BytesIO(data + JPEG_END))
    image.load()
    return image


def _are_equal(one: Image.Image, other: Image.Image) -> bool:
    width, height = one.size
    strips = [(0, top, width, min(top + _STRIP, height)) for top in range(0, height, _STRIP)]
    return all(one.crop(strip).tobytes() == other.crop(strip).tobytes() for strip in strips)

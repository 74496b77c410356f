"""Tell whether a JPEG without its end marker lacks anything else.

libjpeg fills missing blocks silently. The file is therefore decoded with several different ends: if a block, or a part
of a block, is missing, it is made from the end, and the pictures differ.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Final

from PIL import Image, JpegImagePlugin

from preprocess_ensemble.imaging.containers.container import number
from preprocess_ensemble.imaging.containers.jpeg import END, FRAMES, START_OF_SCAN, segments

_TAILS: Final = (b"\x55", b"\xaa", b"\x33", b"\xcc", b"\x0f", b"\xf0")
"""Ends to try. Every missing bit, and every missing pair of bits, differs between two of them."""
_TAIL_BYTES: Final = 2_560
"""Length of an end. It fills the blocks that are coded together, because the last of these may lie outside the picture.
They are at most ten (T.81, section B.2.3) of 64 numbers, each with a code and a value of up to 16 bits."""
_RESTART: Final = re.compile(rb"\xff([\xd0-\xd7])")
_FREQUENCIES: Final = 64
_STRIP: Final = 256  # rows that are compared at a time, so that large pictures are not copied whole


def lacks_only_its_end(data: bytes) -> bool:
    """Whether a JPEG that ends early has the whole picture. Decodes it up to seven times. Raises Pillow's errors."""
    if not _has_all_frequencies(data):
        return False
    data = data.removesuffix(b"\xff")  # half a marker
    # In a file with restart markers, the whole last part may be missing; then its marker must come first.
    *_, last = [b"\xd7", *_RESTART.findall(data)]
    restart = bytes([0xFF, 0xD0 + (last[0] - 0xD0 + 1) % 8])
    whole = _decoded(data)
    strips = [(0, top, whole.width, min(top + _STRIP, whole.height)) for top in range(0, whole.height, _STRIP)]
    for tail in _TAILS:
        other = _decoded(data + (tail * _TAIL_BYTES + restart) * 2)
        if any(whole.crop(strip).tobytes() != other.crop(strip).tobytes() for strip in strips):
            return False
    return True


def _decoded(data: bytes) -> Image.Image:
    image = JpegImagePlugin.JpegImageFile(BytesIO(data + END))
    image.load()
    return image


def _has_all_frequencies(data: bytes) -> bool:
    """Whether the scans of a JPEG, apart from the end of the last one, have all bits of all frequencies of all colours.

    Only a progressive file codes these in several scans: T.81, section G.1.1.1.
    """
    missing: dict[int, list[int]] = {}
    for marker, start, _ in segments(data):
        if marker in FRAMES:
            colours = data[start + 6 : start + 6 + 3 * number(data, start + 5, 1) : 3]
            missing = {colour: [1] * _FREQUENCIES for colour in colours}
        elif marker == START_OF_SCAN:
            count = number(data, start, 1)
            first, last, bits = data[start + 1 + 2 * count : start + 4 + 2 * count].ljust(3, b"\0")
            for colour in data[start + 1 : start + 1 + 2 * count : 2]:
                missing.setdefault(colour, [])[first : last + 1] = [bits & 15] * (last + 1 - first)
    return bool(missing) and not any(map(any, missing.values()))

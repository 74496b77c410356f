"""The EXIF orientation, and how it moves a picture that was decoded smaller than it is."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from PIL import Image

__all__ = ("SCALE_INFO", "ScaleInfo", "apply_transpose", "is_sideways", "transpose_for")

_ORIENTATIONS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF 2.32, tag 0x0112, as in ``PIL.ImageOps.exif_transpose``."""

# What a turn does to the columns and rows of the stored image; the sideways ones exchange the two afterwards.
_SIDEWAYS: Final = frozenset(
    {Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_90}
)
_MIRRORED_COLUMNS: Final = frozenset(
    {
        Image.Transpose.FLIP_LEFT_RIGHT,
        Image.Transpose.ROTATE_180,
        Image.Transpose.TRANSVERSE,
        Image.Transpose.ROTATE_90,
    }
)
_MIRRORED_ROWS: Final = frozenset(
    {
        Image.Transpose.FLIP_TOP_BOTTOM,
        Image.Transpose.ROTATE_180,
        Image.Transpose.TRANSVERSE,
        Image.Transpose.ROTATE_270,
    }
)


class ScaleInfo(NamedTuple):
    """What a scaled image was before, upright."""

    size: tuple[int, int]
    """(width, height) of the file's picture."""
    box: tuple[float, float, float, float]
    """Left, top, right, bottom of the picture inside the scaled image: where its sides are no multiple of the scale,
    the last column and row stand for less than a whole pixel."""

    def describes(self, image: Image.Image) -> bool:
        """Whether ``image`` is that scaled image still: Pillow hands ``info`` on to what is made of it."""
        left, top, right, bottom = self.box
        return image.size == (math.ceil(right - left), math.ceil(bottom - top))


SCALE_INFO: Final = "scale_info"
"""Key of a :class:`ScaleInfo` in the ``info`` of an image that :func:`decode` has scaled."""


def transpose_for(orientation: object) -> Image.Transpose | None:
    """How to turn an image of this EXIF ``orientation``; None where it is upright or the number means nothing."""
    return _ORIENTATIONS.get(orientation) if isinstance(orientation, int) else None


def is_sideways(turn: Image.Transpose | None) -> bool:
    """Whether ``turn`` exchanges width and height."""
    return turn in _SIDEWAYS


def apply_transpose(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    """Turn ``image``, and what its ``info`` says of a scaled decode."""
    if turn is None:
        return image
    turned = image.transpose(turn)
    if (scaled := image.info.get(SCALE_INFO)) is not None:
        turned.info[SCALE_INFO] = _turned(scaled, image.size, turn)
    return turned


def _turned(scaled: ScaleInfo, size: tuple[int, int], turn: Image.Transpose | None) -> ScaleInfo:
    """`scaled`, of an image of `size`, once the image has been turned."""
    left, top, right, bottom = scaled.box
    width, height = size
    if turn in _MIRRORED_COLUMNS:
        left, right = width - right, width - left
    if turn in _MIRRORED_ROWS:
        top, bottom = height - bottom, height - top
    if turn in _SIDEWAYS:
        return ScaleInfo(scaled.size[::-1], (top, left, bottom, right))
    return ScaleInfo(scaled.size, (left, top, right, bottom))

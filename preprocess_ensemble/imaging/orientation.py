"""The EXIF orientation, for whole images and for images from a scaled decode."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from PIL.Image import Image, Transpose

_ORIENTATIONS: Final = {  # EXIF 2.32, tag 0x0112, as in ``PIL.ImageOps.exif_transpose``
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}

# Transposes that mirror the columns and rows of the stored image. Those in SWAPPED then swap rows and columns.
_MIRRORED_COLUMNS: Final = (Transpose.FLIP_LEFT_RIGHT, Transpose.ROTATE_180, Transpose.TRANSVERSE, Transpose.ROTATE_90)
_MIRRORED_ROWS: Final = (Transpose.FLIP_TOP_BOTTOM, Transpose.ROTATE_180, Transpose.TRANSVERSE, Transpose.ROTATE_270)
SWAPPED: Final = (Transpose.TRANSPOSE, Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90)


class ScaleInfo(NamedTuple):
    """The whole picture that a scaled image stands for, both after their orientation was applied."""

    size: tuple[int, int]  # (width, height) in pixels
    box: tuple[float, float, float, float]
    """Left, top, right, bottom of the picture inside the scaled image, in its pixels. If a side is not a multiple of
    the scale, the last column or row stands for less than a whole pixel."""

    def describes(self, image: Image) -> bool:
        """Whether ``image`` is still the scaled image itself: Pillow copies ``info`` to every image made from it."""
        left, top, right, bottom = self.box
        return image.size == (math.ceil(right - left), math.ceil(bottom - top))


SCALE_INFO: Final = "scale_info"
"""Key of the :class:`ScaleInfo` in the ``info`` of an image from a scaled decode."""


def transpose_for(orientation: object) -> Transpose | None:
    """Return the transpose that turns an image of this EXIF ``orientation`` upright; None for 1 and unknown values."""
    return _ORIENTATIONS.get(orientation) if isinstance(orientation, int) else None


def apply_transpose(image: Image, transpose: Transpose | None) -> Image:
    if transpose is None:
        return image
    transposed = image.transpose(transpose)
    scaled: ScaleInfo | None = image.info.get(SCALE_INFO)
    if scaled is not None:
        size, (left, top, right, bottom) = scaled
        if transpose in _MIRRORED_COLUMNS:
            left, right = image.width - right, image.width - left
        if transpose in _MIRRORED_ROWS:
            top, bottom = image.height - bottom, image.height - top
        if transpose in SWAPPED:
            size, (left, top, right, bottom) = size[::-1], (top, left, bottom, right)
        transposed.info[SCALE_INFO] = ScaleInfo(size, (left, top, right, bottom))
    return transposed

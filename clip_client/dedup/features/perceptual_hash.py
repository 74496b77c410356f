"""The perceptual hash: 64 bits that stay nearly the same when a picture is resized or encoded again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

_SIDE: Final = 32
"""Pixels of the small grey picture that is hashed."""
_FREQUENCIES: Final = 8
"""Number of the lowest frequencies in each direction; 8 x 8 of them make the bits."""
_COSINES: Final[NDArray[np.float64]] = np.cos(np.pi / _SIDE * np.outer(np.arange(_FREQUENCIES), np.arange(_SIDE) + 0.5))
"""DCT-II, (frequencies, pixels), not normalized: comparing coefficients does not need it."""
_PLAIN_LEVELS: Final = 12
"""Levels of 255 by which a line of a plain border may differ from the outermost line: encoders leave 6."""
_LEAST_INSIDE: Final = 0.4
"""Least share of a side inside a border; less is a spot on a plain ground."""
_DECIMALS: Final = 6
"""Decimals of a coefficient. Without rounding, floating-point noise would decide the bits of coefficients that are
zero, as in a gradient."""


def perceptual_hash(image: Image.Image) -> int:
    """Return the pHash of a picture, 64 bits: each says whether one of the lowest frequencies is above their median.

    Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions" (2010). The bits are those of the
    package ImageHash, which needs SciPy.
    """
    from PIL.Image import Resampling

    pixels = np.asarray(image.convert("L").resize((_SIDE, _SIDE), Resampling.LANCZOS), dtype=np.float64)
    coefficients = np.round(_COSINES @ pixels @ _COSINES.T, _DECIMALS)
    return int.from_bytes(np.packbits(coefficients > np.median(coefficients)).tobytes(), "big")


def inner_hash(image: Image.Image) -> int:
    """Return the pHash of the picture inside a plain border, so that a copy with a border resembles its original.

    0 unless two opposite sides of the picture have a border.
    """
    levels = np.asarray(image.convert("L"), dtype=np.int16)
    top, bottom = _border(levels)
    left, right = _border(levels.T)
    inside = (right - left) / levels.shape[1], (bottom - top) / levels.shape[0]
    if (not top and not left) or min(inside) < _LEAST_INSIDE:
        return 0
    return perceptual_hash(image.crop((left, top, right, bottom)))


def _border(lines: NDArray[np.int16]) -> tuple[int, int]:
    """Return the first line inside the border and the line after the last. ``lines`` is (lines, pixels).

    The inside is all lines if either end has no border.
    """
    starts = []
    for some in (lines, lines[::-1]):
        is_plain = (np.abs(some - np.median(some[0])) <= _PLAIN_LEVELS).all(axis=1)
        plain = len(some) if is_plain.all() else int(np.argmin(is_plain))
        # The line at the edge shows both the border and the picture, unless the border is a whole number of pixels.
        starts.append(plain + 1 if plain else 0)
    return (starts[0], len(lines) - starts[1]) if all(starts) else (0, len(lines))

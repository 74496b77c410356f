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
"""The lowest ones per direction; 8 x 8 make the bits."""
_COSINES: Final[NDArray[np.float64]] = np.cos(np.pi / _SIDE * np.outer(np.arange(_FREQUENCIES), np.arange(_SIDE) + 0.5))
"""DCT-II without a norm, which no comparison of coefficients needs: (frequencies, pixels)."""
_DECIMALS: Final = 6
"""Far above the noise of rounding, which would decide the bits of coefficients that are zero, as in a gradient."""


def perceptual_hash(image: Image.Image) -> int:
    """Return the pHash of a picture as a number of 64 bits: which of the lowest frequencies are above their median.

    Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions" (2010). The bits are those of the
    package ImageHash, which needs SciPy.
    """
    from PIL.Image import Resampling

    pixels = np.asarray(image.convert("L").resize((_SIDE, _SIDE), Resampling.LANCZOS), dtype=np.float64)
    coefficients = np.round(_COSINES @ pixels @ _COSINES.T, _DECIMALS)
    return int.from_bytes(np.packbits(coefficients > np.median(coefficients)).tobytes(), "big")

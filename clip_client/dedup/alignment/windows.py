"""Means over windows of two pictures' overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import cv2
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Mask = NDArray[np.bool_]
    Values = TypeVar("Values", Floats, Mask, NDArray[np.uint8])

STEP: Final = 4
"""Pixels between windows."""
_SAMPLED: Final = 2
"""Pixels between samples: pictures are smoothed first, so that those between say nothing new."""
_LEAST_COVER: Final = 0.4
"""Share of a window that must lie in the overlap."""


def sampled(values: Values) -> Values:
    """Return every second pixel of every second row of (h, w), for the whole steps in it."""
    height, width = (side // STEP * STEP for side in values.shape[:2])
    return values[1:height:_SAMPLED, 1:width:_SAMPLED].copy()  # contiguous, because much is computed with them


class Windows:
    """Square windows, one every :data:`STEP` pixels, (rows, columns); only samples inside the overlap count."""

    def __init__(self, inside: Mask) -> None:
        """``inside`` holds samples of the overlap, as :func:`sampled` returns them."""
        self._inside = None if inside.all() else inside.astype(np.float32)
        self._covers = {side: self._averaged(inside.astype(np.float32), side) for side in (4, 5)}
        self.valid: Mask = self._covers[4] > _LEAST_COVER

    def means(self, *values: Floats, side: int = 4) -> list[Floats]:
        """Return the means (rows, columns) of each of the ``values``, samples as :func:`sampled` returns them.

        ``side`` is that of a window in steps.
        """
        if self._inside is None:
            return [self._averaged(one, side) for one in values]
        cover = np.maximum(self._covers[side], 1e-3)
        return [np.asarray(self._averaged(one * self._inside, side) / cover, np.float32) for one in values]

    @staticmethod
    def _averaged(values: Floats, side: int) -> Floats:
        height, width = (length * _SAMPLED // STEP for length in values.shape)
        cells = cv2.resize(values, (width, height), interpolation=cv2.INTER_AREA)
        return np.asarray(cv2.blur(cells, (side, side), borderType=cv2.BORDER_REFLECT), np.float32)

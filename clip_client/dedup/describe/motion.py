"""Finds by how much the parts of one picture are shifted against another, to a tenth of a pixel.

A shift d changes a picture by its slope times d. Unlike the error of an encoder, this has the same sign at all edges of
a window, so that it shows far below the noise (Lucas and Kanade 1981).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import cv2
import numpy as np

from clip_client.dedup.describe.geometry import corners_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.describe.geometry import Affine
    from clip_client.dedup.types import Floats, Mask

    Values = TypeVar("Values", Floats, Mask, NDArray[np.uint8])

STEP: Final = 4
"""Pixels between windows."""
_SAMPLED: Final = 2
"""Pixels between samples: pictures are smoothed first, so that those between say nothing new."""
_LEAST_COVER: Final = 0.4
"""Share of a window that must lie in the overlap."""
_SIDE: Final = 5
"""Steps, side of a window."""
_DAMPING: Final = 0.5
"""Squared levels per pixel: keeps plain windows from reporting large shifts."""
_STRUCTURE: Final = 2.0
"""Squared levels per pixel: windows with less slope are not used."""
_LEAST_SHIFT: Final = 0.1
"""Pixels. Encoders and resizing shift single windows by this much, but not many."""
_INDEPENDENT: Final = 35.0
"""Independent pixels in a window of 20 x 20, after smoothing by one pixel: 400 / 4 pi."""
_SIGNIFICANCE: Final = 12.0
"""Ratio of what a shift explains to what it leaves, times independent pixels, which noise seldom reaches."""
_LEAST_NOISE: Final = 0.15
"""Squared levels that remain in any case."""


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


def find_motion(error: Floats, across: Floats, down: Floats, windows: Windows) -> tuple[Affine, float, Mask]:
    """Explain the difference of two lumas by their mean slopes, in levels per pixel; all are samples (h, w).

    Return the transform from where the second picture's content is to where the first has it, in pixels; by how many
    pixels it moves the corners, at most; and the windows (rows, columns) that moved on their own.
    """
    xx, xy, yy, xe, ye, ee = windows.means(
        across * across, across * down, down * down, across * error, down * error, error * error, side=_SIDE
    )
    usable = windows.valid & (xx + yy > _STRUCTURE)
    shift_x, shift_y = _solve(xx, xy, yy, xe, ye)
    fitted_x, fitted_y, affine = _fit((xx, xy, yy, xe, ye), np.hypot(shift_x, shift_y), usable)
    shift_x, shift_y = shift_x - fitted_x, shift_y - fitted_y
    explained = xx * shift_x**2 + 2 * xy * shift_x * shift_y + yy * shift_y**2
    left = np.maximum(ee - explained, _LEAST_NOISE)
    significant = explained * _INDEPENDENT > _SIGNIFICANCE * left
    size = xx.shape[1] * STEP, xx.shape[0] * STEP
    drift = float(np.hypot(*(corners_of(affine, size) - corners_of(np.eye(2, 3), size)).T).max())
    moves = usable & significant & (np.hypot(shift_x, shift_y) > _LEAST_SHIFT)
    return affine, drift, moves


def _solve(xx: Floats, xy: Floats, yy: Floats, xe: Floats, ye: Floats) -> tuple[Floats, Floats]:
    xx, yy = xx + np.float32(_DAMPING), yy + np.float32(_DAMPING)
    determinant = xx * yy - xy * xy
    return np.asarray((yy * xe - xy * ye) / determinant), np.asarray((xx * ye - xy * xe) / determinant)


def _fit(sums: tuple[Floats, ...], shift: Floats, usable: Mask) -> tuple[Floats, Floats, Affine]:
    """Fit the shifts by an affine transform: return it for each window, and as a transform that undoes it."""
    rows, columns = shift.shape
    affine = np.eye(2, 3)
    if np.count_nonzero(usable) < 20:
        return np.zeros_like(shift), np.zeros_like(shift), affine
    typical = float(np.median(shift[usable]))
    weight = np.where(usable, 1 / (1 + (shift / (2 * typical + 0.05)) ** 2), np.float32(0))
    x, y = ((np.arange(length, dtype=np.float32) + 0.5) / length - 0.5 for length in (columns, rows))
    powers = [np.stack([along**power for power in range(3)]) for along in (y, x)]

    def moments_of(values: Floats) -> NDArray[np.float64]:
        """Return the weighted sums (3, 3) of the ``values`` times each power of y and of x."""
        return np.asarray(powers[0] @ (values * weight) @ powers[1].T, np.float64)

    xx, xy, yy, xe, ye = map(moments_of, sums)
    # Of 1, x and y: the powers of y and of x in their products.
    ends = np.array([(0, 0), (0, 1), (1, 0)])
    down, across = (ends[:, None] + ends).transpose(2, 0, 1)
    left = np.block([[xx[down, across], xy[down, across]], [xy[down, across], yy[down, across]]])
    right = np.concatenate([moments[tuple(ends.T)] for moments in (xe, ye)])
    # By OpenCV, because NumPy starts threads for it, which then wait for those of other pairs.
    found = cv2.solve(left + 1e-3 * np.trace(left) / 6 * np.eye(6), right[:, None])[1].reshape(2, 3)
    fitted_x, fitted_y = (
        np.asarray(level + along * x + upright * y[:, None], np.float32)
        for level, along, upright in found.astype(np.float32)
    )
    affine[:, :2] -= found[:, 1:] / (columns * STEP, rows * STEP)
    affine[:, 2] -= found[:, 0] - found[:, 1:].sum(axis=1) / 2
    return fitted_x, fitted_y, affine

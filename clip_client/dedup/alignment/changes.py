"""Puts into words what was done to one photo to get another."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from clip_client.dedup.aligned import RESOLUTION
from clip_client.dedup.alignment.geometry import inverse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.alignment.comparison import Comparison
    from clip_client.dedup.alignment.geometry import Affine
    from clip_client.dedup.alignment.keypoints import Keypoints

_PLAIN: Final = 4.0
"""Levels, standard deviation of 5 x 5 pixels: less has no content."""
_EVEN: Final = 8.0
"""Levels, standard deviation of all that lies outside: more is no plain border, but may be a blurred scene."""
_LEAST_SHARE: Final = 0.01
"""Of a side: less at one side is not worth a word."""
_LEAST_CROP: Final = 0.005
"""Of a side: less is two pixels of the small picture, within the tolerance of a frame."""
_BEYOND: Final = 0.002
"""Of a side: a pixel of the small picture."""
_WEAKENED: Final = 1.6
"""Times the colour or the contrast of the kept photo: with so little left, levels are lost that no edit gives back. A
photo at a quarter of its brightness has a quarter of the levels."""
_LEAST_COLOUR: Final = 1.0
"""Levels: less colour is noise."""
_SIDES: Final = ("left", "top", "right", "bottom")


class Overlap:
    """What each of two photos shows of the other. All shares are between 0 and 1."""

    def __init__(self, duplicate: Keypoints, kept: Keypoints, to_kept: Affine) -> None:
        """``to_kept`` leads from the duplicate's small picture to the kept photo's."""
        self._duplicate, self._kept, self._to_kept = duplicate, kept, to_kept

    @cached_property
    def outside_kept(self) -> float:
        """Share of the duplicate that has content and lies outside the kept photo."""
        return _content_outside(self._duplicate, self._kept, self._to_kept)

    @cached_property
    def outside_duplicate(self) -> float:
        """Share of the kept photo that has content and lies outside the duplicate."""
        return _content_outside(self._kept, self._duplicate, inverse(self._to_kept))

    @cached_property
    def full_size(self) -> tuple[float, float, float, float, float, float]:
        """Rows of the transform from the duplicate's pixels to the kept photo's at full size."""
        (from_x, from_y), (to_x, to_y) = (
            (photo.width / photo.picture.shape[1], photo.height / photo.picture.shape[0])
            for photo in (self._duplicate, self._kept)
        )
        a, b, c, d, e, f = self._to_kept.ravel().tolist()
        return (a * to_x / from_x, b * to_x / from_y, c * to_x, d * to_y / from_x, e * to_y / from_y, f * to_y)

    @cached_property
    def linear(self) -> NDArray[np.float64]:
        """(2, 2): kept pixels for each pixel of the duplicate, at full size."""
        a, b, _, d, e, _ = self.full_size
        return np.array([[a, b], [d, e]])

    @cached_property
    def scale(self) -> float:
        """Pixels of the duplicate for each pixel of the kept photo, along a line."""
        return float(1 / np.sqrt(abs(np.linalg.det(self.linear))))

    @cached_property
    def kept_margins(self) -> tuple[float, float, float, float]:
        """What of the kept photo lies beyond the duplicate's corners at each of the four sides, as shares; or less
        than 0 if the duplicate goes on there."""
        return _margins(self._duplicate, self._kept, self._to_kept)

    @cached_property
    def duplicate_margins(self) -> tuple[float, float, float, float]:
        """What of the duplicate lies beyond the kept photo, as in :attr:`kept_margins`."""
        return _margins(self._kept, self._duplicate, inverse(self._to_kept))

    @property
    def kept_goes_on(self) -> bool:
        """True if the kept photo shows something beyond the duplicate's edges."""
        return min(self.duplicate_margins) < -_BEYOND


def changes_of(overlap: Overlap, seen: Comparison, *, duplicate_is_grid: bool) -> tuple[str, ...]:
    """Return what was done to the kept photo to get the duplicate."""
    return tuple(
        filter(
            None,
            (
                _turn(overlap),
                _crop(overlap),
                _border(overlap),
                _shape(overlap),
                *_colours(seen, duplicate_is_grid),
                _detail(seen, duplicate_is_grid),
                _size(overlap),
            ),
        )
    )


def lost_in(overlap: Overlap, seen: Comparison, *, duplicate_is_grid: bool) -> tuple[str, ...]:
    """Return what only the duplicate has."""
    grid, moved = seen.grading.tones
    own, of_kept = (grid, moved) if duplicate_is_grid else (moved, grid)
    lost = []
    if overlap.outside_kept > _LEAST_SHARE / 2:
        left, top, right, bottom = (max(0.0, share) for share in overlap.duplicate_margins)
        lost.append(f"{1 - (1 - left - right) * (1 - top - bottom):.0%} of the picture")
    if overlap.scale > 1.03:
        lost.append(f"{overlap.scale:.2g} {RESOLUTION}")
    if of_kept.lacks_colours_of(own) or own.colour > _WEAKENED * max(_LEAST_COLOUR, of_kept.colour):
        lost.append("colour")
    if own.contrast > _WEAKENED * of_kept.contrast:
        lost.append("tonal range")
    if seen.cut_off[1 if duplicate_is_grid else 0] > _LEAST_SHARE:
        lost.append("detail in light or dark parts")
    if (seen.blur > 0) != duplicate_is_grid and seen.blur:
        lost.append("sharpness")
    return tuple(lost)


def _turn(overlap: Overlap) -> str:
    linear = overlap.linear
    mirrored = np.linalg.det(linear) < 0
    if mirrored:
        linear = np.diag([-1.0, 1.0]) @ linear
    degrees = round(float(np.degrees(np.arctan2(linear[0, 1] - linear[1, 0], linear[0, 0] + linear[1, 1]))), 1) % 360
    if mirrored and round(degrees) == 180:
        return "mirrored top to bottom"
    turned = ""
    if 0.3 < degrees < 359.7:
        way, by = ("to the right", degrees) if degrees <= 180 else ("to the left", 360 - degrees)
        turned = f"rotated by {by:.3g} degrees" + ("" if round(by) == 180 else f" {way}")
    return " and ".join(filter(None, ("mirrored" if mirrored else "", turned)))


def _crop(overlap: Overlap) -> str:
    left, top, right, bottom = shares = [max(0.0, share) for share in overlap.kept_margins]
    if max(shares) < _LEAST_CROP:
        return ""
    cut = (f"{share:.0%} off the {side}" for side, share in zip(_SIDES, shares, strict=True) if share >= _LEAST_SHARE)
    return ", ".join((f"cropped to {(1 - left - right) * (1 - top - bottom):.0%}", *cut))


def _border(overlap: Overlap) -> str:
    return (
        "with a border"
        if max(overlap.duplicate_margins) >= _LEAST_SHARE and overlap.outside_kept < _LEAST_SHARE / 2
        else (f"showing {overlap.outside_kept:.0%} more" if overlap.outside_kept >= _LEAST_SHARE / 2 else "")
    )


def _shape(overlap: Overlap) -> str:
    across, down = 1 / np.linalg.norm(overlap.linear, axis=0)
    if abs(across / down - 1) < 0.02:
        return ""
    return (
        f"squashed to {down / across:.0%} of its height"
        if down < across
        else f"squashed to {across / down:.0%} of its width"
    )


def _colours(seen: Comparison, duplicate_is_grid: bool) -> tuple[str, ...]:
    if seen.grading.is_none:
        return ()
    grid, moved = seen.grading.tones
    own, of_kept = (grid, moved) if duplicate_is_grid else (moved, grid)
    words = []
    if abs(own.brightness - of_kept.brightness) > 3:
        words.append("brighter" if own.brightness > of_kept.brightness else "darker")
    contrast = own.contrast / max(1.0, of_kept.contrast)
    if abs(contrast - 1) > 0.08:
        words.append("with more contrast" if contrast > 1 else "with less contrast")
    if own.lacks_colours_of(of_kept):
        words.append("black and white")
    elif of_kept.lacks_colours_of(own):
        words.append("in colour")
    elif seen.grading.tint > 3:
        strength = own.colour / max(1.0, of_kept.colour)
        words.append(
            "with stronger colours"
            if strength > 1.15
            else "with weaker colours"
            if strength < 0.87
            else "with other colours"
        )
    return tuple(words) or ("with slightly other colours",)


def _detail(seen: Comparison, duplicate_is_grid: bool) -> str:
    if not seen.blur:
        return ""
    return "blurred" if (seen.blur > 0) == duplicate_is_grid else "sharpened"


def _size(overlap: Overlap) -> str:
    scale = overlap.scale
    if abs(scale - 1) < 0.02:
        return ""
    for value, word in ((0.5, "half the size"), (0.25, "a quarter of the size"), (2.0, "twice the size")):
        if abs(scale / value - 1) < 0.02:
            return word
    return f"{scale:.0%} of the size"


def _margins(of: Keypoints, on: Keypoints, to: Affine) -> tuple[float, float, float, float]:
    height, width = of.picture.shape[:2]
    corners = np.array([[0, 0], [width, 0], [0, height], [width, height]]) @ to[:, :2].T + to[:, 2]
    corners /= on.picture.shape[1::-1]
    (left, top), (right, bottom) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
    return left, top, 1 - right, 1 - bottom


def _content_outside(photo: Keypoints, other: Keypoints, to_other: Affine) -> float:
    height, width = photo.picture.shape[:2]
    margins = _margins(photo, other, to_other)
    slack = 1.5 / min(other.picture.shape[:2])
    if min(margins) > -slack:
        return 0.0
    across, down = np.arange(width, dtype=np.float32) + 0.5, np.arange(height, dtype=np.float32)[:, None] + 0.5
    x, y = (a * across + (b * down + c) for a, b, c in to_other.astype(np.float32))
    beyond = 3.0  # pixels: what the edge of a border blurs
    to_height, to_width = other.picture.shape[:2]
    outside = (x < -beyond) | (y < -beyond) | (x > to_width + beyond) | (y > to_height + beyond)
    luma = cv2.cvtColor(photo.picture, cv2.COLOR_RGB2GRAY)
    if outside.any() and luma[outside].std() > _EVEN:
        return float(np.mean(outside))
    values = luma.astype(np.float32)
    mean = cv2.blur(values, (5, 5))
    has_content = cv2.blur(values * values, (5, 5)) - mean * mean > _PLAIN**2
    return float(np.mean(has_content & outside))

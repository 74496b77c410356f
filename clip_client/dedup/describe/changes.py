"""Puts into words what was done to one photo to get another, and tells a crop from what was put into something larger.

Both are a part of the other picture. Beyond the edge of a crop the scene goes on; around a picture in a border, a
screenshot or a collage there is a seam along a whole side, or nothing at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from clip_client.dedup.describe.geometry import between_middles, corners_of, inverse
from clip_client.dedup.text import percent

if TYPE_CHECKING:
    from clip_client.dedup.describe.comparison import Comparison
    from clip_client.dedup.describe.geometry import Affine
    from clip_client.dedup.describe.keypoints import Keypoints
    from clip_client.dedup.types import Mask, Pixels

_PLAIN: Final = 4.0
"""Levels, standard deviation of 5 x 5 pixels: less has no content."""
_EVEN: Final = 8.0
"""Levels, standard deviation of all that lies outside: a plain border has less, a blurred scene may have more."""
_LEAST_SHARE: Final = 0.01
"""Share of a side that is worth a word."""
_LEAST_CROP: Final = 0.005
"""Share of a side, two pixels of the small picture: less is within the tolerance of a frame."""
_BEYOND: Final = 0.002
"""Share of a side: a pixel of the small picture."""
_WEAKENED: Final = 1.6
"""Times the colour or the contrast of the kept photo: with so little left, levels are lost that no edit gives back. A
photo at a quarter of its brightness has a quarter of the levels."""
_LEAST_COLOUR: Final = 1.0
"""Levels: less colour is noise."""
_REACH: Final = 16
"""Pixels on either side of an edge in which a seam is looked for."""
_ROUNDED: Final = 3
"""Pixels at the ends of a side that are left out, and that must lie beyond an edge."""
_FEWEST: Final = 12
"""Pixels along a side beyond which there is something."""
_NEAR: Final = 2.0
"""Pixels by which the edge may be off."""
_SEAM: Final = 1.9
"""Step at the edge, divided by the largest one beside it. Measured: 1.5 at most on 250 crops of sample photos."""
_FLAT: Final = (5.0, 2.4)
"""Factor, and levels: what lies outside is plain if the steps inside exceed that factor times its own, and these."""


class Changes:
    """Changes from a kept photo to its duplicate. All shares are between 0 and 1."""

    def __init__(
        self, duplicate: Keypoints, kept: Keypoints, to_kept: Affine, seen: Comparison, *, duplicate_is_grid: bool
    ) -> None:
        """``to_kept`` leads from the duplicate's small picture to the kept photo's, and ``seen`` compares the two."""
        to_duplicate = inverse(to_kept)
        self.kept_margins = _margins(duplicate, kept, to_kept)
        """Shares of the kept photo beyond the duplicate's sides; less than 0 where the duplicate goes on."""
        self.duplicate_margins = _margins(kept, duplicate, to_duplicate)
        """Shares of the duplicate beyond the kept photo, likewise."""
        self.outside_kept = _content_outside(duplicate, kept, to_kept)
        """Share of the duplicate that has content and lies outside the kept photo."""
        self.outside_duplicate = _content_outside(kept, duplicate, to_duplicate)
        """Share of the kept photo that has content and lies outside the duplicate."""
        self.full_size = at_full_size(duplicate, kept, to_kept)
        """The transform from the duplicate's pixels to the kept photo's at full size."""
        self._scale = _scale(self.full_size)
        self._duplicate, self._kept, self._to_kept = duplicate, kept, to_kept
        self._seen = seen
        self._own, self._of_kept = seen.grading.tones[:: 1 if duplicate_is_grid else -1]
        self._kept_cut_off = seen.cut_off[1 if duplicate_is_grid else 0]
        self._duplicate_is_softer = (seen.blur > 0) == duplicate_is_grid

    def is_put_into(self) -> bool:
        """Tell whether the duplicate lies in the kept photo as a picture in something else, and is not a crop of it.

        False is no proof: a border that looks like the edge of its photo, and a collage of two pictures of one texture,
        have no seam.
        """
        if min(self.duplicate_margins) >= -_BEYOND:  # the kept photo ends where the duplicate does
            return False
        size = self._duplicate.picture.shape[1::-1]
        scale = np.sqrt(abs(np.linalg.det(self._to_kept[:, :2])))
        width, height = (round(side * scale) for side in size)
        if min(width, height) < 2 * _REACH:
            return True
        # What lies around the upper edge of the duplicate, then around the others, each turned to the top.
        upright = np.diag([width, height]) @ np.diag(1 / np.array(size)) @ inverse(self._to_kept)
        upright = between_middles(upright) + np.array([0, 0, _REACH])
        picture = self._kept.picture
        exists = np.full(picture.shape[:2], 255, np.uint8)
        for _ in range(4):
            strip = (width + 2 * _REACH, 3 * _REACH)
            around = cv2.warpAffine(picture, upright, strip, borderMode=cv2.BORDER_REPLICATE)
            if _has_seam(np.asarray(around, np.uint8), cv2.warpAffine(exists, upright, strip) > 250):
                return True
            upright = np.array([[0, 1], [-1, 0]]) @ upright
            upright[1, 2] += width + 2 * _REACH - 1
            width, height = height, width
        return False

    def words(self) -> tuple[str, ...]:
        """Say what was done."""
        detail = ("blurred" if self._duplicate_is_softer else "sharpened") if self._seen.blur else ""
        words = (
            turn_in_words(self.full_size),
            self._crop(),
            self._border(),
            self._shape(),
            *self._colours(),
            detail,
            size_in_words(self.full_size),
        )
        return tuple(filter(None, words))

    def lost(self) -> tuple[str, ...]:
        """Say what only the duplicate has."""
        own, of_kept = self._own, self._of_kept
        left, top, right, bottom = (max(0.0, share) for share in self.duplicate_margins)
        more = 1 - (1 - left - right) * (1 - top - bottom)
        has_colour = own.colour > _WEAKENED * max(_LEAST_COLOUR, of_kept.colour)
        lost = {
            f"{percent(more)} of the picture": self.outside_kept > _LEAST_SHARE / 2,
            f"{self._scale:.2g} times the resolution": self._scale > 1.03,
            "colour": has_colour or of_kept.lacks_colours_of(own),
            "tonal range": own.contrast > _WEAKENED * of_kept.contrast,
            "detail in light or dark parts": self._kept_cut_off > _LEAST_SHARE,
            "sharpness": self._seen.blur and not self._duplicate_is_softer,
        }
        return tuple(what for what, is_lost in lost.items() if is_lost)

    def _crop(self) -> str:
        left, top, right, bottom = shares = [max(0.0, share) for share in self.kept_margins]
        if max(shares) < _LEAST_CROP:
            return ""
        sides = zip(shares, ("left", "top", "right", "bottom"), strict=True)
        cut = (f"{share:.0%} off the {side}" for share, side in sides if share >= _LEAST_SHARE)
        return ", ".join((f"cropped to {percent((1 - left - right) * (1 - top - bottom))}", *cut))

    def _border(self) -> str:
        if self.outside_kept >= _LEAST_SHARE / 2:
            return f"showing {percent(self.outside_kept)} more"
        return "with a border" if max(self.duplicate_margins) >= _LEAST_SHARE else ""

    def _shape(self) -> str:
        across, down = 1 / np.linalg.norm(self.full_size[:, :2], axis=0)
        share, side = (down / across, "height") if down < across else (across / down, "width")
        return "" if abs(across / down - 1) < 0.02 else f"squashed to {share:.0%} of its {side}"

    def _colours(self) -> list[str]:
        own, of_kept, grading = self._own, self._of_kept, self._seen.grading
        if grading.is_none:
            return []
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
        elif grading.tint > 3:
            strength = own.colour / max(1.0, of_kept.colour)
            how = "stronger" if strength > 1.15 else "weaker" if strength < 0.87 else "other"
            words.append(f"with {how} colours")
        return words or ["with slightly other colours"]


def at_full_size(duplicate: Keypoints, kept: Keypoints, to_kept: Affine) -> Affine:
    """Return the transform between two photos, given that between their small pictures."""
    enlarged, reduced = (
        np.diag([photo.width / photo.picture.shape[1], photo.height / photo.picture.shape[0]])
        for photo in (kept, duplicate)
    )
    found: Affine = enlarged @ to_kept
    found[:, :2] /= reduced.diagonal()
    return found


def turn_in_words(full_size: Affine) -> str:
    """Say how a duplicate is turned; empty if it is not."""
    linear = full_size[:, :2]
    mirrored = np.linalg.det(linear) < 0
    if mirrored:
        linear = np.diag([-1.0, 1.0]) @ linear
    angle = np.arctan2(linear[0, 1] - linear[1, 0], linear[0, 0] + linear[1, 1])
    degrees = round(float(np.degrees(angle)), 1) % 360
    if mirrored and round(degrees) == 180:
        return "mirrored top to bottom"
    turned = ""
    if 0.3 < degrees < 359.7:
        way, by = ("to the right", degrees) if degrees <= 180 else ("to the left", 360 - degrees)
        turned = f"rotated by {by:.3g} degrees" + ("" if round(by) == 180 else f" {way}")
    return " and ".join(filter(None, ("mirrored" if mirrored else "", turned)))


def size_in_words(full_size: Affine) -> str:
    """Say how large a duplicate is; empty if it has the size of the kept photo."""
    scale = _scale(full_size)
    if abs(scale - 1) < 0.02:
        return ""
    for value, word in ((0.5, "half the size"), (0.25, "a quarter of the size"), (2.0, "twice the size")):
        if abs(scale / value - 1) < 0.02:
            return word
    return f"{scale:.0%} of the size"


def _scale(full_size: Affine) -> float:
    """Return how large a pixel of the kept photo is on the duplicate."""
    return float(1 / np.sqrt(abs(np.linalg.det(full_size[:, :2]))))


def _margins(of: Keypoints, on: Keypoints, to: Affine) -> tuple[float, float, float, float]:
    corners = corners_of(to, of.picture.shape[1::-1]) / on.picture.shape[1::-1]
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


def _has_seam(around: Pixels, exists: Mask) -> bool:
    """Look at the upper edge, between the rows ``_REACH - 1`` and ``_REACH`` of RGB (rows, columns, 3)."""
    ends = slice(_REACH + _ROUNDED, -_REACH - _ROUNDED)
    around, exists = around[:, ends], exists[:, ends]
    beyond = exists[_REACH - _ROUNDED :].all(axis=0)
    if np.count_nonzero(beyond) < max(_FEWEST, 0.05 * len(beyond)):
        return False
    around, exists = around[:, beyond], exists[:, beyond]
    red, green, blue = cv2.split(cv2.absdiff(around[2:], around[:-2]))
    steps = cv2.max(cv2.max(red, green), blue)
    full = exists[:-2].all(axis=1)
    means = steps[full].mean(axis=1)
    inwards = np.flatnonzero(full) - (_REACH - 1.5)  # pixels from the edge, less than 0 outside
    near = np.abs(inwards) <= _NEAR
    if means[near].max() > _SEAM * (means[~near & (np.abs(inwards) > _NEAR + 1)].max() + 1):
        return True
    inside, outside = means[(inwards > 3) & (inwards < 10)], means[inwards < -7]
    return bool(len(outside)) and bool(np.median(inside) > _FLAT[0] * np.median(outside) + _FLAT[1])

"""Puts into words what was done to one photo to get another."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np

from clip_client.dedup.aligned import PUT_INTO, UNTOLD
from clip_client.dedup.describe.comparison import Comparison
from clip_client.dedup.describe.geometry import Affine, between_middles, corners_of, inverse
from clip_client.dedup.describe.keypoints import Keypoints
from clip_client.dedup.text import percent
from clip_client.dedup.types import Mask, Pixels

_PLAIN: Final = 4.0
"""Levels, standard deviation of 5 x 5 pixels: less has no content."""
_EVEN: Final = 8.0
"""Levels, standard deviation of all that lies outside: a plain border has less, a blurred scene may have more."""
_LEAST_SHARE: Final = 0.01
_LEAST_CROP: Final = 0.005
"""Share of a side, two pixels of the small picture: less is within the tolerance of a frame."""
_MOST_OUTSIDE: Final = 0.005
"""Share of a picture, with content, beyond the other one. If both have more, neither is a crop of the other."""
_MOST_BEYOND: Final = 0.1
"""Share of a side. If each picture extends beyond the other by more, both are views of a scene, even if the parts that
they do not share are plain. A rotation by 5 degrees moves corners by 0.09."""
_WEAKENED: Final = 1.6
"""Times the colour or the contrast of the kept photo: with so little left, levels are lost that no edit gives back. A
photo at a quarter of its brightness has a quarter of the levels."""
_REACH: Final = 16
"""Pixels on either side of an edge in which a seam is looked for."""
_SEAM: Final = 1.9
"""Step at the edge, divided by the largest one beside it. Measured: 1.5 at most on 250 crops of sample photos."""
_FLAT: Final = (5.0, 2.4)
"""Factor, and levels: what lies outside is plain if the steps inside exceed that factor times its own, and these."""


class Changes:
    def __init__(
        self, duplicate: Keypoints, kept: Keypoints, to_kept: Affine, seen: Comparison, *, duplicate_is_grid: bool
    ) -> None:
        self.full_size = at_full_size(duplicate, kept, to_kept)
        # Shares of each photo beyond the sides of the other; less than 0 where the other continues.
        self._kept_margins = _margins(duplicate, kept, to_kept)
        self._margins = _margins(kept, duplicate, inverse(to_kept))
        self._outside = _content_outside(duplicate, kept, to_kept)
        self._duplicate, self._kept, self._to_kept, self._seen = duplicate, kept, to_kept, seen
        self._tones, self._kept_tones = seen.tones[:: 1 if duplicate_is_grid else -1]
        self._kept_cut_off = seen.cut_off[1 if duplicate_is_grid else 0]
        self._is_softer = (seen.blur > 0) == duplicate_is_grid

    def words(self) -> tuple[str, ...]:
        across, down = 1 / np.linalg.norm(self.full_size[:, :2], axis=0)
        inside = percent(_share_inside(self._kept_margins))
        words = (
            turn_in_words(self.full_size),
            f"cropped to {inside}" if max(self._kept_margins) >= _LEAST_CROP else "",
            self._border(),
            "squashed" if abs(across / down - 1) >= 0.02 else "",
            self._colours(),
            ("blurred" if self._is_softer else "sharpened") if self._seen.blur else "",
            size_in_words(self.full_size),
        )
        return tuple(filter(None, words))

    def lost(self) -> tuple[str, ...]:
        own, of_kept, scale = self._tones, self._kept_tones, _scale(self.full_size)
        lost = {
            f"{percent(1 - _share_inside(self._margins))} of the picture": self._outside > _MOST_OUTSIDE,
            f"{scale:.2g} times the resolution": scale > 1.03,
            "colour": own.colour > _WEAKENED * max(1.0, of_kept.colour) or (of_kept.is_grey and not own.is_grey),
            "tonal range": own.contrast > _WEAKENED * of_kept.contrast,
            "detail in light or dark parts": self._kept_cut_off > _LEAST_SHARE,
            "sharpness": self._seen.blur and not self._is_softer,
        }
        return tuple(what for what, is_lost in lost.items() if is_lost)

    def doubts(self) -> tuple[str, ...]:
        """Say why nothing moves for an edit: size and frame tell which of two shows more, and little else does."""
        if self._is_put_into():
            return (PUT_INTO,)
        is_only_grey = self._tones.is_grey != self._kept_tones.is_grey
        return (UNTOLD,) if self._seen.blur or (self._seen.is_toned and not is_only_grey) else ()

    def _border(self) -> str:
        if self._outside >= _MOST_OUTSIDE:
            return f"showing {percent(self._outside)} more"
        return "with a border" if max(self._margins) >= _LEAST_SHARE else ""

    def _colours(self) -> str:
        own, of_kept = self._tones, self._kept_tones
        if not self._seen.is_toned:
            return ""
        if own.is_grey != of_kept.is_grey:
            return "black and white" if own.is_grey else "in colour"
        if abs(own.brightness - of_kept.brightness) > 3:
            return "brighter" if own.brightness > of_kept.brightness else "darker"
        return "with other contrast or colours"

    def _is_put_into(self) -> bool:
        """Look for a seam around the duplicate. False proves nothing: a border may look like the edge of its photo."""
        if min(self._margins) >= -0.002:  # the kept photo ends where the duplicate does, to a pixel
            return False
        size = self._duplicate.picture.shape[1::-1]
        scale = np.sqrt(abs(np.linalg.det(self._to_kept[:, :2])))
        width, height = (round(side * scale) for side in size)
        if min(width, height) < 2 * _REACH:
            return True
        # The part of the kept photo that the duplicate covers, with its surroundings.
        upright = np.diag([width, height]) @ np.diag(1 / np.array(size)) @ inverse(self._to_kept)
        upright = between_middles(upright) + np.array([0, 0, _REACH])
        whole = (width + 2 * _REACH, height + 2 * _REACH)
        around = cv2.warpAffine(self._kept.picture, upright, whole, borderMode=cv2.BORDER_REPLICATE).astype(np.uint8)
        exists = cv2.warpAffine(np.full(self._kept.picture.shape[:2], 255, np.uint8), upright, whole) > 250
        return any(
            _has_seam(np.rot90(around, turns)[: 3 * _REACH], np.rot90(exists, turns)[: 3 * _REACH])
            for turns in range(4)
        )


def are_two_views(one: Keypoints, other: Keypoints, to_other: Affine, *, times: float = 1.0) -> bool:
    back = inverse(to_other)
    if min(max(_margins(one, other, to_other)), max(_margins(other, one, back))) > times * _MOST_BEYOND:
        return True
    most = times * _MOST_OUTSIDE
    return _content_outside(one, other, to_other) > most and _content_outside(other, one, back) > most


def at_full_size(duplicate: Keypoints, kept: Keypoints, to_kept: Affine) -> Affine:
    enlarged, reduced = (
        np.diag([photo.width / photo.picture.shape[1], photo.height / photo.picture.shape[0]])
        for photo in (kept, duplicate)
    )
    found: Affine = enlarged @ to_kept
    found[:, :2] /= reduced.diagonal()
    return found


def turn_in_words(full_size: Affine) -> str:
    linear = full_size[:, :2]
    mirrored = np.linalg.det(linear) < 0
    if mirrored:
        linear = np.diag([-1.0, 1.0]) @ linear
    angle = np.arctan2(linear[0, 1] - linear[1, 0], linear[0, 0] + linear[1, 1])
    degrees = round(float(np.degrees(angle)), 1)
    if mirrored and round(abs(degrees)) == 180:
        return "mirrored top to bottom"
    turned = f"rotated by {abs(degrees):.3g} degrees to the {'right' if degrees > 0 else 'left'}"
    return " and ".join(filter(None, ("mirrored" if mirrored else "", turned if abs(degrees) > 0.3 else "")))


def size_in_words(full_size: Affine) -> str:
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


def _share_inside(margins: tuple[float, ...]) -> float:
    left, top, right, bottom = (max(0.0, share) for share in margins)
    return (1 - left - right) * (1 - top - bottom)


def _margins(of: Keypoints, on: Keypoints, to: Affine) -> tuple[float, float, float, float]:
    corners = corners_of(to, of.picture.shape[1::-1]) / on.picture.shape[1::-1]
    (left, top), (right, bottom) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
    return left, top, 1 - right, 1 - bottom


def _content_outside(photo: Keypoints, other: Keypoints, to_other: Affine) -> float:
    height, width = photo.picture.shape[:2]
    if min(_margins(photo, other, to_other)) > -1.5 / min(other.picture.shape[:2]):
        return 0.0
    covered = np.ones(other.picture.shape[:2], np.uint8)
    covered = cv2.warpAffine(covered, between_middles(inverse(to_other)), (width, height)).astype(np.uint8)
    # Leave out the three pixels that the edge of a border blurs.
    outside = cv2.dilate(covered, np.ones((7, 7), np.uint8)) == 0
    luma = cv2.cvtColor(photo.picture, cv2.COLOR_RGB2GRAY).astype(np.float32)
    if outside.any() and luma[outside].std() > _EVEN:
        return float(np.mean(outside))
    mean = cv2.blur(luma, (5, 5))
    has_content = cv2.blur(luma * luma, (5, 5)) - mean * mean > _PLAIN**2
    return float(np.mean(has_content & outside))


def _has_seam(around: Pixels, exists: Mask) -> bool:
    """Look at the upper edge, between the rows ``_REACH - 1`` and ``_REACH`` of RGB (rows, columns, 3)."""
    ends = slice(_REACH + 3, -_REACH - 3)
    around, exists = around[:, ends], exists[:, ends]
    beyond = exists[_REACH - 3 :].all(axis=0)  # columns in which something lies beyond the edge
    if np.count_nonzero(beyond) < max(12, 0.05 * len(beyond)):
        return False
    full = exists[:-2, beyond].all(axis=1)
    steps = cv2.absdiff(around[2:], around[:-2]).max(axis=2)[:, beyond]
    means = steps[full].mean(axis=1)
    inwards = np.flatnonzero(full) - (_REACH - 1.5)  # pixels from the edge, less than 0 outside
    near, far = means[np.abs(inwards) <= 2], means[np.abs(inwards) > 3]
    inside, outside = means[(inwards > 3) & (inwards < 10)], means[inwards < -7]
    return bool(
        near.max() > _SEAM * (far.max() + 1)
        or (len(outside) and np.median(inside) > _FLAT[0] * np.median(outside) + _FLAT[1])
    )

"""Tells a crop from a picture that was put into something larger: a border, a screenshot, a collage.

Both are a part of the other picture. Beyond the edge of a crop the scene goes on; around a picture that was put into
something else there is a seam along the whole side, or nothing at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from clip_client.dedup.alignment.geometry import between_middles, inverse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.alignment.geometry import Affine
    from clip_client.dedup.alignment.keypoints import Keypoints
    from clip_client.dedup.types import Pixels

_REACH: Final = 16
"""Pixels on either side of the edge that are looked at."""
_ROUNDED: Final = 3
"""Pixels at the ends of a side that are left out, and that must lie beyond an edge."""
_FEWEST: Final = 12
"""Pixels along a side beyond which there is something."""
_NEAR: Final = 2.0
"""Pixels by which the edge may be off."""
_SEAM: Final = 1.9
"""Step at the edge, divided by the largest one beside it. Measured: 1.5 at most on 250 crops of sample photos."""
_PLAIN: Final = (5.0, 2.4)
"""Factor, and levels: what lies outside is plain if the steps inside exceed that factor times its own, and these."""


def is_put_into(duplicate: Keypoints, kept: Keypoints, to_kept: Affine) -> bool:
    """Tell whether the duplicate lies in the kept photo as a picture in something else, rather than as a crop of it.

    ``to_kept`` leads from the duplicate's small picture to the kept photo's. False is no proof: a border that looks
    like the edge of its photo, and a collage of two pictures of one texture, have no seam.
    """
    scale = np.sqrt(abs(np.linalg.det(to_kept[:, :2])))
    width, height = (round(side * scale) for side in duplicate.picture.shape[1::-1])
    if min(width, height) < 2 * _REACH:
        return True
    # What lies around the upper edge of the duplicate, then around the others, each turned to the top.
    upright = np.diag([width, height]) @ np.diag(1 / np.array(duplicate.picture.shape[1::-1])) @ inverse(to_kept)
    upright = between_middles(upright) + np.array([0, 0, _REACH])
    exists = np.full(kept.picture.shape[:2], 255, np.uint8)
    for _ in range(4):
        strip = (width + 2 * _REACH, 3 * _REACH)
        around = cv2.warpAffine(kept.picture, upright, strip, borderMode=cv2.BORDER_REPLICATE)
        if _has_seam(np.asarray(around, np.uint8), cv2.warpAffine(exists, upright, strip) > 250):
            return True
        upright = np.array([[0, 1], [-1, 0]]) @ upright
        upright[1, 2] += width + 2 * _REACH - 1
        width, height = height, width
    return False


def _has_seam(around: Pixels, exists: NDArray[np.bool_]) -> bool:
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
    return bool(len(outside)) and bool(np.median(inside) > _PLAIN[0] * np.median(outside) + _PLAIN[1])

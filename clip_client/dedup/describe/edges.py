"""Tells whether two pictures that lie on each other have the same edges, and so differ in tones or sharpness alone.

A change of tones may go too far to be undone: levels that were cut off are lost. The edges tell it from a change of a
region, because a text, a patch or a removed object adds edges, removes some, or turns them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

if TYPE_CHECKING:
    from clip_client.dedup.types import Floats, Mask, Pixels

_SMOOTHING: Final = 1.5
"""Pixels, standard deviation: hides the seams beside the edges of a sharpened picture."""
_STRONG: Final = 4.0
"""Levels per pixel: an edge that encoders and noise do not make."""
_LOST: Final = 0.08
"""Share of the other picture's slope, below which a picture has no edge there."""
_WEAK: Final = 0.5
"""Share of the other picture's slope, below which an edge may be what is left of one that was cut off."""
_TURNED: Final = 0.3
"""Cosine between two slopes, below which they are those of different edges."""
_CUT_OFF: Final = (6, 249)
"""Levels at and beyond which edges may have been cut off."""
_AROUND: Final = (9, 9)
_SHARE_AROUND: Final = 0.15
"""Pixels around an edge, and the share of these that must be cut off."""
_BLOCK: Final = (16, 16)
"""Pixels, width and height."""
_MOST: Final = 0.1
"""Share of the pixels of any block. Texts, patches and spots on scenes and photos of 512 pixels reach 0.107 at least,
unless they have nearly the colour of what they cover. Of 29 changes of tones or sharpness, 23 stay below 0.1."""
_SHARPER: Final = 1.25
"""Ratio of the finest detail of two pictures."""


def have_same_edges(one: Pixels, other: Pixels, inside: Mask) -> bool:
    """Tell whether no block of the overlap ``inside`` (h, w) has other edges; the pictures are RGB (h, w, 3).

    True is not a proof: a faint text, or a spot with soft sides, has no such edges.
    """
    differ = np.zeros(inside.shape, np.float32)
    for channel in range(3):
        differ += _other_edges(one[..., channel], other[..., channel]) & inside
    return bool(cv2.blur(differ / 3, _BLOCK).max() < _MOST)


def sharpness_in_words(duplicate: Pixels, kept: Pixels, inside: Mask) -> str:
    """Say whether ``duplicate`` is sharper or softer than ``kept``, which has the same tones; empty if neither."""
    detail, of_kept = (_detail(picture, inside) for picture in (duplicate, kept))
    if max(detail, of_kept) < _SHARPER * min(detail, of_kept):
        return ""
    return "sharpened" if detail > of_kept else "blurred"


def _detail(picture: Pixels, inside: Mask) -> float:
    return cv2.norm(
        cv2.Laplacian(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), cv2.CV_32F), cv2.NORM_L1, inside.view(np.uint8)
    )


def _other_edges(one: Pixels, other: Pixels) -> Mask:
    """Return the pixels (h, w) where one of two planes has an edge that the other lacks, and could show."""
    slopes = [_slopes(plane) for plane in (one, other)]
    steepness = [np.hypot(across, down) for across, down in slopes]
    (across, down), (other_across, other_down) = slopes
    is_turned = across * other_across + down * other_down < _TURNED * steepness[0] * steepness[1]
    differ = np.zeros(one.shape, np.bool_)
    for plane, own, their in ((other, *steepness), (one, *steepness[::-1])):
        is_cut = cv2.blur(((plane <= _CUT_OFF[0]) | (plane >= _CUT_OFF[1])).astype(np.float32), _AROUND) > _SHARE_AROUND
        is_lost = their < _LOST * own
        differ |= (own > _STRONG) & ((is_lost & ~is_cut) | (is_turned & ~is_lost & ~(is_cut & (their < _WEAK * own))))
    return np.asarray(differ)


def _slopes(plane: Pixels) -> tuple[Floats, Floats]:
    """Levels per pixel along x and y."""
    smooth = cv2.GaussianBlur(plane.astype(np.float32), (0, 0), _SMOOTHING)
    across, down = (cv2.Sobel(smooth, cv2.CV_32F, 1 - axis, axis, scale=1 / 8) for axis in (0, 1))
    return np.asarray(across, np.float32), np.asarray(down, np.float32)

"""Aligns two photos, and says whether one is another file, an edit or an altered version of the other."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np

from clip_client.dedup.aligned import UNPROVED, Alignment
from clip_client.dedup.describe.changes import Changes, are_two_views
from clip_client.dedup.describe.comparison import STEP, Comparison, compare
from clip_client.dedup.describe.geometry import (
    Affine,
    corners_of,
    frame_affine,
    inverse,
    is_frame,
    is_reduced,
    laid_on_grid,
    matched_affine,
    refined_affine,
)
from clip_client.dedup.describe.keypoints import Keypoints
from clip_client.dedup.types import ALTERED, EDITED, RE_ENCODED

_MOST_RESIDUAL: Final = 0.25
"""A pair that agrees less was not compared well enough to be called the same."""
_LEAST_AGREEING: Final = 0.5
"""Share of the pixels with texture that an altered photo still shows."""
_FITS: Final = 0.9
"""Share of these pixels from which no other position is tried."""

_REFINED_BY: Final = 2
"""Times the limits for two views, from which on refining changes nothing: it moves sides by 0.002 of them at most."""

LIKE_A_COPY: Final = 0.9
"""Correlation of two thumbnails: that of a copy of 40 pixels on a side and quality 40 falls to 0.95."""
_BLURRED: Final = 3.0
"""Pixels, standard deviation: what encoders and filters change is finer."""
_MOST_DIFFERENT: Final = 32.0
"""Levels of the blurred luma. Copies differ by 14 at most, at quality 40 and by the coarsest filters; what moves in a
film differs by more, and a proof takes ten times as long as a description."""


def align(one: Keypoints, other: Keypoints) -> tuple[Alignment | None, Alignment | None]:
    """Return how ``one`` lies on ``other``, and the reverse; None if the photos do not show the same picture."""
    if one.reason or other.reason:
        return None, None
    # All is computed in one order of the two, so that exchanging them changes nothing but the words. Exception: if one
    # is cropped by a few pixels, only the crop is an edit of the other.
    first, second = sorted((one, other), key=lambda photo: (photo.width * photo.height, photo.jpeg))
    found = _best_position(first, second)
    if found is None or are_two_views(first, second, found[0]):
        return None, None
    affine, seen = found
    is_same = seen.residual <= _MOST_RESIDUAL and not seen.differs.any()
    is_whole = is_frame(affine, first, second) and not seen.is_toned and not seen.blur
    tier = ALTERED if not is_same else RE_ENCODED if is_whole else EDITED
    if tier == ALTERED and (seen.agreeing_share < _LEAST_AGREEING or not seen.differs.any()):
        # These are other photos, or a copy too coarse to tell.
        return None, None
    there = _described(first, second, affine, seen, tier, duplicate_is_grid=not is_reduced(affine))
    back = _described(second, first, inverse(affine), seen, tier, duplicate_is_grid=is_reduced(affine))
    return (there, back) if first is one else (back, there)


def _described(
    duplicate: Keypoints, kept: Keypoints, to_kept: Affine, seen: Comparison, tier: str, *, duplicate_is_grid: bool
) -> Alignment | None:
    changes = Changes(duplicate, kept, to_kept, seen, duplicate_is_grid=duplicate_is_grid)
    if not (words := changes.words()) and tier == EDITED:
        return None
    from_grid = to_kept if duplicate_is_grid else np.eye(2, 3)
    region, share = _region(seen, kept, from_grid) if tier == ALTERED else (None, 0.0)
    return Alignment(
        tier=tier,
        changes=words,
        lost=changes.lost(),
        doubts=changes.doubts() if tier == EDITED else (UNPROVED,) if tier == RE_ENCODED else (),
        transform=tuple(changes.full_size.ravel().tolist()),
        residual=seen.residual,
        region=region,
        region_share=share,
    )


def _best_position(first: Keypoints, second: Keypoints) -> tuple[Affine, Comparison] | None:
    framed = _compared(first, second, frame_affine(first, second))
    if framed is not None and framed[1].agreeing_share > _FITS:
        return framed
    matched = matched_affine(first, second)
    # Most pairs with matching keypoints are two views; to refine and compare them takes ten times as long as to tell.
    if matched is None or (framed is None and are_two_views(first, second, matched, times=_REFINED_BY)):
        return framed
    refined = _compared(first, second, refined_affine(first, second, matched))
    return max(filter(None, (framed, refined)), key=lambda found: found[1].agreeing_share, default=None)


def _compared(first: Keypoints, second: Keypoints, affine: Affine | None) -> tuple[Affine, Comparison] | None:
    if affine is None:
        return None
    # The finer picture is laid on the coarser one.
    grid, source, to_grid = (second, first, affine) if is_reduced(affine) else (first, second, inverse(affine))
    seen = compare(grid.picture, source.picture, to_grid)
    return None if seen is None else (affine, seen)


def copy_transform(duplicate: Keypoints, kept: Keypoints) -> Affine | None:
    affine = frame_affine(duplicate, kept, LIKE_A_COPY)
    if affine is None:
        return None
    grid, source, to_grid = (kept, duplicate, affine) if is_reduced(affine) else (duplicate, kept, inverse(affine))
    laid, _ = laid_on_grid(source.picture, to_grid, (grid.picture.shape[1], grid.picture.shape[0]))
    lumas = [cv2.cvtColor(one, cv2.COLOR_RGB2GRAY).astype(np.float32) for one in (laid, grid.picture)]
    different = np.abs(cv2.GaussianBlur(lumas[0] - lumas[1], (0, 0), _BLURRED)).max()
    return affine if different <= _MOST_DIFFERENT else None


def _region(seen: Comparison, kept: Keypoints, to_kept: Affine) -> tuple[tuple[float, float, float, float], float]:
    """Return, as shares of the kept picture, the box of what differs and its area; ``to_kept`` leads from the grid."""
    height, width = kept.picture.shape[:2]
    rows, columns = (STEP * places for places in np.nonzero(seen.differs))
    size = (int(np.ptp(columns)) + STEP, int(np.ptp(rows)) + STEP)
    moved = np.column_stack([to_kept[:, :2], to_kept[:, :2] @ (columns.min(), rows.min()) + to_kept[:, 2]])
    corners = np.clip(corners_of(moved, size) / (width, height), 0, 1)
    (left, top), (right, bottom) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
    area = len(rows) * STEP**2 * abs(float(np.linalg.det(to_kept[:, :2])))
    return (left, top, right - left, bottom - top), min(1.0, area / (width * height))

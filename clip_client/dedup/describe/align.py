"""Aligns two photos, and tells a copy from an edited copy, an altered one and another photo."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from clip_client.dedup.aligned import PUT_INTO, UNTOLD, Alignment
from clip_client.dedup.describe.changes import Changes
from clip_client.dedup.describe.comparison import Comparison, compare, laid_on_grid, refined
from clip_client.dedup.describe.geometry import frame_affine, inverse, is_frame, matched_affine, whole_affine
from clip_client.dedup.describe.motion import STEP
from clip_client.dedup.types import ALTERED, EDITED, RE_ENCODED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clip_client.dedup.describe.geometry import Affine
    from clip_client.dedup.describe.keypoints import Keypoints
    from clip_client.dedup.types import Mask

_MOST_EXCESS: Final = 4.0
"""Times the difference that noise explains. Measured on copies: 95 % of JPEG quality 20 and better stay below 4; on
frames of a film one twenty-fifth of a second apart: 98 % have a window above 6."""
_FEWEST_WINDOWS: Final = 4
"""A difference shows in several windows, because they overlap; a single one is the edge of a JPEG's block."""
_MOST_TINGE: Final = 6.0
"""Levels of chroma, without noise. JPEG of quality 30 reaches 5."""
_MOST_NOISE: Final = 10.0
"""Squared grey levels; JPEG of quality 10 reaches 14, one of quality 20 reaches 6."""
_LEAST_CORRELATION: Final = 0.75
"""10th percentile over the overlap."""
_MOST_DRIFT: Final = 0.35
"""Pixels. Programs that resize agree where the middle of a pixel is, to a quarter of one."""
_NO_NOISE: Final = 4 * _MOST_EXCESS
"""Times the difference that noise explains, above which no transform can explain a window: it shows something else."""
_EXACT_DRIFT: Final = 0.1
"""Pixels: less is within the error of keypoints."""
_MOST_MOVING: Final = 0.025
"""Share of the windows that move on their own. Copies seldom reach 0.02, frames of a film seldom stay below 0.04."""
_MOST_MOVING_EDITED: Final = 0.045
"""Share of the windows if the frame, the colours or the sharpness differ: undoing that is a little inexact. Frames of a
film that stay below it differ in 50 windows and more."""
_MOST_GRAIN: Final = 0.04
"""Share of the windows with grain of their own."""
_LEAST_TEXTURED: Final = 0.03
"""Share of the windows: what agrees must have structure."""
_AGREES: Final = 0.6
"""Correlation of a window that shows the same."""
_LEAST_AGREEING: Final = 0.5
"""Share of the windows with texture that an altered photo still shows."""
_MOST_OUTSIDE: Final = 0.005
"""Share of a picture, with content, beyond the other one. If both have more, neither is a crop of the other."""
_MOST_BEYOND: Final = 0.1
"""Share of a side. If each picture goes on beyond the other by more, both are views of a scene, however plain what they
do not share is. A rotation by 5 degrees moves corners by 0.09."""


_LIKE_A_COPY: Final = 0.9
"""Correlation of two thumbnails: that of a copy of 40 pixels on a side and quality 40 falls to 0.95."""
_BLURRED: Final = 3.0
"""Pixels, standard deviation: what encoders and filters change is finer."""
_MOST_DIFFERENT: Final = 32.0
"""Levels of the blurred luma. Copies differ by 14 at most, at quality 40 and by the coarsest filters; what moves in a
film differs by more, and a proof takes ten times as long as a description."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Hypothesis:
    """One way in which the first picture may lie on the second."""

    affine: Affine
    comparison: Comparison
    grid: Keypoints
    """The one of the two on which the other is laid."""
    is_frame: bool
    """Both show the same frame upright."""

    @cached_property
    def residual(self) -> float:
        textured = self.comparison.textured
        if not textured.any():
            return 1.0
        return 1 - float(np.percentile(self.comparison.correlation[textured], 10))

    @cached_property
    def differs(self) -> Mask:
        """Windows with a difference that noise does not explain."""
        seen = self.comparison
        most_tinge = _MOST_TINGE + 2 * np.sqrt(seen.noise)
        differs = seen.inside & ((seen.excess > _MOST_EXCESS) | (seen.tinge > most_tinge))
        if np.count_nonzero(differs) < _FEWEST_WINDOWS:
            differs &= seen.excess > 2 * _MOST_EXCESS
        is_edit = not self.is_frame or not seen.grading.is_none or bool(seen.blur)
        most = _MOST_MOVING_EDITED if is_edit else _MOST_MOVING
        if np.count_nonzero(seen.moves) > most * np.count_nonzero(seen.inside):
            differs |= seen.moves
        return np.asarray(differs)

    @cached_property
    def agrees(self) -> bool:
        """Noise explains all that differs."""
        seen = self.comparison
        return bool(
            seen.noise <= _MOST_NOISE
            and seen.grain <= _MOST_GRAIN
            and seen.drift <= _MOST_DRIFT
            and self.residual <= 1 - _LEAST_CORRELATION
            and np.count_nonzero(seen.textured) >= _LEAST_TEXTURED * np.count_nonzero(seen.inside)
            and not self.differs.any()
        )

    @property
    def may_lie_better(self) -> bool:
        """Whether the same shows, but a little off: the transform was improved before the colours were made equal."""
        return not self.is_frame and self.comparison.drift > _MOST_DRIFT and self.agreeing_share >= _LEAST_AGREEING

    @property
    def is_altered(self) -> bool:
        """Most shows the same in the same place, and a difference is too large for any transform to explain."""
        seen = self.comparison
        largest = seen.excess[seen.inside].max(initial=0)
        return largest > _NO_NOISE and seen.drift <= _EXACT_DRIFT and self.agreeing_share >= _LEAST_AGREEING

    @cached_property
    def agreeing_share(self) -> float:
        """Share of the windows with texture that show the same."""
        textured = self.comparison.textured
        same = textured & ~self.differs & (self.comparison.correlation > _AGREES)
        return float(np.count_nonzero(same) / max(1, np.count_nonzero(textured)))


def align(duplicate: Keypoints, kept: Keypoints) -> Alignment | None:
    """Return how ``duplicate`` lies on ``kept``, or None if the photos do not show the same.

    The result does not depend on the order: with the photos exchanged, the tier and the residual are the same, and the
    transform is the inverse. Exception: if one photo is cropped by a few pixels, only the crop counts as a copy.
    """
    if duplicate.reason or kept.reason:
        return None
    # All is computed in one order of the two, so that exchanging them changes nothing but the words.
    first, second = sorted((duplicate, kept), key=lambda photo: (photo.width * photo.height, photo.jpeg))
    best: _Hypothesis | None = None
    for found in _hypotheses(first, second):
        if best is None or (found.agrees, found.agreeing_share) > (False, best.agreeing_share):
            best = found
        if found.agrees or found.is_altered:
            break
    if best is None:
        return None
    affine = best.affine if first is duplicate else inverse(best.affine)
    changes = Changes(duplicate, kept, affine, best.comparison, duplicate_is_grid=best.grid is duplicate)
    if min(changes.outside_kept, changes.outside_duplicate) > _MOST_OUTSIDE:
        return None
    if min(max(changes.kept_margins), max(changes.duplicate_margins)) > _MOST_BEYOND:
        return None
    words, region, share = changes.words(), None, 0.0
    if best.agrees:
        tier = RE_ENCODED if best.is_frame and best.comparison.grading.is_none and not best.comparison.blur else EDITED
        if tier == EDITED and not words:
            return None
    elif best.agreeing_share < _LEAST_AGREEING or not best.differs.any():
        # Other photos, or what cannot be proved: two exposures of one scene, or a copy too coarse to tell.
        return None
    else:
        tier = ALTERED
        region, share = _region(best, kept, affine)
    return Alignment(
        tier=tier,
        changes=words,
        lost=changes.lost(),
        doubts=_doubts(changes, best.comparison) if tier == EDITED else (),
        transform=tuple(changes.full_size.ravel().tolist()),
        residual=best.residual,
        region=region,
        region_share=share,
    )


def _doubts(changes: Changes, seen: Comparison) -> tuple[str, ...]:
    """Say why nothing moves for an edited photo: size and frame tell which of two shows more, and little else does."""
    if changes.is_put_into():
        return (PUT_INTO,)
    is_toned = not seen.grading.is_none and not seen.grading.is_from_colour_to_grey
    return (UNTOLD,) if is_toned or seen.blur else ()


def copy_transform(duplicate: Keypoints, kept: Keypoints) -> Affine | None:
    """Return how the whole of a small picture lies on another one; None if it does not look like a copy of it."""
    affine = frame_affine(duplicate, kept, _LIKE_A_COPY)
    if affine is None:
        return None
    grid, source, to_grid = kept, duplicate, affine
    if not _is_reduced(affine):
        grid, source, to_grid = duplicate, kept, inverse(affine)
    laid, _ = laid_on_grid(source.picture, to_grid, (grid.picture.shape[1], grid.picture.shape[0]))
    lumas = [cv2.cvtColor(one, cv2.COLOR_RGB2GRAY).astype(np.float32) for one in (laid, grid.picture)]
    different = np.abs(cv2.GaussianBlur(lumas[0] - lumas[1], (0, 0), _BLURRED)).max()
    return affine if different <= _MOST_DIFFERENT else None


def _hypotheses(first: Keypoints, second: Keypoints) -> Iterator[_Hypothesis]:
    for affine in _affines(first, second):
        found = _test(first, second, affine)
        if found is None:
            continue
        yield found
        if found.may_lie_better:
            to_grid = found.comparison.to_grid
            better = _test(first, second, to_grid if found.grid is second else inverse(to_grid))
            if better is not None:
                yield better


def _affines(first: Keypoints, second: Keypoints) -> Iterator[Affine]:
    frame = frame_affine(first, second)
    if frame is not None:
        yield frame
    matched = matched_affine(first, second)
    if matched is not None:
        if _is_reduced(matched):
            better = refined(second.picture, first.picture, matched)
        else:
            better = inverse(refined(first.picture, second.picture, inverse(matched)))
        if frame is None and is_frame(better, first, second):
            yield whole_affine(first, second)  # keypoints are off by a little
        yield better


def _is_reduced(affine: Affine) -> bool:
    return abs(float(np.linalg.det(affine[:, :2]))) <= 1


def _test(first: Keypoints, second: Keypoints, affine: Affine) -> _Hypothesis | None:
    """Lay the finer picture on the coarser one."""
    if _is_reduced(affine):
        grid, comparison = second, compare(second.picture, first.picture, affine)
    else:
        grid, comparison = first, compare(first.picture, second.picture, inverse(affine))
    if comparison is None:
        return None
    return _Hypothesis(affine=affine, comparison=comparison, grid=grid, is_frame=is_frame(affine, first, second))


def _region(best: _Hypothesis, kept: Keypoints, to_kept: Affine) -> tuple[tuple[float, float, float, float], float]:
    """Return the box around what differs, and its area without the gaps, as shares of the kept picture."""
    rows, columns = np.nonzero(best.differs)
    affine = np.eye(2, 3) if best.grid is kept else to_kept
    corners = np.array(
        [(x, y) for x in (columns.min(), columns.max() + 1) for y in (rows.min(), rows.max() + 1)], dtype=float
    )
    corners = STEP * corners @ affine[:, :2].T + affine[:, 2]
    height, width = kept.picture.shape[:2]
    corners = np.clip(corners / (width, height), 0, 1)
    (left, top), (right, bottom) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
    area = len(rows) * STEP**2 * abs(float(np.linalg.det(affine[:, :2])))
    return (left, top, right - left, bottom - top), min(1.0, area / (width * height))

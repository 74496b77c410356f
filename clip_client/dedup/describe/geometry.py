"""Position of one picture on another: the same frame, or an affine transform from keypoints that match."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.describe.keypoints import Keypoints
from clip_client.dedup.types import Mask, Pixels

Affine: TypeAlias = NDArray[np.float64]
"""(2, 3): from the pixels of one picture to those of another, counted from the corner."""
_RATIO: Final = 0.85
"""Greatest ratio of the distances to the nearest and to the second nearest descriptor (Lowe 2004)."""
_FEWEST_INLIERS: Final = 8
_FRAME_TOLERANCE: Final = 1.0
"""Pixels of the coarser small picture, by which the sides of one frame may be off."""
_MOST_STRETCH: Final = 2.0
"""Ratio of the scales along two axes above which no photo editor made the transform."""
_MOST_SCALE: Final = 32.0
"""Scale above which nothing is left to compare: 512 pixels, the longest side of a small picture, become 16."""
_ALIKE: Final = 0.97
"""Least correlation of two thumbnails that makes it worthwhile to compare the pictures as they are."""
_REFINING: Final = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 6, 1e-4)
_EDGE: Final = 5
"""Pixels along an edge that interpolation and smoothing change, unless both show one frame."""

# A mirrored picture has the same descriptors in another order: SIFT's 4 x 4 cells upside down along the axis of the
# keypoint, and its 8 directions counted the other way round.
_MIRRORED: Final = np.arange(128).reshape(4, 4, 8)[::-1][:, :, -np.arange(8) % 8].ravel()


def inverse(affine: Affine) -> Affine:
    return np.asarray(cv2.invertAffineTransform(affine), np.float64)


def between_middles(affine: Affine, *, by: float = 0.5) -> Affine:
    """Return a transform in OpenCV's coordinates, counted from the middle of the first pixel; ``by`` -0.5 reverts."""
    return np.column_stack([affine[:, :2], affine[:, 2] + by * affine[:, :2].sum(axis=1) - by])


def is_reduced(affine: Affine) -> bool:
    return abs(float(np.linalg.det(affine[:, :2]))) <= 1


def corners_of(affine: Affine, size: tuple[int, ...] | NDArray[np.int_]) -> NDArray[np.float64]:
    """Return where the corners (4, 2) of a picture of that width and height lie: both left ones, then the right."""
    width, height = size
    corners = np.array([[0, 0], [0, height], [width, 0], [width, height]])
    return np.asarray(corners @ affine[:, :2].T + affine[:, 2], np.float64)


def frame_affine(first: Keypoints, second: Keypoints, least: float = _ALIKE) -> Affine | None:
    """Return the transform (2, 3) that lays all of ``first``, turned or mirrored, on all of ``second``.

    None if the thumbnails correlate by ``least`` or less in each of the eight turns.
    """
    correlations = first.orientations @ second.thumbnail.ravel() / second.thumbnail.size
    best = int(correlations.argmax())
    if correlations[best] <= least:
        return None
    turn = np.linalg.matrix_power([[0, 1], [-1, 0]], best % 4)  # to the left, as numpy.rot90 turns
    return _whole_affine(first, second, turn @ np.diag([-1, 1]) if best >= 4 else turn)


def _whole_affine(first: Keypoints, second: Keypoints, turn: NDArray[np.int_]) -> Affine:
    (height, width), (to_height, to_width) = first.picture.shape[:2], second.picture.shape[:2]
    scaled = np.diag([to_width, to_height]) @ turn @ np.diag([1 / width, 1 / height])
    middles = np.array([width, height]) / 2, np.array([to_width, to_height]) / 2
    return np.column_stack([scaled, middles[1] - scaled @ middles[0]])


def is_frame(affine: Affine, first: Keypoints, second: Keypoints) -> bool:
    """Tell whether both show one frame upright: the corners coincide, and the aspect ratios agree up to rounding."""
    sums = first.width + first.height, second.width + second.height
    if abs(first.width * second.height - second.width * first.height) > max(sums):
        return False
    sizes = [np.array(photo.picture.shape[1::-1]) for photo in (first, second)]
    off = corners_of(affine, sizes[0]) - corners_of(np.eye(2, 3), sizes[1])
    return bool(np.abs(off / np.maximum(sizes[1] / sizes[0], 1)).max() < _FRAME_TOLERANCE)


def matched_affine(first: Keypoints, second: Keypoints) -> Affine | None:
    """Return the transform, maybe a mirroring one, that keypoints give to tenths of a pixel; None if too few match."""
    for mirrored in (False, True):
        one, other = _matches(first.root_sift[:, _MIRRORED] if mirrored else first.root_sift, second.root_sift)
        if len(one) < _FEWEST_INLIERS:
            continue
        source, target = first.keypoints()[0][one], second.keypoints()[0][other]
        found, inliers = cv2.estimateAffine2D(
            source, target, None, cv2.USAC_MAGSAC, ransacReprojThreshold=2.0, maxIters=1000, confidence=0.999
        )
        if found is None or int(inliers.sum()) < _FEWEST_INLIERS or not np.isfinite(found).all():
            continue
        affine = np.asarray(found, np.float64)
        if _is_plausible(affine) and (np.linalg.det(affine[:, :2]) < 0) == mirrored:
            return affine
    return None


def _matches(first: NDArray[np.float32], second: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    if min(len(first), len(second)) < 2:
        return np.empty(0, np.intp), np.empty(0, np.intp)
    # By OpenCV, because NumPy starts threads for it. OpenCV's matcher takes twice the time.
    product = cv2.gemm(first, second, 1, None, 0, flags=cv2.GEMM_2_T)  # type: ignore[call-overload]  # adds nothing
    cosines = np.asarray(product, np.float32)
    rows = np.arange(len(first))
    nearest = cosines.argmax(axis=1)
    is_mutual = cosines.argmax(axis=0)[nearest] == rows
    best = cosines[rows, nearest]
    cosines[rows, nearest] = -1
    squared = (1 - best) / np.maximum(1 - cosines.max(axis=1), 1e-9)  # unit vectors: distance² = 2 - 2 cosine
    good = np.flatnonzero(is_mutual & (squared < _RATIO**2))
    return good, nearest[good]


def _is_plausible(affine: Affine) -> bool:
    wide, narrow = np.linalg.svd(affine[:, :2], compute_uv=False)
    return bool(1 / _MOST_SCALE < narrow <= wide < min(_MOST_SCALE, _MOST_STRETCH * narrow))


def laid_on_grid(source: Pixels, to_grid: Affine, size: tuple[int, int]) -> tuple[Pixels, Mask]:
    """Return ``source`` resampled to ``size`` (width, height), and the mask (H, W) of pixels that can be compared.

    ``to_grid`` maps the source to the result, and should not enlarge the source.
    """
    if source.shape[1::-1] == size and (to_grid == np.eye(2, 3)).all():
        return source, np.ones(source.shape[:2], np.bool_)
    covered = np.full(source.shape[:2], 255, np.uint8)
    scale = np.sqrt(abs(np.linalg.det(to_grid[:, :2])))
    if scale < 0.98:
        source = np.asarray(cv2.GaussianBlur(source, (0, 0), 0.5 * np.sqrt(1 / scale**2 - 1)), np.uint8)
    centred = between_middles(to_grid)
    moved = cv2.warpAffine(source, centred, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    # If both show one frame, compare all of it: what was put along an edge must be seen.
    inside = cv2.dilate(cv2.warpAffine(covered, centred, size), np.ones((3, 3))) > 250
    if not inside.all():
        around = np.ones((2 * _EDGE + 3,) * 2)
        inside = cv2.erode(inside.view(np.uint8), around, borderType=cv2.BORDER_CONSTANT, borderValue=(0,)) > 0
    return np.asarray(moved, np.uint8), np.asarray(inside)


def refined_affine(first: Keypoints, second: Keypoints, affine: Affine) -> Affine:
    better = _refined(first, second, affine)
    # If keypoints were only off by a little, the whole pictures lie on each other.
    return _whole_affine(first, second, np.eye(2, dtype=int)) if is_frame(better, first, second) else better


def _refined(first: Keypoints, second: Keypoints, affine: Affine) -> Affine:
    if not is_reduced(affine):
        return inverse(_refined(second, first, inverse(affine)))
    grid = second.picture
    laid, inside = laid_on_grid(first.picture, affine, (grid.shape[1], grid.shape[0]))
    template, moved = (cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY) for picture in (grid, laid))
    # The enhanced correlation coefficient does not depend on brightness and contrast (Evangelidis and Psarakis 2008).
    with suppress(cv2.error):  # nothing to go by, or no better transform
        _, found = cv2.findTransformECC(
            template, moved, np.eye(2, 3, dtype=np.float32), cv2.MOTION_AFFINE, _REFINING, inside.view(np.uint8), 1
        )
        back = inverse(between_middles(np.asarray(found, np.float64), by=-0.5))
        if _is_plausible(back):
            return np.column_stack([back[:, :2] @ affine[:, :2], back[:, :2] @ affine[:, 2] + back[:, 2]])
    return affine

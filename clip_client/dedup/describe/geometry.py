"""Position of one picture on another: the same frame, or an affine transform from keypoints that match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import cv2
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.describe.keypoints import Keypoints

    Affine: TypeAlias = NDArray[np.float64]
    """(2, 3): from the pixels of one picture to those of another, counted from the corner."""

_RATIO: Final = 0.85
"""Greatest ratio of the distances to the nearest and to the second nearest descriptor (Lowe 2004)."""
_TOLERANCE: Final = 2.0
"""Pixels by which a keypoint may be off."""
_FEWEST_INLIERS: Final = 8
FRAME_TOLERANCE: Final = 1.0
"""Pixels of the coarser small picture, by which the sides of one frame may be off."""
_MOST_STRETCH: Final = 2.0
"""Ratio of the scales along two axes above which no photo editor made the transform."""
ALIKE: Final = 0.97
"""Correlation of two thumbnails from which on it is worth while to compare the pictures as they are."""

# A mirrored picture has the same descriptors in another order: SIFT's 4 x 4 cells upside down along the axis of the
# keypoint, and its 8 directions counted the other way round.
_MIRRORED: Final = np.arange(128).reshape(4, 4, 8)[::-1][:, :, -np.arange(8) % 8].ravel()


def inverse(affine: Affine) -> Affine:
    """Return the transform that leads back."""
    return np.asarray(cv2.invertAffineTransform(affine), np.float64)


def after(second: Affine, first: Affine) -> Affine:
    """Return the transform that does the ``first`` one, then the ``second``."""
    return np.column_stack([second[:, :2] @ first[:, :2], second[:, :2] @ first[:, 2] + second[:, 2]])


def between_middles(affine: Affine) -> Affine:
    """Return a transform as OpenCV has it, which counts from the middle of the first pixel."""
    return np.column_stack([affine[:, :2], affine[:, 2] + affine[:, :2].sum(axis=1) / 2 - 0.5])


def corners_of(affine: Affine, size: tuple[int, ...] | NDArray[np.int_]) -> NDArray[np.float64]:
    """Return where the corners (4, 2) of a picture of that width and height lie: both left ones, then the right."""
    width, height = size
    corners = np.array([[0, 0], [0, height], [width, 0], [width, height]])
    return np.asarray(corners @ affine[:, :2].T + affine[:, 2], np.float64)


def frame_affine(first: Keypoints, second: Keypoints, least: float = ALIKE) -> Affine | None:
    """Return the transform of the whole picture of ``first`` onto that of ``second``, turned or mirrored if need be.

    None if the thumbnails have a correlation of at most ``least`` in every orientation.
    """
    correlations = first.orientations @ second.thumbnail.ravel() / second.thumbnail.size
    best = int(correlations.argmax())
    if correlations[best] <= least:
        return None
    turn = np.linalg.matrix_power([[0, 1], [-1, 0]], best % 4)  # to the left, as numpy.rot90 turns
    return whole_affine(first, second, turn @ np.diag([-1, 1]) if best >= 4 else turn)


def whole_affine(first: Keypoints, second: Keypoints, turn: NDArray[np.int_] | None = None) -> Affine:
    """Return the transform of the whole picture of ``first`` onto that of ``second``, after a ``turn`` (2, 2)."""
    (height, width), (to_height, to_width) = first.picture.shape[:2], second.picture.shape[:2]
    turned = np.eye(2) if turn is None else turn
    scaled = np.diag([to_width, to_height]) @ turned @ np.diag([1 / width, 1 / height])
    middles = np.array([width, height]) / 2, np.array([to_width, to_height]) / 2
    return np.column_stack([scaled, middles[1] - scaled @ middles[0]])


def is_frame(affine: Affine, first: Keypoints, second: Keypoints) -> bool:
    """Tell whether the pictures show the same frame upright: their corners lie on each other, and their shapes agree.

    A copy in another size has sides of whole pixels, so its shape differs a little.
    """
    sums = first.width + first.height, second.width + second.height
    if abs(first.width * second.height - second.width * first.height) > max(sums):
        return False
    sizes = [np.array(photo.picture.shape[1::-1]) for photo in (first, second)]
    off = corners_of(affine, sizes[0]) - corners_of(np.eye(2, 3), sizes[1])
    return bool(np.abs(off / np.maximum(sizes[1] / sizes[0], 1)).max() < FRAME_TOLERANCE)


def matched_affine(first: Keypoints, second: Keypoints) -> Affine | None:
    """Return the transform from the picture of ``first`` to that of ``second`` by keypoints; it may mirror.

    None if too few keypoints match.
    """
    for mirrored in (False, True):
        descriptors = first.root_sift[:, _MIRRORED] if mirrored else first.root_sift
        one, other = _matches(descriptors, second.root_sift)
        if len(one) < _FEWEST_INLIERS:
            continue
        affine = _estimate(first.keypoints()[0][one], second.keypoints()[0][other])
        if affine is not None and (np.linalg.det(affine[:, :2]) < 0) == mirrored:
            return affine
    return None


def _matches(first: NDArray[np.float32], second: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of the mutual nearest neighbours that are clearly nearer than the next."""
    if min(len(first), len(second)) < 2:
        return np.empty(0, np.intp), np.empty(0, np.intp)
    # By OpenCV, because NumPy starts threads for it, which then wait for those of other pairs.
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


def _estimate(source: NDArray[np.float32], target: NDArray[np.float32]) -> Affine | None:
    affine, inliers = cv2.estimateAffine2D(
        source, target, None, cv2.USAC_MAGSAC, ransacReprojThreshold=_TOLERANCE, maxIters=1000, confidence=0.999
    )
    if affine is None or int(inliers.sum()) < _FEWEST_INLIERS or not np.isfinite(affine).all():
        return None
    wide, narrow = np.linalg.svd(affine[:, :2], compute_uv=False)
    return np.asarray(affine, np.float64) if 0 < wide < _MOST_STRETCH * narrow else None

"""Compares two pictures that lie on each other: what noise and encoders explain, and what they do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from clip_client.dedup.describe.geometry import FRAME_TOLERANCE, after, between_middles
from clip_client.dedup.describe.grading import Grading, cut_off, grading_of, regrading
from clip_client.dedup.describe.motion import STEP, Windows, find_motion, sampled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.describe.geometry import Affine
    from clip_client.dedup.types import Floats, Mask, Pixels


_SMOOTHING: Final = 1.0
"""Pixels, standard deviation: hides how encoders and resizing differ in the finest detail."""
_EDGE: Final = 4
"""Pixels that smoothing and interpolation change where one picture ends and the other one goes on, more so if a border
begins there."""
_TEXTURE: Final = 16.0
"""Squared levels: a window with less variance has no structure to compare."""
_BLURS: Final = (0.6, 0.9, 1.2, 1.6, 2.1, 2.8)
"""Pixels, standard deviation, tried on the sharper picture."""
_SHARPER: Final = 1.25
"""Ratio of the detail of two pictures from which on one is blurred."""
_LEAST_BLUR: Final = 0.8
"""Pixels: strong compression blurs by less."""
_MOST_JITTER: Final = 0.03
"""Squared pixels; resizing and interpolation move edges by 0.17 pixels at most."""
_JITTER_BY_NOISE: Final = 0.05
"""Further squared pixels for each squared level of noise: strong compression blurs edges."""
_EDIT_LEAVES: Final = 0.01
"""Share of a window's variance by which an undone change of brightness may be off."""
_BLUR_LEAVES: Final = 0.03
"""Share of a window's variance by which an undone change of sharpness may be off."""
_LEAST_GRAIN: Final = 1.0
"""Squared levels of the finest detail: less is rounding, and the small picture's own compression."""
_LARGE: Final = 256
"""Pixels, of the longer side: a larger picture is refined at half the size, which is precise enough."""
_LEAST_OVERLAP: Final = 900
"""Pixels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Differences that remain, in windows of the grid, (rows, columns); see :class:`.motion.Windows`."""

    inside: Mask
    """Windows in the overlap."""
    excess: Floats
    """Mean squared difference, in units of what the noise of this pair explains in such a window."""
    tinge: Floats
    """Difference of the chroma, levels."""
    moves: Mask
    """Windows that moved on their own."""
    drift: float
    """Pixels by which the corners of the overlap moved together."""
    to_grid: Affine
    """The transform that was compared, corrected by that drift."""
    correlation: Floats
    textured: Mask
    """Windows in the overlap in which either picture has texture."""
    noise: float
    """Mean squared difference in plain windows, squared levels."""
    grain: float
    """Share of the windows in which both pictures have as much fine grain, but not the same: as in two exposures."""
    blur: float
    """Pixels, standard deviation; positive if the moved picture was sharper, negative if the grid's was. 0 if an
    encoder explains it."""
    grading: Grading
    """Tones of the picture of the grid and of the moved one, and their change."""
    cut_off: tuple[float, float]
    """Share of the overlap in which a channel of the grid's picture is cut off, and the same of the moved one."""


def compare(grid: Pixels, source: Pixels, to_grid: Affine) -> Comparison | None:
    """Lay ``source`` on ``grid``, both RGB (h, w, 3), and compare them; None if they hardly overlap.

    ``to_grid`` leads from the pixels of ``source`` to those of ``grid``, counted from the corner. It should not
    enlarge, so that the coarser picture sets the detail.
    """
    moved, inside = laid_on_grid(source, to_grid, (grid.shape[1], grid.shape[0]))
    windows = Windows(sampled(inside))
    if np.count_nonzero(inside) < _LEAST_OVERLAP or not windows.valid[::2, ::2].any():  # a strip along an edge
        return None
    grading = grading_of(grid, moved, inside)
    fixed, cut = grid, (0.0, 0.0)
    if not grading.is_none:
        grid_is_grey, moved_is_grey = (tones.is_mostly_grey for tones in grading.tones)
        # Where one channel was cut off, a black and white copy of the picture shows the others, mixed.
        cut = (
            0.0 if moved_is_grey and not grid_is_grey else cut_off(grid, moved, inside),
            0.0 if grid_is_grey and not moved_is_grey else cut_off(moved, grid, inside),
        )
        # Only from colour to grey, and from all levels to fewer, does one rule hold for every pixel.
        ranks = [
            (tones.is_mostly_grey, share, round(tones.clipped, 3))
            for tones, share in zip(grading.tones, cut, strict=True)
        ]
        if ranks[0] < ranks[1]:
            fixed = regrading(fixed, moved, inside, is_grey=grid_is_grey)(fixed)
        else:
            moved = regrading(moved, fixed, inside, is_grey=moved_is_grey)(moved)
    lumas = [np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.uint8) for picture in (fixed, moved)]
    smooth = [_smooth(luma, _SMOOTHING) for luma in lumas]
    grain = _grain(lumas, smooth, windows)
    one, other, blur = _match_detail(smooth[0], smooth[1], inside)
    across, other_across, down, other_down = (_slope(luma, axis) for axis in (0, 1) for luma in (one, other))
    one, other = sampled(one), sampled(other)
    error = one - other
    move, drift, moves = find_motion(error, (across + other_across) / 2, (down + other_down) / 2, windows)
    least_slope = np.minimum(across * across + down * down, other_across * other_across + other_down * other_down)
    squared, slope, mean, other_mean, square, other_square, product = windows.means(
        error * error, least_slope, one, other, one * one, other * other, one * other
    )
    variance = np.maximum(square - mean**2, 0)
    other_variance = np.maximum(other_square - other_mean**2, 0)
    noise, explained = _explained(squared, slope, windows.valid)
    leaves = _BLUR_LEAVES if blur else 0.0 if grading.is_none else _EDIT_LEAVES
    explained += leaves * np.maximum(variance, other_variance)
    chroma = [windows.means(*_chroma(picture)) for picture in (fixed, moved)]
    return Comparison(
        inside=windows.valid,
        excess=squared / explained,
        tinge=np.hypot(*(one - other for one, other in zip(*chroma, strict=True))),
        moves=moves,
        drift=drift,
        to_grid=after(move, to_grid),
        correlation=(product - mean * other_mean) / np.sqrt(np.maximum(variance * other_variance, 1)),
        textured=windows.valid & (np.maximum(variance, other_variance) > _TEXTURE),
        noise=noise,
        grain=grain,
        blur=blur if abs(blur) > _LEAST_BLUR else 0.0,
        grading=grading,
        cut_off=cut,
    )


def refined(grid: Pixels, source: Pixels, to_grid: Affine) -> Affine:
    """Return a transform that fits better than that of keypoints, which is off by some tenths of a pixel."""
    scale = 0.5 if max(grid.shape[:2]) > _LARGE else 1.0
    luma, source = (np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.uint8) for picture in (grid, source))
    small = np.asarray(cv2.resize(luma, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)
    to_small = np.diag([scale, scale])
    for _ in range(2):
        moved, inside = laid_on_grid(source, to_small @ to_grid, (small.shape[1], small.shape[0]))
        if np.count_nonzero(inside) < _LEAST_OVERLAP * scale**2:
            break
        one, other = (_smooth(picture, _SMOOTHING) for picture in (small, moved))
        brightness, contrast = _tones(one, inside)
        other_brightness, other_contrast = _tones(other, inside)
        other = (other - other_brightness) * np.float32(contrast / max(1.0, other_contrast)) + brightness
        middle = (one + other) / 2
        windows = Windows(sampled(inside))
        better, _, _ = find_motion(sampled(one - other), _slope(middle, 0), _slope(middle, 1), windows)
        better[:, 2] /= scale
        to_grid = after(better, to_grid)
    return to_grid


def laid_on_grid(source: Pixels, to_grid: Affine, size: tuple[int, int]) -> tuple[Pixels, Mask]:
    """Return the picture on the grid, and which pixels of the grid can be compared with it."""
    if source.shape[1::-1] == size and (to_grid == np.eye(2, 3)).all():
        return source, np.ones(source.shape[:2], np.bool_)
    scale = np.sqrt(abs(np.linalg.det(to_grid[:, :2])))
    if scale < 0.98:
        source = np.asarray(cv2.GaussianBlur(source, (0, 0), 0.5 * np.sqrt(1 / scale**2 - 1)), np.uint8)
    centred = between_middles(to_grid)
    moved = cv2.warpAffine(source, centred, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(moved, np.uint8), _overlap(source, to_grid, size)


def _overlap(source: Pixels, to_grid: Affine, size: tuple[int, int]) -> Mask:
    """Return the pixels of the grid that ``source`` covers, but for those near a side at which only one of them ends.

    Near a side at which both end, all is compared: what was put along it must be seen.
    """
    linear, start = to_grid[:, :2], to_grid[:, 2]
    ends, unit = np.array(source.shape[1::-1]), np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    corners = unit * ends @ linear.T + start
    off = np.abs(np.stack([corners, corners - size], axis=1))
    # Distances of the source's sides (top, right, bottom, left) from the grid's ((left, top), (right, bottom)).
    is_common = np.maximum(off, np.roll(off, -1, axis=0)) < FRAME_TOLERANCE
    top, right, bottom, left = ~is_common.any(axis=(1, 2))
    edge = _EDGE * np.hypot(*linear)[::-1] / abs(np.linalg.det(linear))  # in pixels of the source
    first, last = edge * (left, top), ends - edge * (right, bottom)
    inside = np.zeros(size[::-1], np.uint8)
    if (first < last).all():
        inner = (first + unit * (last - first)) @ linear.T + start - 0.5
        cv2.fillConvexPoly(inside, np.rint(inner * 16).astype(np.int32), (1,), shift=4)
    (left, top), (right, bottom) = _EDGE * ~is_common.any(axis=0)
    inside[:top] = inside[size[1] - bottom :] = 0
    inside[:, :left] = inside[:, size[0] - right :] = 0
    return inside > 0


def _smooth(values: Pixels | Floats, deviation: float) -> Floats:
    kernel = cv2.getGaussianKernel(2 * int(np.ceil(2.5 * deviation)) + 1, deviation, cv2.CV_32F)
    # Beyond its edge a picture goes on as at the edge, as programs that blur pictures have it.
    blurred = cv2.sepFilter2D(values, cv2.CV_32F, kernel, kernel, borderType=cv2.BORDER_REPLICATE)
    return np.asarray(blurred, np.float32)


def _tones(luma: Floats, inside: Mask) -> NDArray[np.float32]:
    """Return the mean and the standard deviation."""
    return np.ravel(cv2.meanStdDev(luma, mask=inside.view(np.uint8))).astype(np.float32)


def _slope(luma: Floats, axis: int) -> Floats:
    """Levels per pixel along x (0) or y (1), samples."""
    return sampled(np.asarray(cv2.Sobel(luma, cv2.CV_32F, 1 - axis, axis, scale=1 / 8), np.float32))


def _chroma(picture: Pixels) -> list[Floats]:
    """Cb and Cr, samples."""
    height, width = (side // STEP * STEP // 2 for side in picture.shape[:2])
    small = cv2.resize(picture[: 2 * height, : 2 * width], (width, height), interpolation=cv2.INTER_AREA)
    return [plane.astype(np.float32) for plane in cv2.split(cv2.cvtColor(small, cv2.COLOR_RGB2YCrCb))[1:]]


def _grain(lumas: list[Pixels], smooth: list[Floats], windows: Windows) -> float:
    """Tell two exposures of a scene in which nothing moves from an exposure and its copy."""
    one, other = (sampled(luma) - sampled(base) for luma, base in zip(lumas, smooth, strict=True))
    energy, other_energy, product = windows.means(one * one, other * other, one * other)
    least, most = np.minimum(energy, other_energy), np.maximum(energy, other_energy)
    independent = (
        (least > _LEAST_GRAIN) & (least > 0.6 * most) & (product < 0.3 * np.sqrt(np.maximum(energy * other_energy, 0)))
    )
    return float(independent[windows.valid].mean()) if windows.valid.any() else 0.0


def _match_detail(fixed: Floats, moved: Floats, inside: Mask) -> tuple[Floats, Floats, float]:
    """Blur the sharper picture until both have the same detail."""
    mask = inside.view(np.uint8)

    def detail(luma: Floats) -> float:
        return cv2.norm(cv2.Laplacian(luma, cv2.CV_32F), cv2.NORM_L1, mask)

    details = detail(fixed), detail(moved)
    fixed_is_sharper = details[0] > details[1]
    sharper, goal = (fixed, details[1]) if fixed_is_sharper else (moved, details[0])
    blur, blurred = 0.0, sharper
    if max(details) > _SHARPER * goal:
        tried = [0.0, *_BLURS]
        reached = [max(details)]
        while reached[-1] > goal and len(reached) < len(tried):
            reached.append(detail(_smooth(sharper, tried[len(reached)])))
        about = float(np.interp(goal, reached[:-3:-1], tried[: len(reached)][:-3:-1]))
        softer = moved if fixed_is_sharper else fixed
        errors = {}
        for blur in about * np.linspace(0.8, 1.2, 5):
            errors[blur] = cv2.norm(_smooth(sharper, blur), softer, cv2.NORM_L2SQR, mask)
        blur = float(min(errors, key=errors.__getitem__))
        blurred = _smooth(sharper, blur)
    return (blurred, moved, -blur) if fixed_is_sharper else (fixed, blurred, blur)


def _explained(squared: Floats, slope: Floats, valid: Mask) -> tuple[float, Floats]:
    """Estimate from the typical windows what noise explains: return it for plain windows and for each window."""
    # Of every second row and column, because windows overlap.
    differences, slopes = (values[::2, ::2][valid[::2, ::2]] for values in (squared, slope))
    edges = np.linspace(0, len(slopes), 9).astype(int)
    by_slope = np.argpartition(slopes, edges[1:-1]) if len(slopes) > 8 else np.argsort(slopes)
    bins = np.split(by_slope, edges[1:-1])
    typical = np.array([np.median(differences[rows]) for rows in bins if len(rows)])
    steepness = np.array([slopes[rows].mean() for rows in bins if len(rows)])
    noise = float(typical[:2].mean())
    jitter = float(np.median(np.maximum(typical - noise, 0)[3:] / np.maximum(steepness[3:], 0.5)))
    # 1: rounding to whole levels, and what the JPEGs of the small pictures add.
    return noise, noise + min(jitter, _MOST_JITTER + _JITTER_BY_NOISE * noise) * slope + 1

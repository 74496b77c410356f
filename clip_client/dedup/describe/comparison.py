"""Compares two pictures that lie on each other: what changed as a whole, and where something else shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.describe.geometry import Affine, laid_on_grid
from clip_client.dedup.types import Floats, Mask, Pixels

_SMOOTHING: Final = 1.0
"""Pixels, standard deviation: hides how encoders and resizing differ in the finest detail."""
STEP: Final = 2
"""Pixels between the samples that are compared: pictures are smoothed first, so that those between say nothing new."""
_WINDOW: Final = 9
"""Samples, side of the windows that are correlated."""
_SPOT: Final = 5
"""Samples, side of the windows in which a difference is averaged."""
_TEXTURE: Final = 16.0
"""Squared levels: a window with less variance has no structure to compare."""
_LEAST_TEXTURED: Final = 0.03
"""Share of the overlap: what agrees must have structure."""
_AGREES: Final = 0.6
"""Least correlation of a window that shows the same."""
_LEAST_OVERLAP: Final = 0.02
_CELL: Final = 16
"""Pixels, side of the squares whose mean colours are compared."""
_EVERY: Final = 4
"""Curves use one row and one column of so many."""
_SAME_LEVELS: Final = 1.5
"""Levels, root mean square, by which encoders and resizing change brightness and colours."""
_NEAR_LIMIT: Final = 20
"""Levels by which a curve may be off there."""
_KNOTS: Final = (0, 64, 128, 192)
"""Levels at which the pieces of a curve begin. Beyond the levels that occur, a curve continues straight."""
_GREY_LEVELS: Final = 0.7
"""Levels, root mean square, below which the chroma of a picture is that of a grey one. Encoders add none."""
_USUAL: Final = 0.9
"""Share of the squares, without those that change most, that tell whether the picture changed as a whole."""
_CLIPPED: Final = (5.0, 250.0)
"""Levels beyond which a change of brightness may have cut a colour off."""
_SHARPER: Final = 1.25
"""Least ratio of the detail of two pictures at which one counts as blurred."""
_BLURS: Final = (0.6, 0.8, 1.0, 1.3, 1.7, 2.2, 2.8)
"""Pixels, standard deviation, tried on the sharper picture."""
_LEAST_BLUR: Final = 0.8
"""Pixels: strong compression blurs by less."""
_MOST_EXCESS: Final = (2.0, 8.0)
"""Times the difference that noise explains: of pictures as they are, and of those whose tones or sharpness were made
equal, which is a little inexact. Measured: 1.5 at most on copies, and from 2 on for a changed digit of a page."""
_MOST_JITTER: Final = 0.35
"""Share of the height of an edge; resizing and interpolation move edges by less."""
_MOST_TINGE: Final = 6.0
"""Levels of chroma, besides noise. JPEG of quality 30 reaches 5."""


class Tones(NamedTuple):
    """Brightness, contrast and colour of one picture in the overlap, levels: mean and deviation of luma; chroma."""

    brightness: float
    contrast: float
    colour: float

    @property
    def is_grey(self) -> bool:
        return self.colour < _GREY_LEVELS


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Differences between a picture, called the grid, and another that was laid on it. In a pair, the grid is first."""

    differs: Mask
    """Samples, every :data:`STEP` pixels: one picture shows what the other does not, once both have the same tones."""
    residual: float
    """1 minus the 10th percentile of the local correlation where there is texture; 1 if there is nearly none."""
    agreeing_share: float
    """Share of what has texture that shows the same."""
    tones: tuple[Tones, Tones]
    is_toned: bool
    """Brightness or colours differ by more than encoders and resizing explain."""
    cut_off: tuple[float, float]
    """Share of the overlap in which a channel of each picture is cut off and that of the other is not."""
    blur: float
    """Pixels, deviation: above 0 if the laid picture was sharper, below if the grid was; 0 if encoders explain it."""


def compare(grid: Pixels, source: Pixels, to_grid: Affine) -> Comparison | None:
    """Lay ``source`` on ``grid``, both RGB (h, w, 3), and compare them; None if they hardly overlap."""
    laid, inside = laid_on_grid(source, to_grid, (grid.shape[1], grid.shape[0]))
    if np.count_nonzero(inside) < _LEAST_OVERLAP * inside.size:
        return None
    cells = [_cells(picture, inside) for picture in (grid, laid)]
    tones = [
        Tones(float(one[:, 0].mean()), float(one[:, 0].std()), float(np.sqrt((one[:, 1:] ** 2).sum(axis=1).mean())))
        for one in map(_luma_and_chroma, cells)
    ]
    pair, cut_off = _same_tones([grid, laid], cells, inside)
    lumas = [_smooth(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), _SMOOTHING) for picture in pair]
    one, other, blur = _same_detail(lumas[0], lumas[1], inside)
    is_toned = pair[0] is not grid or pair[1] is not laid
    around = np.ones((3, 3), np.uint8)
    slope = np.minimum(*(cv2.dilate(luma, around) - cv2.erode(luma, around) for luma in (one, other)))
    one, other, slope, inside = (np.ascontiguousarray(values[::STEP, ::STEP]) for values in (one, other, slope, inside))
    mean, other_mean, square, other_square, product = _means(inside, one, other, one**2, other**2, one * other)
    variance, other_variance = np.maximum(square - mean**2, 0), np.maximum(other_square - other_mean**2, 0)
    correlation = (product - mean * other_mean) / np.sqrt(np.maximum(variance * other_variance, 1))
    chroma = [
        cv2.cvtColor(cv2.GaussianBlur(picture, (0, 0), _SMOOTHING + max(0.0, by))[::STEP, ::STEP], cv2.COLOR_RGB2YCrCb)
        for picture, by in zip(pair, (-blur, blur), strict=True)
    ]
    tinted = (chroma[0].astype(np.float32) - chroma[1])[..., 1:]
    tinge = np.hypot(*_means(inside, *tinted.transpose(2, 0, 1)))
    differs = _differs(np.abs(one - other), slope, tinge, inside, is_edited=is_toned or bool(blur))
    textured = inside & (np.maximum(variance, other_variance) > _TEXTURE)
    known = correlation[textured]
    return Comparison(
        differs=differs,
        residual=1 - float(np.percentile(known, 10)) if textured.sum() >= _LEAST_TEXTURED * inside.sum() else 1.0,
        agreeing_share=float(((known > _AGREES) & ~differs[textured]).mean()) if len(known) else 0.0,
        tones=(tones[0], tones[1]),
        is_toned=is_toned,
        cut_off=cut_off,
        blur=blur if abs(blur) > _LEAST_BLUR else 0.0,
    )


def _differs(error: Floats, slope: Floats, tinge: Floats, inside: Mask, *, is_edited: bool) -> Mask:
    # Encoders and filters change what is plain by some noise, and edges by a share of their height.
    known, slopes = error[inside], slope[inside]
    flat, steep = np.percentile(slopes, (25, 75))
    noise = float(np.median(known[slopes <= flat]))
    jitter = float(np.median((np.maximum(known - noise, 0) / np.maximum(slopes, 1))[slopes >= steep]))
    error, slope = _means(inside, error, slope, side=_SPOT)
    explained = noise + min(jitter, _MOST_JITTER) * slope + 1  # 1: rounding
    differs = inside & ((error > _MOST_EXCESS[is_edited] * explained) | (tinge > _MOST_TINGE + 2 * noise))
    # What is narrower than five pixels is the edge of a JPEG's block, or of the overlap.
    return cv2.morphologyEx(differs.view(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8)) > 0


def _same_tones(pair: list[Pixels], cells: list[Floats], inside: Mask) -> tuple[list[Pixels], tuple[float, float]]:
    """Give one picture the other's colours if they differ as a whole; also return ``cut_off``."""
    if np.sqrt(((cells[0] - cells[1]) ** 2).mean(axis=0)).max() < _SAME_LEVELS / 2:
        return pair, (0.0, 0.0)
    change = _luma_and_chroma(_terms(cells[0]) @ _fit(*cells)) - _luma_and_chroma(cells[0])
    usual = change[np.argsort(np.abs(change).max(axis=1))[: max(1, round(_USUAL * len(change)))]]
    if np.sqrt((usual**2).mean(axis=0)).max() < _SAME_LEVELS:
        return pair, (0.0, 0.0)
    # Only from colour to grey, and from all levels to fewer, does one rule hold for every pixel.
    cut_off = _cut_off(pair[0], pair[1], inside), _cut_off(pair[1], pair[0], inside)
    greys = [_luma_and_chroma(colours)[:, 1:].std() < _GREY_LEVELS for colours in cells]
    source = int((greys[0], cut_off[0]) > (greys[1], cut_off[1]))
    # Fit pixels rather than cells, because a curve of means is not the mean of a curve.
    some = [picture[::_EVERY, ::_EVERY][inside[::_EVERY, ::_EVERY]].astype(np.float32) for picture in pair]
    goal = pair[1 - source]
    changed = (_terms(pair[source].reshape(-1, 3)) @ _fit(some[source], some[1 - source])).reshape(goal.shape)
    # Nothing tells how a curve continues where the other picture is cut off.
    near = (np.abs(changed - goal) < _NEAR_LIMIT) & ((goal <= 1) | (goal >= 254))
    toned = np.where(near, goal, np.rint(np.clip(changed, 0, 255)).astype(np.uint8))
    return [goal, toned] if source else [toned, goal], cut_off


def _cells(picture: Pixels, inside: Mask) -> Floats:
    rows, columns = (side // _CELL for side in inside.shape)
    whole = np.s_[: rows * _CELL, : columns * _CELL]
    small = cv2.resize(picture[whole], (columns, rows), interpolation=cv2.INTER_AREA)
    full = cv2.resize(inside[whole] * np.uint8(255), (columns, rows), interpolation=cv2.INTER_AREA) == 255
    return small[full].astype(np.float32) if full.any() else small.reshape(-1, 3).astype(np.float32)


def _terms(colours: NDArray[np.generic]) -> Floats:
    """Return (N, 13): the terms of a mix of (N, 3) colours after a curve of straight pieces for each channel."""
    values = colours.astype(np.float32)
    return np.column_stack([np.ones(len(values), np.float32), *(np.maximum(values - knot, 0) for knot in _KNOTS)]) / 255


def _fit(known: Floats, goals: Floats) -> Floats:
    """Fit ``goals`` (N, 3) by the terms of ``known``; what is far off, such as a local edit, counts little."""
    terms, found = _terms(known), []
    for goal in goals.T[..., None]:
        usable = ((goal > _CLIPPED[0]) & (goal < _CLIPPED[1])).astype(np.float32)
        weights = usable = usable if usable.mean() > 0.25 else np.ones_like(goal)
        for _ in range(4):
            weighted = (terms * weights).astype(np.float64)
            damped = weighted.T @ terms + 1e-9 * len(terms) * np.eye(terms.shape[1])
            # By OpenCV, because NumPy starts threads for it.
            solution = np.asarray(cv2.solve(damped, weighted.T @ goal)[1], np.float32)
            error = np.abs(terms @ solution - goal)
            weights = usable / (1 + (error / (2 * np.median(error) + 1)) ** 2) ** 2
        found.append(solution)
    return np.hstack(found)


def _cut_off(picture: Pixels, other: Pixels, inside: Mask) -> float:
    at_limit = ((picture <= 1) & (other > 40)) | ((picture >= 254) & (other < 215))
    return float(at_limit.any(axis=2)[inside].mean())


def _luma_and_chroma(colours: Floats) -> Floats:
    """(N, 3): Y, and Cb and Cr around 0, as JPEG defines them."""
    matrix = [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]
    return colours @ np.array(matrix, np.float32).T


def _same_detail(one: Floats, other: Floats, inside: Mask) -> tuple[Floats, Floats, float]:
    mask = inside.view(np.uint8)
    detail, other_detail = (cv2.norm(cv2.Laplacian(luma, cv2.CV_32F), cv2.NORM_L1, mask) for luma in (one, other))
    if max(detail, other_detail) <= _SHARPER * min(detail, other_detail):
        return one, other, 0.0
    sharper, softer = (one, other) if detail > other_detail else (other, one)
    blur = min(_BLURS, key=lambda blur: cv2.norm(_smooth(sharper, blur), softer, cv2.NORM_L2SQR, mask))
    blurred = _smooth(sharper, blur)
    return (blurred, other, -blur) if detail > other_detail else (one, blurred, blur)


def _smooth(luma: cv2.typing.MatLike, deviation: float) -> Floats:
    blurred = cv2.GaussianBlur(luma.astype(np.float32), (0, 0), deviation, borderType=cv2.BORDER_REPLICATE)
    return np.asarray(blurred, np.float32)


def _means(inside: Mask, *values: Floats, side: int = _WINDOW) -> list[Floats]:
    """Return the means (h, w) of each of the ``values`` in the square window around each pixel, of what is inside."""
    weights = inside.astype(np.float32)
    cover = np.maximum(cv2.blur(weights, (side, side)), 1e-3)
    return [np.asarray(cv2.blur(one * weights, (side, side)) / cover, np.float32) for one in values]

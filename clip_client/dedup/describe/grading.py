"""Global changes of brightness, contrast and colour between two pictures that lie on each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from clip_client.dedup.types import Floats, Mask, Pixels


_CELL: Final = 16
"""Pixels, side of the squares whose mean colours are compared."""
_SAME_LEVELS: Final = 1.5
"""Levels of 255, root mean square, by which encoders and resizing change brightness and colours."""
_GREY_LEVELS: Final = 0.7
"""Levels, root mean square, below which the chroma of a picture is that of a grey one. Encoders add none."""
_USUAL: Final = 0.9
"""Share of the cells, without the most colourful ones, that tell whether a picture is mostly grey."""
_CLIPPED: Final = (5.0, 250.0)
"""Levels beyond which a change of brightness may have cut a colour off."""
_CUT_OFF: Final = (1, 254)
"""Levels at and beyond which a channel may have been cut off."""
_RANGE: Final = 25.0
"""Levels, from the 5th to the 95th percentile, that the other picture must have there. Encoders leave 10."""
_CURVE_POINTS: Final = 64
_BINS: Final = 16
"""Parts of a level in which the median is found."""
_EVERY: Final = 3
"""Curves use one row and one column of so many."""


@dataclass(frozen=True, kw_only=True)
class Tones:
    """Brightness, contrast and colour of one picture, in the overlap, in levels."""

    brightness: float
    contrast: float
    """Standard deviation of the luma."""
    colour: float
    """Root mean square of the chroma."""
    usual_colour: float
    """Root mean square of the chroma without the tenth of the cells that has the most."""
    clipped: float
    """Share of the cells that reach black or white in one channel."""

    @property
    def is_mostly_grey(self) -> bool:
        """True if at most a small part has colours, such as a date on a grey picture."""
        return self.usual_colour < _GREY_LEVELS

    def lacks_colours_of(self, other: Tones) -> bool:
        """Tell whether only ``other`` has colours, in a small part or as a whole."""
        colours = (self.colour, other.colour), (self.usual_colour, other.usual_colour)
        return any(own < _GREY_LEVELS <= their for own, their in colours)


@dataclass(frozen=True, kw_only=True)
class Grading:
    """Difference of the colours of two pictures as a whole."""

    tones: tuple[Tones, Tones]
    shift: float
    """Root mean square of the change of luma that a straight line explains, levels."""
    tint: float
    """Root mean square of the change of chroma, levels."""

    @property
    def is_none(self) -> bool:
        """True if encoders and resizing explain the difference."""
        return max(self.shift, self.tint) < _SAME_LEVELS

    @property
    def is_from_colour_to_grey(self) -> bool:
        """Whether one picture is grey, and the other has colours."""
        return self.tones[0].is_mostly_grey != self.tones[1].is_mostly_grey


def grading_of(first: Pixels, second: Pixels, inside: Mask) -> Grading:
    """Compare the mean colours of cells; the pictures are RGB (h, w, 3)."""
    cells = [_cells(picture, inside) for picture in (first, second)]
    one, other = (_luma_and_chroma(colours) for colours in cells)
    if np.sqrt(((one - other) ** 2).mean(axis=0)).max() < _SAME_LEVELS / 2:
        shift = tint = 0.0
    else:
        shift, *tints = (_change(one[:, plane], other[:, plane]) for plane in range(3))
        tint = max(tints)
    return Grading(tones=(_tones(cells[0], one), _tones(cells[1], other)), shift=shift, tint=tint)


def cut_off(picture: Pixels, other: Pixels, inside: Mask) -> float:
    """Return the share of the overlap in which a channel of ``picture`` is at its limit, and that of ``other`` varies.

    An edit that makes a picture much brighter, say, leaves white where its original shows clouds.
    """
    seen = inside[::_EVERY, ::_EVERY]
    levels, others = (one[::_EVERY, ::_EVERY][seen] for one in (picture, other))  # (N, 3)
    most = 0.0
    for channel in range(3):
        for is_cut in (levels[:, channel] <= _CUT_OFF[0], levels[:, channel] >= _CUT_OFF[1]):
            there = others[is_cut, channel]
            if len(there) > most * len(levels) and np.diff(np.percentile(there, (5, 95)))[0] > _RANGE:
                most = len(there) / len(levels)
    return most


def regrading(source: Pixels, target: Pixels, inside: Mask, *, is_grey: bool = False) -> Callable[[Pixels], Pixels]:
    """Return what gives ``source`` the colours of ``target``: a rising curve for each channel, or for each of a mix.

    If ``source`` ``is_grey``, a mix could only take away what little colour there is, such as that of a date on it.
    """
    seen = inside[::_EVERY, ::_EVERY]
    levels, goals = (picture[::_EVERY, ::_EVERY][seen][:, None] for picture in (source, target))  # (N, 1, 3)
    mix = np.eye(3, 4) if is_grey else _mix(source, target, inside)
    best, is_mixed, least = np.zeros(0, np.uint8), False, np.inf
    for mixed in (False,) if is_grey else (False, True):
        known = _mixed(levels, mix) if mixed else levels
        # Curves see pixels rather than cells, because a curve of means is not the mean of a curve.
        curves = np.stack([_curve(known[..., channel], goals[..., channel]) for channel in range(3)], axis=2)
        error = cv2.norm(cv2.LUT(known, curves), goals, cv2.NORM_L1)
        if error < least:
            best, is_mixed, least = curves, mixed, error
    return lambda picture: np.asarray(cv2.LUT(_mixed(picture, mix) if is_mixed else picture, best), np.uint8)


def _mix(source: Pixels, target: Pixels, inside: Mask) -> NDArray[np.float64]:
    """Return (3, 4): what mixes the channels, as black and white, saturation and white balance do."""
    colours, goals = _cells(source, inside), _cells(target, inside)
    known = np.column_stack([colours, np.ones(len(colours))])
    usable = ((goals > _CLIPPED[0]) & (goals < _CLIPPED[1])).all(axis=1)
    if np.count_nonzero(usable) < len(usable) // 4:
        usable[:] = True
    return np.ascontiguousarray(_robust_fit(known[usable], goals[usable]).T)


def _mixed(picture: Pixels, mix: NDArray[np.float64]) -> Pixels:
    return np.asarray(cv2.transform(picture, mix), np.uint8)  # rounds, and cuts off at black and white


def _curve(levels: Pixels, goals: Pixels) -> Pixels:
    """Return a rising curve (1, 256) through the typical goal for each level; both are (N, 1)."""
    counts = np.bincount((levels.astype(np.uint16) * 256 + goals).ravel(), minlength=256 * 256)
    pairs = np.flatnonzero(counts)
    level, goal, weight = pairs // 256, pairs % 256, counts[pairs]
    curve = _through(level, goal, weight, len(levels))
    if curve is not None:  # once more without what a local edit changed
        off = np.abs(goal - curve[level])
        up_to = np.bincount((off * _BINS).astype(np.intp), weight).cumsum()
        typical = np.searchsorted(up_to, up_to[-1] / 2) / _BINS  # the median
        curve = _through(level, goal, np.where(off <= 3 * (typical + 1), weight, 0), len(levels))
    rounded = np.arange(256) if curve is None else np.clip(np.rint(curve), 0, 255)
    return rounded.astype(np.uint8)[None]


def _through(
    level: NDArray[np.intp], goal: NDArray[np.intp], weight: NDArray[np.intp], samples: int
) -> NDArray[np.float64] | None:
    """Return a rising curve (256,) through the mean goal for each level; None for a single level."""
    counts, of_levels, of_goals = (
        np.bincount(level * _CURVE_POINTS // 256, weight * values, _CURVE_POINTS) for values in (1, level, goal)
    )
    full = counts > max(10, 0.0005 * samples)
    if np.count_nonzero(full) < 2:
        return None
    at = of_levels[full] / counts[full]
    rising = np.maximum.accumulate(of_goals[full] / counts[full])
    slope = (at - at.mean()) @ rising / np.square(at - at.mean()).sum()
    at = np.r_[at[0] - 256, at, at[-1] + 256]
    rising = np.r_[rising[0] - 256 * slope, rising, rising[-1] + 256 * slope]
    return np.asarray(np.interp(np.arange(256), at, rising))


def _cells(picture: Pixels, inside: Mask) -> Floats:
    """Return the mean colours (N, 3) of the cells that lie inside."""
    rows, columns = (side // _CELL for side in inside.shape)
    whole = np.s_[: rows * _CELL, : columns * _CELL]
    small = cv2.resize(picture[whole], (columns, rows), interpolation=cv2.INTER_AREA)
    if inside.all():
        return small.reshape(-1, 3).astype(np.float32)
    full = cv2.resize(inside[whole].astype(np.uint8) * 255, (columns, rows), interpolation=cv2.INTER_AREA) == 255
    return small[full].astype(np.float32) if full.any() else small.reshape(-1, 3).astype(np.float32)


def _luma_and_chroma(colours: Floats) -> Floats:
    """(N, 3): Y, and Cb and Cr around 0, as JPEG defines them."""
    matrix = [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]
    return colours @ np.array(matrix, np.float32).T


def _tones(colours: Floats, planes: Floats) -> Tones:
    chroma = (planes[:, 1:] ** 2).sum(axis=1)
    usual = max(1, round(_USUAL * len(chroma)))
    return Tones(
        brightness=float(planes[:, 0].mean()),
        contrast=float(planes[:, 0].std()),
        colour=float(np.sqrt(chroma.mean())),
        usual_colour=float(np.sqrt(np.partition(chroma, usual - 1)[:usual].mean())),
        clipped=float(((colours < _CLIPPED[0]) | (colours > _CLIPPED[1])).any(axis=1).mean()),
    )


def _change(one: Floats, other: Floats) -> float:
    known = np.stack([other, np.ones_like(other)], axis=1)
    return float(np.sqrt(np.mean((known @ _robust_fit(known, one[:, None])[:, 0] - other) ** 2)))


def _robust_fit(known: Floats, goals: Floats) -> NDArray[np.float64]:
    """Least squares in which cells far off, such as those of a local edit, count little."""
    weights = np.ones(len(known))
    for _ in range(3):
        weighted = known * weights[:, None]
        damped = weighted.T @ known + 1e-6 * len(known) * np.eye(known.shape[1])
        solution = cv2.solve(damped, weighted.T @ goals)[1]  # without the threads that NumPy starts
        error = np.abs(known @ solution - goals).max(axis=1)
        weights = 1 / (1 + (error / (2 * np.median(error) + 1)) ** 2) ** 2
    return np.asarray(solution)

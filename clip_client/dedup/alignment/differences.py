"""Finds at full size where two photos differ: small pictures hide a digit or a face in a crowd.

The kept photo is laid on the duplicate. What compression and resizing change hits equally busy places of a picture
alike, so the pair itself says what is normal: a changed digit is an outlier among the other digits of its page.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import cv2
import numpy as np

from clip_client.dedup.alignment.grading import Grading, grading_of, regrading
from clip_client.dedup.alignment.overlay import Box

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from clip_client.dedup.alignment.overlay import Overlay
    from clip_client.dedup.types import Floats, Mask, Pixels

    Map = Callable[[Callable[[Box], "_Tile"], Iterable[Box]], Iterable["_Tile"]]
    Region = tuple[tuple[float, float, float, float], float]
    """Left, top, width and height of the box around what differs, and its area without the gaps, as shares of the kept
    photo."""

_MARGIN: Final = 64
"""Pixels around a tile that smoothing looks at, at an eighth of the size."""
_MOST: Final = (7.0, 4.5, 2.8, 2.2)
"""Times what is normal for places as busy, at full size, a half, a quarter and an eighth. Measured on 15 photos and 16
pages and their copies (JPEG of quality 25 and better, WebP of 60, half and third size): up to 2.8, 2.8, 2.1 and 1.4 for
photos, and 11.6, 2.9, 1.2 and 0.7 for pages; a page of quality 25 may be refused. One changed digit: at least 18 at
quality 10, 59 at quality 25, 10 at half size. A spot of 20 x 20 pixels that differs by 24 levels: at least 12, 38 and
11."""
_MOST_COLOUR: Final = 6.0
"""Times what is normal for chroma, which encoders treat more roughly: copies of photographed pages reach 3.3."""
_BINS: Final = 12
"""Of equal numbers of places, by how busy they are."""
_NORMAL: Final = 0.98
"""Quantile of the differences in a bin that is normal."""
_TYPICAL: Final = (0.75, 2.5)
"""A quantile, and how many times it is normal at most: on a page in which twenty digits differ, they are no outliers
among the busiest places."""
_MOST_GAIN: Final = 0.02
"""By how much encoders and resizing may change the strength of colours. Measured: 0.012 for JPEG of quality 15 and
better, WebP of 60 and half the size."""
_LEAST_VARIATION: Final = 25.0
"""Squared levels of a chroma, to measure that."""
_LEAST: Final = 4.0
"""Squared levels that are normal anywhere."""
_CUT: Final = (1, 254)
"""Levels at and beyond which a channel may have been cut off,"""
_CUT_OFF: Final = 32
"""and levels by which the kept photo may differ there."""
_FEWEST: Final = 1200
"""Places: with fewer, the quantiles say little."""
_SHARPER: Final = 0.3
"""Share of the duplicate's fine detail below which the kept photo lacks it in a place."""
_DETAIL: Final = 25.0
"""Squared levels of the finest detail: encoders make fainter grain stronger, up to three times."""
_CELL: Final = 32
"""Pixels, side of a place in which detail is measured."""
_FEWEST_SHARPER: Final = (4, 0.03)
"""Places, and share of those with detail, in which the duplicate is sharper: as the other half of a focus stack."""


class _Tile(NamedTuple):
    """How the two photos differ in one tile."""

    levels: list[tuple[Floats, Floats]]
    """For each of :data:`_LEVELS`: largest squared difference of each place, and mean squared slope that both have."""
    lacks: Mask
    """(rows, columns): places in which only the duplicate has fine detail."""
    detailed: int
    """Places with fine detail."""


class Differences:
    """Where two photos that lie on each other differ."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay
        sampled = [(overlay.laid(box)[0], overlay.part(box)) for box in overlay.samples]
        moved, fixed = (np.concatenate(parts) for parts in zip(*sampled, strict=True))
        everywhere = np.ones(moved.shape[:2], np.bool_)
        self.grading: Grading = grading_of(fixed, moved, everywhere)
        """Of the duplicate, and of the kept photo."""
        self._tones: Callable[[Pixels], Pixels] = lambda picture: picture
        if not self.grading.is_none:
            is_grey = self.grading.tones[1].is_mostly_grey
            self._tones = regrading(moved, fixed, everywhere, is_grey=is_grey)
        planes = [(_planes(self._tones(one)), _planes(other)) for one, other in sampled]
        self._chromas = [
            tuple(np.concatenate([pair[side][plane] for pair in planes]) for side in range(2)) for plane in (1, 2)
        ]
        self._filters = [_sharpness_of([(one[plane], other[plane]) for one, other in planes]) for plane in range(3)]

    @property
    def has_other_colours(self) -> bool:
        """True if the colours of one photo are weaker than encoders explain, although by less than 1.5 levels."""
        gains = [_gain(moved, fixed) for moved, fixed in self._chromas]
        return any(gain is not None and abs(gain - 1) > _MOST_GAIN for gain in gains)

    @property
    def lacks_fine_colours(self) -> bool:
        """True if in some places only the duplicate has fine colours, as if the kept photo stores them at half size."""
        tiles = ((self.laid(box), self.overlay.part(box)) for box in self.overlay.tiles())
        found = [_lacks(*planes) for pair in tiles for planes in zip(*map(_colours, pair), strict=True)]
        return _is_sharper(found)

    def outliers(self, each: Map = map) -> Region | None:
        """Return what compression and resizing do not explain; None if they explain all. ``each`` maps over tiles."""
        boxes = list(self.overlay.tiles())
        compared = list(each(self._compare, boxes))
        limits = [
            _expected(*(np.concatenate([values.ravel() for values in part]) for part in zip(*level, strict=True)))
            for level in zip(*(tile.levels for tile in compared), strict=True)
        ]
        is_sharper = _is_sharper([(tile.lacks, tile.detailed) for tile in compared])
        places: list[Box] = []
        for box, tile in zip(boxes, compared, strict=True):
            for (plane, level), limit, (difference, busyness) in zip(_LEVELS, limits, tile.levels, strict=True):
                if limit is not None:
                    most = _MOST_COLOUR if plane else _MOST[level]
                    places += _boxes(difference > most * limit(busyness), 4 << level, box)
            if is_sharper:
                places += _boxes(tile.lacks, _CELL, box)
        return self._around(places)

    def differing_pixels(self) -> Region | None:
        """Return the box around all pixels that differ at all; None if none does. Both photos have the same size."""
        places = []
        for box in self.overlay.tiles():
            places += _boxes((self.overlay.laid(box)[0] != self.overlay.part(box)).any(axis=2), 1, box)
        return self._around(places)

    def laid(self, box: Box) -> Pixels:
        """Return the kept photo in ``box`` with the tones of the duplicate, RGB (h, w, 3)."""
        return self._tones(self.overlay.laid(box)[0])

    def _around(self, places: list[Box]) -> Region | None:
        if not places:
            return None
        ends = np.array(places)
        around = Box(*ends[:, :2].min(axis=0).tolist(), *ends[:, 2:].max(axis=0).tolist())
        height, width = self.overlay.duplicate.shape[:2]
        covered = np.zeros((-(-height // 16), -(-width // 16)), np.bool_)
        for left, top, right, bottom in places:
            covered[top // 16 : -(-bottom // 16), left // 16 : -(-right // 16)] = True
        area = int(covered.sum()) * 256 * self.overlay.scale**2
        return self.overlay.to_kept_shares(around), min(1.0, area / math.prod(self.overlay.kept_size))

    def _compare(self, box: Box) -> _Tile:
        inside = self.overlay.inside()
        wide = Box(
            *np.maximum(inside[:2], np.subtract(box[:2], _MARGIN)).tolist(),
            *np.minimum(inside[2:], np.add(box[2:], _MARGIN)).tolist(),
        )
        own, (moved, covered) = self.overlay.part(wide), self.overlay.laid(wide)
        moved = self._tones(moved)
        unseen = np.zeros(own.shape[:2], np.bool_) if covered is None else ~covered
        if not self.grading.is_none:  # no curve gives back what was cut off
            is_cut = ((own <= _CUT[0]) | (own >= _CUT[1])).any(axis=2)
            unseen |= is_cut & (cv2.absdiff(own, moved).max(axis=2) < _CUT_OFF)
        if unseen.any():
            moved = np.where(unseen[..., None], own, moved)
        planes = list(zip(_planes(moved), _planes(own), strict=True))
        luma, *chromas = [
            (_filtered(one, weights), other) for (one, other), weights in zip(planes, self._filters, strict=True)
        ]
        pyramids = [[luma], *([chroma, chroma] for chroma in chromas)]  # chroma comes at half size
        for pyramid in pyramids:
            while len(pyramid) < 4:
                pyramid.append((_halved(pyramid[-1][0]), _halved(pyramid[-1][1])))
        across, down = box.left - wide.left, box.top - wide.top
        width, height = box.size
        levels = []
        for plane, level in _LEVELS:
            left, top = across >> level, down >> level
            core = np.s_[top : top + (height >> level), left : left + (width >> level)]
            difference, busy = _difference(*pyramids[plane][level])
            levels.append((_pooled(difference[core], np.max), _pooled(busy[core], np.mean)))
        core = np.s_[down : down + height, across : across + width]
        return _Tile(levels, *_lacks(*(one[core] for one in planes[0])))


_LEVELS: Final = ((0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1), (2, 2))
"""Plane (luma, then chroma), and how many times it was halved."""


def _planes(picture: Pixels) -> list[Floats]:
    """Return the luma, and both chromas at half size."""
    luma = cv2.cvtColor(picture, cv2.COLOR_RGB2YCrCb)[..., 0]
    return [np.asarray(luma, np.float32), *map(_halved, _colours(picture))]


def _colours(picture: Pixels) -> list[Floats]:
    """Return both chromas at full size."""
    return [np.asarray(one, np.float32) for one in cv2.split(cv2.cvtColor(picture, cv2.COLOR_RGB2YCrCb))[1:]]


def _halved(plane: Floats) -> Floats:
    height, width = (max(1, side // 2) for side in plane.shape)
    even = plane[: 2 * height, : 2 * width]
    return np.asarray(cv2.resize(even, (width, height), interpolation=cv2.INTER_AREA), np.float32)


def _blurred(plane: Floats, deviation: float) -> Floats:
    return np.asarray(cv2.GaussianBlur(plane, (0, 0), deviation), np.float32)


def _sharpness_of(pairs: list[tuple[Floats, Floats]]) -> NDArray[np.float64]:
    """Return the weights (4,) of a plane, of two blurs of it and of 1 that make it like the other one."""
    left, right = np.zeros((4, 4)), np.zeros(4)
    for one, other in pairs:
        rows = np.stack([part.ravel()[::7] for part in _blurs(one)]).astype(np.float64)
        left += rows @ rows.T
        right += rows @ other.ravel()[::7]
    return np.asarray(np.linalg.solve(left + 1e-3 * np.diag([1, 1, 1, 0.001]) * left.max() * 1e-3, right))


def _blurs(plane: Floats) -> list[Floats]:
    return [plane, _blurred(plane, 0.8), _blurred(plane, 2.0), np.ones_like(plane)]


def _filtered(plane: Floats, weights: NDArray[np.float64]) -> Floats:
    own, near, far, constant = weights.astype(np.float32)
    return np.asarray(own * plane + near * _blurred(plane, 0.8) + far * _blurred(plane, 2.0) + constant, np.float32)


def _gain(one: Floats, other: Floats) -> float | None:
    """Return how many times the variation of ``one`` the other has, without fine detail; None if it has too little."""
    smooth, goal = (_blurred(plane, 4) for plane in (one, other))
    smooth, goal = smooth - smooth.mean(), goal - goal.mean()
    energy = float(np.square(smooth).mean())
    return float((smooth * goal).mean()) / energy if energy > _LEAST_VARIATION else None


def _difference(one: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Return the mean squared difference around each pixel, and how busy both pictures are there."""
    one, other = _blurred(one, 0.7), _blurred(other, 0.7)
    slopes = [
        np.square(cv2.Sobel(plane, cv2.CV_32F, 1, 0, scale=1 / 8))
        + np.square(cv2.Sobel(plane, cv2.CV_32F, 0, 1, scale=1 / 8))
        for plane in (one, other)
    ]
    return _blurred(np.square(one - other), 2), _blurred(np.minimum(slopes[0], slopes[1]).astype(np.float32), 2)


def _pooled(values: Floats, how: Callable[..., Floats]) -> Floats:
    """Return a value for each place of 4 x 4 pixels."""
    height, width = (side // 4 for side in values.shape)
    return np.asarray(how(values[: 4 * height, : 4 * width].reshape(height, 4, width, 4), axis=(1, 3)), np.float32)


def _expected(difference: Floats, busyness: Floats) -> Callable[[Floats], Floats] | None:
    """Return what difference is normal in a place as busy as given; None if there are too few places."""
    if len(difference) < _FEWEST:
        return None
    quantile, times = _TYPICAL
    bins = np.array_split(np.argsort(busyness), _BINS)
    normal = [
        min(np.quantile(difference[rows], _NORMAL), times * np.quantile(difference[rows], quantile)) for rows in bins
    ]
    at = np.array([busyness[rows].mean() for rows in bins])
    rising = np.maximum.accumulate(normal) + _LEAST
    return lambda busy: np.asarray(np.interp(busy, at, rising), np.float32)


def _lacks(kept: Floats, duplicate: Floats) -> tuple[Mask, int]:
    """Return the places in which only the duplicate has fine detail, and the number of those with such detail."""
    height, width = (max(1, side // _CELL) for side in kept.shape)
    energies = [
        cv2.resize((luma - _blurred(luma, 1)) ** 2, (width, height), interpolation=cv2.INTER_AREA)
        for luma in (kept, duplicate)
    ]
    lacks = (energies[1] > _DETAIL) & (energies[0] < _SHARPER * energies[1])
    return lacks, int((np.maximum(*energies) > _DETAIL).sum())


def _is_sharper(found: list[tuple[Mask, int]]) -> bool:
    """Tell from the answers of :func:`_lacks` whether the duplicate is sharper."""
    fewest, share = _FEWEST_SHARPER
    return sum(int(lacks.sum()) for lacks, _ in found) >= max(fewest, share * sum(detailed for _, detailed in found))


def _boxes(places: Mask, side: int, within: Box) -> list[Box]:
    """Return the boxes of places of ``side`` pixels of a tile."""
    rows, columns = np.nonzero(places)
    return [
        Box(
            within.left + x * side, within.top + y * side,
            min(within.left + (x + 1) * side, within.right), min(within.top + (y + 1) * side, within.bottom),
        )
        for y, x in zip(rows.tolist(), columns.tolist(), strict=True)
    ]  # fmt: skip

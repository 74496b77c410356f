"""Finds at full size where two photos differ: small pictures hide a digit or a face in a crowd.

The kept photo is laid on the duplicate. What compression and resizing change hits equally busy places of a picture
alike, so the pair itself says what is normal: a changed digit is an outlier among the other digits of its page.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from clip_client.dedup.alignment.grading import Grading, grading_of, regrading
from clip_client.dedup.alignment.overlay import Box

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from clip_client.dedup.alignment.keypoints import Pixels
    from clip_client.dedup.alignment.overlay import Overlay

    Floats = NDArray[np.float32]
    Mask = NDArray[np.bool_]
    Map = Callable[[Callable[[Box], "_Maps"], Iterable[Box]], Iterable["_Maps"]]

TILE: Final = 512
"""Pixels of the duplicate, side of a tile."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Maps:
    """What one tile shows, by level and plane."""

    difference: list[Floats]
    """Largest squared difference of each place."""
    busyness: list[Floats]
    """Mean squared slope of each place that both photos have."""
    lacks: Mask
    """(rows, columns): places in which only the duplicate has fine detail."""
    detailed: int
    """Places with fine detail."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What two photos do not share."""

    region: tuple[float, float, float, float]
    """Left, top, width and height of the box around it, as shares of the kept photo."""
    share: float
    """Of the kept photo, without the gaps."""


class Differences:
    """Where two photos that lie on each other differ."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
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

    def outliers(self, each: Map = map) -> Difference | None:
        """Return what compression and resizing do not explain; None if they explain all. ``each`` maps over tiles."""
        inside = self._overlay.inside()
        boxes = list(tiles(inside))
        maps = list(each(self._compare, boxes))
        limits = [
            _expected(
                np.concatenate([one.difference[number].ravel() for one in maps]),
                np.concatenate([one.busyness[number].ravel() for one in maps]),
            )
            for number in range(len(maps[0].difference))
        ]
        lacking = sum(int(one.lacks.sum()) for one in maps)
        fewest, share = _FEWEST_SHARPER
        lacks = lacking >= max(fewest, share * sum(one.detailed for one in maps))
        places: list[Box] = []
        for box, one in zip(boxes, maps, strict=True):
            for number, (difference, busyness) in enumerate(zip(one.difference, one.busyness, strict=True)):
                limit = limits[number]
                if limit is not None:
                    plane, level = _LEVELS[number]
                    most = _MOST_COLOUR if plane else _MOST[level]
                    places += _boxes(difference > most * limit(busyness), 4 << level, box)
            if lacks:
                places += _boxes(one.lacks, _CELL, box)
        return self._around(places) if places else None

    def differing_pixels(self) -> Difference | None:
        """Return the box around all pixels that differ at all; None if none does. Both photos have the same size."""
        places = []
        for box in tiles(self._overlay.inside()):
            places += _boxes((self._overlay.laid(box)[0] != self._overlay.part(box)).any(axis=2), 1, box)
        return self._around(places) if places else None

    def laid(self, box: Box) -> Pixels:
        """Return the kept photo in ``box`` with the tones of the duplicate, RGB (h, w, 3)."""
        return self._tones(self._overlay.laid(box)[0])

    def _around(self, places: list[Box]) -> Difference:
        ends = np.array(places)
        around = Box(*ends[:, :2].min(axis=0).tolist(), *ends[:, 2:].max(axis=0).tolist())
        covered = np.zeros(
            (-(-self._overlay.duplicate.shape[0] // 16), -(-self._overlay.duplicate.shape[1] // 16)), np.bool_
        )
        for left, top, right, bottom in places:
            covered[top // 16 : -(-bottom // 16), left // 16 : -(-right // 16)] = True
        width, height = self._overlay.kept_size
        area = int(covered.sum()) * 256 * self._overlay.scale**2
        return Difference(region=self._overlay.to_kept_shares(around), share=min(1.0, area / (width * height)))

    def _compare(self, box: Box) -> _Maps:
        inside = self._overlay.inside()
        wide = Box(
            max(inside.left, box.left - _MARGIN), max(inside.top, box.top - _MARGIN),
            min(inside.right, box.right + _MARGIN), min(inside.bottom, box.bottom + _MARGIN),
        )  # fmt: skip
        moved, covered = self._overlay.laid(wide)
        own = self._overlay.part(wide)
        moved = self._tones(moved)
        unseen = np.zeros(own.shape[:2], np.bool_) if covered is None else ~covered
        if not self.grading.is_none:  # no curve gives back what was cut off
            is_cut = ((own <= _CUT[0]) | (own >= _CUT[1])).any(axis=2)
            unseen |= is_cut & (cv2.absdiff(own, moved).max(axis=2) < _CUT_OFF)
        if unseen.any():
            moved = np.where(unseen[..., None], own, moved)
        planes = [
            (_filtered(one, weights), other)
            for one, other, weights in zip(_planes(moved), _planes(own), self._filters, strict=True)
        ]
        levels = _pyramids(planes)
        start = box.left - wide.left, box.top - wide.top
        differences, busyness = [], []
        for plane, level in _LEVELS:
            one, other = levels[plane][level]
            difference, busy = _difference(one, other)
            across, down = (side >> level for side in start)
            width, height = (side >> level for side in box.size)
            core = np.s_[down : down + height, across : across + width]
            differences.append(_pooled(difference[core], np.max))
            busyness.append(_pooled(busy[core], np.mean))
        one, other = (
            _planes(picture)[0][start[1] :, start[0] :][: box.size[1], : box.size[0]] for picture in (moved, own)
        )
        lacks, detailed = _lacks(one, other)
        return _Maps(difference=differences, busyness=busyness, lacks=lacks, detailed=detailed)


_LEVELS: Final = ((0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1), (2, 2))
"""Plane (luma, then chroma), and how many times it was halved."""


def tiles(inside: Box, side: int = TILE) -> Iterator[Box]:
    """Divide a box into tiles of ``side`` pixels, or less at the right and at the bottom."""
    for top, left in product(range(inside.top, inside.bottom, side), range(inside.left, inside.right, side)):
        yield Box(left, top, min(left + side, inside.right), min(top + side, inside.bottom))


def _planes(picture: Pixels) -> list[Floats]:
    """Return the luma, and both chromas at half size."""
    luma, red, blue = cv2.split(cv2.cvtColor(picture, cv2.COLOR_RGB2YCrCb))
    return [np.asarray(luma, np.float32), *(_halved(np.asarray(chroma, np.float32)) for chroma in (red, blue))]


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


def _pyramids(planes: list[tuple[Floats, Floats]]) -> list[list[tuple[Floats, Floats]]]:
    """Return for each plane the two pictures, halved 0 to 3 times; chroma comes at half size."""
    luma, *chromas = planes
    made = [[luma], *([chroma, chroma] for chroma in chromas)]
    for levels in made:
        while len(levels) < 4:
            one, other = levels[-1]
            levels.append((_halved(one), _halved(other)))
    return made


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

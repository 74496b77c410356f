"""Lays one photo on another at full size, tile by tile: small pictures leave the transform off by some pixels."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import cv2
import numpy as np
from PIL import Image

from clip_client.dedup.alignment.geometry import after, between_middles, corners_of, inverse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from clip_client.dedup.aligned import Transform
    from clip_client.dedup.alignment.geometry import Affine
    from clip_client.dedup.types import Floats, Mask, Pixels

TILE: Final = 512
"""Pixels of the duplicate, side of a tile."""
_SAMPLES: Final = 5
"""Samples across and down, of which the transform and all that holds for the whole picture are fitted."""
_SAMPLE_SIDE: Final = 160
"""Pixels of the duplicate."""
_FILTERS: Final = (
    Image.Resampling.BOX, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS,
)  # fmt: skip
"""How programs make pictures smaller, roughly: with the right one, what remains is what an encoder did."""
_SMOOTHINGS: Final = (2.0, 1.0, 1.0)
"""Pixels, standard deviation, of the steps of the refinement: the first one finds shifts of two pixels."""
_FAR: Final = 1.0
"""Pixels of a shift that is found by phase correlation first."""
_EXACT: Final = 0.12
"""Pixels at the corners by which a refined transform may differ from whole pixels that it stands for."""
_LEAST_CORRELATION: Final = 0.5
"""Of a sample that takes part in the refinement."""


class Box(NamedTuple):
    """Pixels of the duplicate."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.right - self.left, self.bottom - self.top


class Overlay:
    """The kept photo on the pixels of the duplicate."""

    def __init__(self, kept: Pixels, duplicate: Pixels, to_kept: Transform) -> None:
        """Both are whole upright pictures, RGB (H, W, 3); ``to_kept`` leads from ``duplicate`` to ``kept``."""
        self.duplicate = duplicate
        affine = np.array(to_kept, np.float64).reshape(2, 3)
        self.is_swapped = abs(affine[0, 0]) + abs(affine[1, 1]) < abs(affine[0, 1]) + abs(affine[1, 0])
        """Rows of one photo are columns of the other."""
        if self.is_swapped:
            kept, affine = kept.transpose(1, 0, 2), affine[::-1].copy()
        flips = []
        for axis in range(2):
            flips.append(bool(affine[axis, axis] < 0))
            if flips[axis]:
                kept = np.flip(kept, 1 - axis)
                affine[axis] *= -1
                affine[axis, 2] += kept.shape[1 - axis]
        self.flips = flips[0], flips[1]
        """Whether the photos are mirrored left to right, and top to bottom, after that."""
        self._kept = np.ascontiguousarray(kept)
        self._image = Image.fromarray(self._kept)
        self._filter = Image.Resampling.BICUBIC
        self._affine = affine
        self.samples = self._choose_samples()
        self._refine()
        self.choose_filter(self._error)

    @property
    def scale(self) -> float:
        """Pixels of the kept photo for each pixel of the duplicate, along a line."""
        return float(np.sqrt(abs(np.linalg.det(self._affine[:, :2]))))

    @property
    def _is_upright(self) -> bool:
        """Rows of one photo are rows of the other."""
        return bool(self._affine[0, 1] == 0 == self._affine[1, 0])

    def choose_filter(self, cost: Callable[[], float]) -> None:
        """Make the kept photo smaller in the way for which ``cost`` is least, if it is resized at all.

        The way with the least difference, which is used until then, is often too soft: compression smooths, too.
        """
        if self._is_upright and self.scale > 1 + 1e-6:
            costs = {}
            for self._filter in _FILTERS:
                costs[self._filter] = cost()
            self._filter = min(_FILTERS, key=costs.__getitem__)

    @property
    def kept_size(self) -> tuple[int, int]:
        """Width and height of the kept photo, turned as the duplicate is."""
        return self._kept.shape[1], self._kept.shape[0]

    @property
    def shift(self) -> tuple[int, int] | None:
        """Pixels from the duplicate's to the kept photo's if both have the same pixels, else None."""
        if not self._is_upright or (self._affine[:, :2] != np.eye(2)).any():
            return None
        across, down = self._affine[:, 2].tolist()
        return (int(across), int(down)) if across.is_integer() and down.is_integer() else None

    @property
    def is_turned(self) -> bool:
        """True if the photos are turned by a right angle, mirrored or rotated against each other."""
        return self.is_swapped or any(self.flips) or not self._is_upright

    @property
    def is_whole(self) -> bool:
        """True if both photos have the same size and lie on each other pixel by pixel."""
        return not self.is_turned and self._kept.shape == self.duplicate.shape and self.shift == (0, 0)

    def inside(self) -> Box:
        """Return the box around what both show."""
        height, width = self.duplicate.shape[:2]
        corners = corners_of(inverse(self._affine), self.kept_size)
        (left, top), (right, bottom) = np.ceil(corners.min(axis=0) - 0.01), np.floor(corners.max(axis=0) + 0.01)
        return Box(max(0, int(left)), max(0, int(top)), min(width, int(right)), min(height, int(bottom)))

    def tiles(self) -> Iterator[Box]:
        """Divide what both show into tiles of :data:`TILE` pixels, or less at the right and at the bottom."""
        left, top, right, bottom = self.inside()
        for at_y, at_x in product(range(top, bottom, TILE), range(left, right, TILE)):
            yield Box(at_x, at_y, min(at_x + TILE, right), min(at_y + TILE, bottom))

    def laid(self, box: Box) -> tuple[Pixels, Mask | None]:
        """Return what the kept photo shows in ``box``, RGB (h, w, 3), and which pixels it covers; None for all."""
        if self._is_upright:
            start, end = self._on_kept(box)
            (left, top), (right, bottom) = np.maximum(start, 0), np.minimum(end, self.kept_size)
            return np.asarray(self._image.resize(box.size, self._filter, (left, top, right, bottom))), None
        width, height = box.size
        part, to_kept = _part(self._kept, _from(box[:2], self._affine), box.size, 4 + 2 * self.scale)
        if not part.size:
            return np.zeros((height, width, 3), np.uint8), np.zeros((height, width), np.bool_)
        exists = np.full(part.shape[:2], 255, np.uint8)
        if self.scale > 1.02:
            part = np.asarray(cv2.GaussianBlur(part, (0, 0), 0.5 * np.sqrt(self.scale**2 - 1)), np.uint8)
        moved = _read(part, to_kept, box.size, cv2.INTER_CUBIC)
        covered = cv2.warpAffine(
            exists, between_middles(to_kept), box.size, flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
        )
        return moved, cv2.erode(covered, np.ones((5, 5))) > 0

    def at_kept_size(self, box: Box, side: int) -> list[Pixels]:
        """Return ``side`` x ``side`` pixels of the kept photo around the middle of ``box``, and the duplicate enlarged
        to that, in three ways: linear, cubic, and by repeating pixels; empty if one does not go as far."""
        left, top = (round(float(at)) - side // 2 for at in self._on_kept(box).mean(axis=0))
        if min(left, top) < 0 or left + side > self._kept.shape[1] or top + side > self._kept.shape[0]:
            return []
        to_duplicate = _from((left, top), inverse(self._affine))
        corners = corners_of(to_duplicate, (side, side))
        if (corners < -1).any() or (corners > np.array(self.duplicate.shape[1::-1]) + 1).any():
            return []
        part, to_duplicate = _part(self.duplicate, to_duplicate, (side, side), 3)
        ways = (cv2.INTER_LINEAR, cv2.INTER_CUBIC, cv2.INTER_NEAREST)
        enlarged = [_read(part, to_duplicate, (side, side), way) for way in ways]
        return [self._kept[top : top + side, left : left + side], *enlarged]

    def to_kept_shares(self, box: Box) -> tuple[float, float, float, float]:
        """Return left, top, width and height of a box as shares of the upright kept photo."""
        shares = np.clip(self._on_kept(box) / self.kept_size, 0, 1)
        shares = np.where(self.flips, 1 - shares, shares)
        if self.is_swapped:
            shares = shares[:, ::-1]
        (left, top), (right, bottom) = shares.min(axis=0).tolist(), shares.max(axis=0).tolist()
        return left, top, right - left, bottom - top

    def part(self, box: Box) -> Pixels:
        """Return what the duplicate shows in ``box``, RGB (h, w, 3)."""
        return self.duplicate[box.top : box.bottom, box.left : box.right]

    def _on_kept(self, box: Box) -> NDArray[np.float64]:
        """Return where the first and the last corner (2, 2) of a box lie on the kept photo."""
        return np.asarray(np.reshape(box, (2, 2)) @ self._affine[:, :2].T + self._affine[:, 2], np.float64)

    def _choose_samples(self) -> list[Box]:
        """Return the place with the most texture in each part of what both show."""
        left, top, right, bottom = self.inside()
        luma = cv2.cvtColor(self.duplicate, cv2.COLOR_RGB2GRAY)[top:bottom, left:right]
        side = min(_SAMPLE_SIDE, right - left, bottom - top)
        small = cv2.resize(luma, None, fx=0.25, fy=0.25, interpolation=cv2.INTER_AREA).astype(np.float32)
        fine = (small - cv2.GaussianBlur(small, (0, 0), 2)) ** 2
        texture = cv2.blur(fine, (max(1, side // 4), max(1, side // 4)))
        samples = []
        for rows in np.array_split(np.arange(len(texture)), _SAMPLES):
            for columns in np.array_split(np.arange(texture.shape[1]), _SAMPLES):
                if not len(rows) or not len(columns):
                    continue
                part = texture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
                y, x = np.unravel_index(int(part.argmax()), part.shape)
                at_x = left + int(np.clip((columns[0] + x) * 4 - side // 2, 0, right - left - side))
                at_y = top + int(np.clip((rows[0] + y) * 4 - side // 2, 0, bottom - top - side))
                samples.append(Box(at_x, at_y, at_x + side, at_y + side))
        return list(dict.fromkeys(samples))

    def _lumas(self, box: Box) -> tuple[Floats, Floats, Mask | None]:
        moved, covered = self.laid(box)
        one, other = (
            cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32) for picture in (moved, self.part(box))
        )
        return one, other, covered

    def _error(self) -> float:
        return sum(float(cv2.norm(one, other, cv2.NORM_L2SQR)) for one, other, _ in map(self._lumas, self.samples))

    def _refine(self) -> None:
        """Improve the transform, and see whether whole pixels or an upright scale explain it."""
        first = self._affine
        if self._is_upright:  # the whole of one on the whole of the other
            self._move(self._step(_SMOOTHINGS[-1]))
            is_exact = self._off(first) < _EXACT
            self._affine = first
            if is_exact:
                return
        before = self._error()
        shifts = [_shift(*self._lumas(box)[:2]) for box in self.samples]
        found = np.array([shift for shift in shifts if shift is not None])
        if len(found) and np.hypot(*np.median(found, axis=0)) > _FAR:
            self._move(np.column_stack([np.zeros((2, 2)), np.median(found, axis=0)]))
        for smoothing in _SMOOTHINGS:
            self._move(self._step(smoothing))
        refined = self._affine
        whole = np.column_stack([np.eye(2), np.rint(refined[:, 2])])
        upright = np.column_stack([np.diag(refined.diagonal()), refined[:, 2]])
        for simple in (whole, upright):
            if self._off(simple) < _EXACT:
                self._affine = simple
                break
        if self._error() > 0.98 * before:
            self._affine = first

    def _move(self, by: Affine) -> None:
        """Let each pixel of the duplicate lie where the one displaced ``by`` did."""
        self._affine = after(self._affine, by + np.eye(2, 3))

    def _step(self, smoothing: float) -> Affine:
        """Explain the difference by the slopes (Lucas and Kanade 1981); return the displacement (2, 3)."""
        left, right = np.zeros((6, 6)), np.zeros(6)
        middle = np.array(self.duplicate.shape[1::-1]) / 2
        unit = float(middle.max())
        for box in self.samples:
            one, other, covered = self._lumas(box)
            if covered is not None and not covered.all():
                continue
            one, other = (np.asarray(cv2.GaussianBlur(luma, (0, 0), smoothing), np.float32) for luma in (one, other))
            one, other = one - one.mean(), other - other.mean()
            spreads = float(one.std()), float(other.std())
            if float((one * other).mean()) <= _LEAST_CORRELATION * spreads[0] * spreads[1]:
                continue  # or both are plain
            one *= np.float32(spreads[1] / spreads[0])
            across, down = (
                cv2.Sobel((one + other) / 2, cv2.CV_32F, 1 - axis, axis, scale=1 / 8)[4:-4, 4:-4].ravel()
                for axis in range(2)
            )
            error = (other - one)[4:-4, 4:-4].ravel()
            y, x = np.mgrid[box.top + 4 : box.bottom - 4, box.left + 4 : box.right - 4].astype(np.float32)
            x, y = (x.ravel() - middle[0]) / unit, (y.ravel() - middle[1]) / unit
            rows = np.stack([across * x, across * y, across, down * x, down * y, down]).astype(np.float64)
            left += rows @ rows.T
            right += rows @ error
        damped = left + 1e-4 * (np.trace(left) / 6 + 1) * np.eye(6)
        found = np.linalg.solve(damped, right).reshape(2, 3)
        found[:, :2] /= unit
        found[:, 2] -= found[:, :2] @ middle
        return np.asarray(found)

    def _off(self, other: Affine) -> float:
        """Return by how many pixels of the duplicate another transform differs at its corners, at most."""
        return float(np.abs(corners_of(self._affine - other, self.duplicate.shape[1::-1])).max() / self.scale)


def _from(start: tuple[int, ...], affine: Affine) -> Affine:
    """Return a transform for pixels that are counted from ``start``."""
    return np.column_stack([affine[:, :2], affine[:, :2] @ start + affine[:, 2]])


def _part(picture: Pixels, affine: Affine, size: tuple[int, int], margin: float) -> tuple[Pixels, Affine]:
    """Return the part of ``picture`` in which ``affine`` arrives, and a margin; and the transform to that part."""
    corners = corners_of(affine, size)
    low = np.maximum(np.floor(corners.min(axis=0) - margin), 0).astype(int)
    high = np.minimum(np.ceil(corners.max(axis=0) + margin), picture.shape[1::-1]).astype(int)
    return picture[low[1] : high[1], low[0] : high[0]], affine - np.array([[0, 0, low[0]], [0, 0, low[1]]])


def _read(picture: Pixels, affine: Affine, size: tuple[int, int], way: int) -> Pixels:
    """Return the pixels of ``picture`` at which ``affine`` arrives; beyond its edges, those of the edges."""
    flags, centred = way | cv2.WARP_INVERSE_MAP, between_middles(affine)
    return np.asarray(cv2.warpAffine(picture, centred, size, flags=flags, borderMode=cv2.BORDER_REPLICATE), np.uint8)


def _shift(one: Floats, other: Floats) -> tuple[float, float] | None:
    """Return the pixels by which ``one`` must be read further right and down to be ``other``; None if none is clear."""
    window = cv2.createHanningWindow(one.shape[::-1], cv2.CV_32F)
    (across, down), response = cv2.phaseCorrelate(other, one, window)
    return (across, down) if response > 0.1 else None

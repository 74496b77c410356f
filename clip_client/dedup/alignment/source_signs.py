"""Which of two photos that lie on each other can be the source of the other: by JPEG's steps, and by the finest detail.

In blocks of 8 x 8 pixels, each coefficient of a JPEG is a multiple of its step, and the source's lie within half a step
of it, evenly spread. What was made from the JPEG, by a filter or by another compression, lies closer or further away.
Energy alone does not tell: a copy of quality 15 that was saved again at quality 100 has as much fine detail as its
original.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import cv2
import numpy as np

from clip_client.dedup.alignment.overlay import Box

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from clip_client.dedup.alignment.differences import Differences
    from clip_client.dedup.alignment.overlay import Overlay
    from clip_client.dedup.types import Floats, Mask, Pixels

    Values = TypeVar("Values", Floats, Mask)

BLOCK: Final = 8
"""Pixels, side."""
_ROUNDING: Final = 1.5
"""By how much a coefficient may lie beyond half a step: pixels are rounded to whole levels."""
_ROUNDING_FAR: Final = 1.0
"""By how much a coefficient may lie beyond half a step where coefficients are only counted."""
_BEYOND: Final = (0.01, 0.03)
"""Share of the difference's energy beyond half a step, up to which the steps explain it: of fine steps, and of coarse
ones, of which the kept photo may be reduced by an unknown filter. Measured on 15 photos and 3 pages, with copies by
Pillow, cjpeg, ImageMagick, vips and ffmpeg: 0.01 at most for the same size, 0.004 for half the size at quality 90, 0.03
at quality 80 and less; sources of quality 75 to 90 against copies saved at quality 15 to 40 and again at 100: at least
0.04, mostly 0.2 and more; sharpened: 0.4."""
_COARSE: Final = 20.0
"""Mean of the steps, about that of quality 83, from which they are coarse."""
_BEYOND_IN_COLOURS: Final = 0.005
"""The same of colours. Measured on 6 photos in 4:2:0 of quality 75 to 95: at most 0.001 for copies in 4:4:4 of quality
60 to 95; 0.02 and more for files of these qualities that were made from the same picture, in near grey 0.001."""
_BEYOND_LATER: Final = 0.012
"""Share of the difference's energy beyond half a step, up to which the kept photo may have been made later: it reaches
0.006, but 0.02 and more if WebP or AVIF of high quality came after a JPEG."""
_EVEN: Final = 0.55
"""Mean of the shares of the coefficients within a quarter, a half and three quarters of half a step: 0.5 of a source's.
Measured on 100 copies of quality 35 to 95: at most 0.54, mostly 0.46. What was made from the JPEG lies closer: 0.60 if
it was lightly denoised, 0.64 and more in WebP or AVIF, or saved again at a similar quality, unless more than
:data:`_FAR` of it lies beyond half a step."""
_FAR: Final = 0.02
"""Share of the coefficients beyond half a step. Measured on the same copies, of which 60 are reduced: at most 0.006,
mostly 0.002, and 0.016 at quality 15; 0.03 and more in WebP of quality 85 and AVIF of 50 that were made from the JPEG,
and 0.06 if they were enlarged and saved at quality 30."""
_FAR_IN_CUT_OFF: Final = 0.12
"""Share beyond half a step for pages, whose white cuts off ringing: 0.05 to 0.116 for copies, 0.139 in AVIF of quality
50."""
_CLOSE_LATER: Final = 0.69
"""Share within a quarter of a step, of a kept photo that may have been made from the duplicate."""
_LEAST_STEP: Final = 4.0
"""Smaller steps drown in rounding."""
_FEWEST: Final = 300
"""Coefficients."""
_ON_STEPS: Final = 0.12
"""Mean distance from the nearest multiple of a step, in steps: 0.25 without steps, 0.03 to 0.11 if a JPEG of that
quality is inside, also in a PNG or after it was saved again at quality 100."""
_STEP_FREQUENCIES: Final = 14
"""Of the lowest frequencies, in which steps are looked for."""
_MOST_BLOCKS: Final = 3000
_COSINES: Final = cv2.dct(np.eye(BLOCK, dtype=np.float32), flags=cv2.DCT_ROWS).T
_WEIGHTS: Final = np.array([[0.299, 0.587, 0.114]], np.float32)
_COLOURS: Final = np.array([[[-0.168736, -0.331264, 0.5]], [[0.5, -0.418688, -0.081312]]], np.float32)
"""Cb and Cr without their constant: JFIF 1.02."""
_CELL: Final = 32
"""Pixels, side of a place in which detail is compared."""
_LEAST_DETAIL: Final = 2.0
"""Squared levels."""
_NEVER_LESS: Final = (0.93, 0.965)
"""Share of the duplicate's fine detail that the kept photo has in all but the 5 % of the worst places, of photos of one
size and of a reduced one, whose losses are reduced with it. Measured: 0.95 to 1.1 against copies in WebP of quality 40
to 90, AVIF of 40 to 80 and HEIC of 50 and 80; 0.89 after a weak bilateral filter, 0.3 to 0.6 after stronger ones, 0.5
to 0.9 after JPEG of quality 15 to 60."""
_LOUDER: Final = 1.03
"""Times the duplicate's detail that follows it: more contrast and sharpening give 1.05 and more, compression 1.00."""
_ADDED: Final = (1.033, 0.965, 0.61)
"""Grain that a program has added is the same everywhere, and leaves the detail below it as it is. Of the busier places:
median share of the duplicate's fine detail that the kept photo has; median of how far it follows that; and correlation
of what it has more with that. Measured on grain of 2 to 8 levels over WebP, AVIF and HEIC, as PNG and as JPEG of 92 and
97: from 1.036; from 0.974; up to 0.6, in one of 15 up to 0.82. Sources with that share follow WebP of quality 40 to 80
up to 0.96, one of them 0.986, and correlate from 0.57 with AVIF of 50 to 90; only those of HEIC of 60 look alike."""
_LEAST_GAIN: Final = 2.5
"""Times the energy finer than the duplicate can show that enlarging itself leaves. Measured on 17 sample photos and
their copies at 0.15 to 0.75 of the size: enlarged copies reach 1.8, photos seldom stay below 3."""
_LEAST_ENLARGED: Final = 1.11
"""Ratio of the sides below which too few frequencies are left to tell."""
_FINE_SIDE: Final = 128
"""Pixels of the kept photo, side of a tile whose frequencies are looked at."""


class Steps(NamedTuple):
    """Where the blocks of a file lie in the duplicate's pixels, and their steps."""

    table: Floats
    across: int
    down: int


class Fit(NamedTuple):
    """Whether a picture can be the source of a file with known steps."""

    beyond: float
    """Share of the difference's energy beyond half a step."""
    within: tuple[float, float, float] | None
    """Shares of the coefficients within a quarter, a half and three quarters of half a step; None if too few have
    steps to tell."""
    far: float
    """Share of the coefficients beyond half a step."""
    has_whole: bool
    """True if these are of blocks without black and white, at which ringing is cut off."""
    step: float
    """Mean of the steps."""
    off: float
    """Root mean square of the difference."""

    @property
    def explains(self) -> bool:
        """True if the source can be what it is supposed to be."""
        return self.beyond <= _BEYOND[self.step >= _COARSE]

    @property
    def proves(self) -> bool:
        """True if the steps explain the difference and nothing else could."""
        return (
            self.explains
            and self.within is not None
            and self.far <= (_FAR if self.has_whole else _FAR_IN_CUT_OFF)
            and sum(self.within) <= 3 * _EVEN
        )

    @property
    def may_be_later(self) -> bool:
        """True unless the steps cannot explain the difference, or explain much more."""
        return self.beyond <= _BEYOND_LATER and (self.within is None or self.within[1] <= _CLOSE_LATER)


def fit(seen: Differences, steps: Steps | None, *, source_is_kept: bool) -> Fit | None:
    """Compare a supposed source with a picture of known steps.

    If the kept photo is made smaller, that is done in the way which the steps explain best.
    """
    if steps is None:
        return None
    if steps.table.max() > 1:
        seen.overlay.choose_filter(lambda: _fit(None, seen, steps, source_is_kept=source_is_kept).far)
    return _fit(seen.overlay.tiles(), seen, steps, source_is_kept=source_is_kept)


def _fit(boxes: Iterable[Box] | None, seen: Differences, steps: Steps, *, source_is_kept: bool) -> Fit:
    """Compare in ``boxes``; None for the samples, from which the steps of an earlier compression are found."""
    sampled = [_coefficients(box, seen, steps) for box in seen.overlay.samples]
    table = np.maximum(steps.table, _coarser_inside(np.concatenate([one[source_is_kept] for one in sampled])))
    beyond = total = 0.0
    places = 0
    # Up to a quarter, a half and three quarters of half a step, a little more, and all; in all blocks, and whole ones.
    within = np.zeros((2, 5), np.int64)
    for kept, duplicate, are_whole in sampled if boxes is None else (_coefficients(box, seen, steps) for box in boxes):
        made = duplicate if source_is_kept else kept
        off = np.abs(kept - duplicate)
        off[:, 0, 0] = 0
        places += len(made)
        beyond += float(np.square(np.maximum(off - table / 2 - _ROUNDING, 0)).sum(dtype=np.float64))
        total += float(np.square(off).sum(dtype=np.float64))
        stepped = (np.abs(made) > 0.6 * table) & (table >= _LEAST_STEP)
        stepped[:, 0, 0] = False
        limits = (table / 8, table / 4, table * 3 / 8, table / 2 + _ROUNDING_FAR, np.float32(np.inf))
        in_whole = stepped & are_whole[source_is_kept][:, None, None]
        within += [[np.count_nonzero(some & (off < limit)) for limit in limits] for some in (stepped, in_whole)]
    has_whole = bool(within[1, -1] >= _FEWEST)
    quarter, half, most, near, counted = within[int(has_whole)].tolist()
    return Fit(
        beyond=beyond / max(1.0, total),
        within=(quarter / counted, half / counted, most / counted) if counted >= _FEWEST else None,
        far=1 - near / max(1, counted),
        has_whole=has_whole,
        step=float(table.mean()),
        off=float(np.sqrt(total / max(1, places * BLOCK**2))),
    )


def explain_colours(seen: Differences, steps: Steps) -> bool:
    """Tell whether the steps of a duplicate's colours explain how these differ from those of the kept photo.

    Colours that the kept photo stores at half size can only then be the source of those that the duplicate has at full
    size, as in a file that was saved again.
    """
    beyond = total = 0.0
    for box in seen.overlay.tiles():
        for weights in _COLOURS:
            kept, duplicate, _ = _coefficients(box, seen, steps, weights)
            off = np.abs(kept - duplicate)
            off[:, 0, 0] = 0
            beyond += float(np.square(np.maximum(off - steps.table / 2 - _ROUNDING, 0)).sum(dtype=np.float64))
            total += float(np.square(off).sum(dtype=np.float64))
    return beyond <= _BEYOND_IN_COLOURS * total


def _coefficients(
    box: Box, seen: Differences, steps: Steps, weights: Floats = _WEIGHTS
) -> tuple[Floats, Floats, tuple[Mask, Mask]]:
    """Return the coefficients (N, 8, 8) of the luma, or of what other weights make, in the same whole blocks of the
    kept photo and of the duplicate, and, of each, which blocks (N,) have neither black nor white."""
    left, top = box.left + (steps.across - box.left) % BLOCK, box.top + (steps.down - box.top) % BLOCK
    width, height = ((end - start) // BLOCK * BLOCK for start, end in ((left, box.right), (top, box.bottom)))
    if width <= 0 or height <= 0:
        none, nothing = np.zeros((0, BLOCK, BLOCK), np.float32), np.zeros(0, np.bool_)
        return none, none, (nothing, nothing)
    within = Box(left, top, left + width, top + height)
    pictures = seen.laid(within), seen.overlay.part(within)
    # As ITU-T T.81, section A.3.3 defines them.
    kept, duplicate = (
        np.asarray(_COSINES @ (_blocks_of(luma_of(picture, weights)) - 128) @ _COSINES.T, np.float32)
        for picture in pictures
    )
    return kept, duplicate, (_are_whole(pictures[0]), _are_whole(pictures[1]))


def _are_whole(picture: Pixels) -> Mask:
    """Tell of each block (N,) of RGB pixels (h, w, 3) whether it has neither black nor white."""
    red, green, blue = np.moveaxis((picture == 0) | (picture == 255), 2, 0)
    blocks = _blocks_of(np.asarray(red | green | blue))  # NumPy's any is slow along an axis of three
    return np.asarray(~blocks.reshape(len(blocks), -1).any(axis=1))


def _blocks_of(plane: Values) -> Values:
    """Return the blocks (N, 8, 8) of a plane of whole blocks, (h, w)."""
    height, width = plane.shape
    blocks = plane.reshape(height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    return blocks.swapaxes(1, 2).reshape(-1, BLOCK, BLOCK)


def _coarser_inside(blocks: Floats) -> Floats:
    """Return the quantisation steps (8, 8) that an earlier JPEG compression left; all are 1 without one."""
    frequencies = sorted(np.ndindex(BLOCK, BLOCK), key=sum)[1 : 1 + _STEP_FREQUENCIES]
    some = blocks[:: max(1, len(blocks) // _MOST_BLOCKS)]
    values = [np.abs(some[:, row, column]) for row, column in frequencies]
    best, least = np.ones((BLOCK, BLOCK), np.float32), _ON_STEPS
    for quality in range(5, 96):
        table = _standard_table(quality)
        distance, counted = 0.0, 0
        for (row, column), value in zip(frequencies, values, strict=True):
            step = float(table[row, column])
            if step >= _LEAST_STEP - 1 and (large := value[value > 0.6 * step]).size >= 50:
                steps = large / step
                distance += float(np.abs(steps - np.rint(steps)).sum())
                counted += large.size
        if counted > _FEWEST and distance / counted < least:
            best, least = table, distance / counted
    return best


@cache
def _standard_table(quality: int) -> Floats:
    """Return the luma steps (8, 8) that libjpeg uses for a quality: ITU-T T.81, table K.1, scaled."""
    table = np.array([
        [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55], [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62], [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
    ])  # fmt: skip
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((table * percent + 50) // 100, 1, 255).astype(np.float32)


def luma_of(picture: Pixels, weights: Floats = _WEIGHTS) -> Floats:
    """Return the luma (h, w), or what other weights of red, green and blue make, without rounding."""
    return np.asarray(cv2.transform(picture.astype(np.float32), weights), np.float32)


def holds_all_detail(seen: Differences, *, is_reduced: bool) -> bool:
    """Tell whether the kept photo has at least as much of the finest detail as the busier places of the duplicate, no
    more contrast, and no added grain."""
    parts = [_energies(seen.laid(box), seen.overlay.part(box)) for box in seen.overlay.tiles()]
    own, theirs, both = np.concatenate(parts, axis=1, dtype=np.float64)
    if not len(theirs):
        return False
    busy = theirs > max(_LEAST_DETAIL, float(np.quantile(theirs, 0.3)))
    if not busy.any():
        return False
    shares, follows = own[busy] / theirs[busy], both[busy] / theirs[busy]
    if np.quantile(shares, 0.05) < _NEVER_LESS[is_reduced] or np.median(follows) > _LOUDER:
        return False
    most, least, correlation = _ADDED
    added, detail = np.maximum(own - theirs, 0)[busy], theirs[busy]
    added, detail = added - added.mean(), detail - detail.mean()
    # By hand, because NumPy's corrcoef warns if one of them is the same everywhere.
    is_even = added @ detail < correlation * np.sqrt((added @ added) * (detail @ detail))
    return not (is_even and np.median(shares) > most and np.median(follows) > least)


def _energies(kept: Pixels, duplicate: Pixels) -> Floats:
    """Return (3, N), of each cell: the energy of the finest detail of both, and of what they have in common."""
    width, height = (side // _CELL for side in kept.shape[1::-1])
    if not width or not height:
        return np.zeros((3, 0), np.float32)
    whole = np.s_[: height * _CELL, : width * _CELL]
    lumas = [luma_of(np.ascontiguousarray(picture[whole])) for picture in (kept, duplicate)]
    one, other = (luma - cv2.GaussianBlur(luma, (0, 0), 1) for luma in lumas)
    products = (one * one, other * other, one * other)
    cells = [cv2.resize(product, (width, height), interpolation=cv2.INTER_AREA).ravel() for product in products]
    return np.asarray(cells, np.float32)


def has_finer_detail(overlay: Overlay) -> bool:
    """Tell whether a larger kept photo shows what is too fine for the duplicate: it was not enlarged from it."""
    share = 1 / overlay.scale
    if overlay.scale < _LEAST_ENLARGED:
        return False
    gains: list[tuple[float, float, float, float]] = []
    off = np.zeros(2)
    for box in overlay.samples:
        pictures = overlay.at_kept_size(box, _FINE_SIDE)
        if not pictures:
            continue
        luma, *enlarged = map(luma_of, pictures)
        off += [float(np.square(one - luma).mean()) for one in enlarged[-2:]]
        # The edges between repeated pixels look like detail.
        own, *laid = map(_spectrum, (luma, *enlarged[:-1]))
        most = np.max(laid, axis=0)
        fine, coarse = ((share * low, min(1.0, share * high)) for low, high in ((1.1, 2.2), (0.5, 0.9)))
        gains.append((_energy(own, fine), _energy(most, fine), _energy(own, coarse), _energy(most, coarse)))
    if not gains or off[1] < off[0]:
        return False
    by_detail = sorted(gains, reverse=True)[: max(1, len(gains) // 4)]
    own_fine, fine, own_coarse, coarse = np.sum(by_detail, axis=0)
    return bool(own_fine / max(1e-6, fine) > _LEAST_GAIN * max(1.0, own_coarse / max(1e-6, coarse)))


@cache
def _window_and_band(side: int) -> tuple[Floats, NDArray[np.intp]]:
    """Return the Hann window (side, side), and the number (side * side,) of each frequency's band."""
    window = np.hanning(side)[:, None] * np.hanning(side)
    frequency = np.abs(np.fft.fftfreq(side)) * side
    band = np.minimum(np.maximum(frequency[:, None], frequency), side // 2 - 1)
    return window.astype(np.float32), band.astype(np.intp).ravel()


def _spectrum(tile: Floats) -> NDArray[np.float64]:
    """Return the energy (side / 2,) by frequency from 0 to the highest one across or down."""
    window, band = _window_and_band(len(tile))
    waves = cv2.dft((tile - np.float32(tile.mean())) * window, flags=cv2.DFT_COMPLEX_OUTPUT)
    return np.asarray(np.bincount(band, np.square(waves).sum(axis=2).ravel(), len(tile) // 2))


def _energy(spectrum: NDArray[np.float64], shares: tuple[float, float]) -> float:
    """Return the energy between two shares of the highest frequency."""
    low, high = (round(share * len(spectrum)) for share in shares)
    return float(spectrum[low : max(low + 1, high)].sum())

"""Which of two files of one picture was made from the other, so that the other one holds all that it shows.

Compression leaves its steps in a picture: in blocks of 8 x 8 pixels, each coefficient of a JPEG is a multiple of its
step, and the source's lie within half a step of it, evenly spread. A picture that was made from the JPEG, by a filter
or by another compression, lies closer or further away. Energy alone does not tell: a copy of quality 15 that was saved
again at quality 100 has as much fine detail as its original.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import cv2
import numpy as np

from clip_client.dedup.aligned import ENLARGED, MADE_LATER, UNTOLD
from clip_client.dedup.alignment.differences import tiles
from clip_client.dedup.alignment.overlay import Box

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.alignment.differences import Differences
    from clip_client.dedup.alignment.keypoints import Pixels
    from clip_client.dedup.alignment.overlay import Overlay

    Floats = NDArray[np.float32]
    Blocks = NDArray[np.float32]

_WEIGHTS: Final = np.array([[0.299, 0.587, 0.114]], np.float32)
_BLOCK: Final = 8
_LOSSY: Final = frozenset({"JPEG", "MPO", "WEBP", "AVIF", "HEIF", "JXL"})
_ROUNDING: Final = 1.5
"""By how much a coefficient may lie beyond half a step: pixels are rounded to whole levels."""
_BEYOND: Final = (0.01, 0.03)
"""Share of the difference's energy beyond half a step, up to which the steps explain it: of fine steps, and of coarse
ones, of which the kept photo may be reduced by an unknown filter. Measured on 15 photos and 3 pages, with copies by
Pillow, cjpeg, ImageMagick, vips and ffmpeg: 0.01 at most for the same size, 0.004 for half the size at quality 90, 0.03
at quality 80 and less; sources of quality 75 to 90 against copies saved at quality 15 to 40 and again at 100: at least
0.04, mostly 0.2 and more; sharpened: 0.4."""
_COARSE: Final = 20.0
"""Mean of the steps, about that of quality 83, from which they are coarse."""
_BEYOND_LATER: Final = 0.012
"""The same share, to say that the kept photo was made later: it reaches 0.006, but 0.02 and more if WebP or AVIF of
high quality came after a JPEG."""
_CLOSE: Final = 0.64
"""Share of the coefficients that lie within a quarter of a step, above which they are closer than a source's would be:
half of those of a source do. Measured: 0.28 to 0.65 for copies; 0.66 to 0.8 after a weak smoothing filter, 0.65 to 0.86
for a picture enlarged from the JPEG."""
_ON_STEPS_OF_KEPT: Final = 0.8
"""The same share, above which a lossless picture was made from the JPEG."""
_SAME: Final = 0.6
"""Levels, root mean square: rounding to whole levels leaves up to 0.5."""
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
_CELL: Final = 32
"""Pixels, side of a place in which detail is compared."""
_LEAST_DETAIL: Final = 2.0
"""Squared levels."""
_NEVER_LESS: Final = 0.93
"""Share of the duplicate's fine detail that the kept photo has in all but the 5 % of the worst places. Measured: 0.95
to 1.1 against copies in WebP of quality 40 to 90, AVIF of 40 to 80 and HEIC of 50 and 80; 0.89 after a weak bilateral
filter, 0.3 to 0.6 after stronger ones, 0.5 to 0.9 after JPEG of quality 15 to 60."""
_LOUDER: Final = 1.03
"""Times the duplicate's detail that follows it: more contrast and sharpening give 1.05 and more, compression 1.00."""
_BLURRED: Final = 9.0
"""Times the energy of a blurred copy's finest detail: strong sharpening reaches 6."""
_SAME_SIZE: Final = 1.03
"""Ratio of the sides up to which programs round sizes."""
_LEAST_GAIN: Final = 2.5
"""Times the energy finer than the duplicate can show that enlarging itself leaves. Measured on 17 sample photos and
their copies at 0.15 to 0.75 of the size: enlarged copies reach 1.8, photos seldom stay below 3."""
_LEAST_ENLARGED: Final = 1.11
"""Ratio of the sides below which too few frequencies are left to tell."""
_FINE_SIDE: Final = 128
"""Pixels of the kept photo, side of a tile whose frequencies are looked at."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What the file of a photo says about its compression."""

    is_lossless: bool
    table: Floats | None
    """(8, 8): the luma steps of a JPEG."""
    orientation: int
    """EXIF, 1 to 8."""
    profile: bytes
    """ICC; empty for none."""

    @classmethod
    def read(cls, data: bytes) -> FileFacts:
        """Read the header of an encoded file; one that cannot be read counts as a lossy one of no known steps."""
        from PIL import ExifTags

        from preprocess_ensemble.imaging.formats import open_image

        try:
            with open_image(data) as image:
                steps = getattr(image, "quantization", None)
                orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
                return cls(
                    is_lossless=image.format not in _LOSSY or b"VP8L" in data[:64],
                    table=np.array(steps[0], np.float32).reshape(_BLOCK, _BLOCK) if steps else None,
                    orientation=orientation if orientation in range(1, 9) else 1,
                    profile=image.info.get("icc_profile") or b"",
                )
        except Exception:  # Pillow may raise anything for a damaged file
            return cls(is_lossless=False, table=None, orientation=1, profile=b"")


class _Steps(NamedTuple):
    """Where the blocks of a file lie in the duplicate's pixels, and their steps."""

    table: Floats
    across: int
    down: int


class _Fit(NamedTuple):
    """Whether a picture can be the source of a file with known steps."""

    beyond: float
    close: float | None
    """None if there are too few steps to tell."""
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
        return self.explains and self.close is not None and self.close <= _CLOSE


def doubt_about(kept: FileFacts, duplicate: FileFacts, overlay: Overlay, seen: Differences) -> str:
    """Return why ``kept`` is not proved to hold all that ``duplicate`` shows; empty if it is.

    Both show the same everywhere. The answer is careful: without a proof there is a doubt.
    """
    tones = seen.grading.tones
    is_grey = tones[0].is_mostly_grey and not tones[1].is_mostly_grey
    is_turned = overlay.is_swapped or any(overlay.flips)
    is_changed = is_turned or not (seen.grading.is_none or is_grey)
    is_larger = overlay.scale > _SAME_SIZE
    if is_larger and not _has_finer_detail(overlay):
        return ENLARGED
    if seen.grading.is_none and seen.has_other_colours:
        return UNTOLD
    detail = _Detail.of(overlay, seen)
    if detail.is_blurred and not is_changed:
        return ""
    made = _fit(overlay, seen, _steps_of(duplicate, overlay, of_kept=False), source_is_kept=True)
    later = _fit(overlay, seen, _steps_of(kept, overlay, of_kept=True), source_is_kept=False)
    is_later = later is not None and later.proves and later.beyond <= _BEYOND_LATER
    if made is not None and made.proves and not (is_later and later and (is_changed or later.step >= made.step)):
        return ""
    if is_changed:
        return UNTOLD  # size says nothing about versions of one picture
    if is_later:
        return MADE_LATER
    # A source lies on the steps of its copy only if it was saved with the same ones before.
    has_same_steps = duplicate.table is None or np.array_equal(duplicate.table, kept.table)  # type: ignore[arg-type]
    is_same = made is not None and (made.close is None or (has_same_steps and made.off < _SAME))
    if made is not None and made.explains and is_same:
        # Both hold the same to a level. Of a JPEG, only a picture made from it lies that close to its steps.
        shows_steps = later is not None and later.close is not None and later.close > _ON_STEPS_OF_KEPT
        return "" if is_larger or shows_steps or kept.is_lossless >= duplicate.is_lossless else UNTOLD
    if duplicate.table is not None or duplicate.is_lossless or (_is_otherwise_lossy(kept) and not is_larger):
        return UNTOLD
    return "" if detail.holds_all else UNTOLD


def _is_otherwise_lossy(file: FileFacts) -> bool:
    """Tell whether a file was compressed in a way that leaves no steps that can be found."""
    return not file.is_lossless and file.table is None


def _steps_of(file: FileFacts, overlay: Overlay, *, of_kept: bool) -> _Steps | None:
    """Return the steps of a file in the duplicate's pixels; None if its blocks do not lie on these."""
    height, width = overlay.duplicate.shape[:2]
    if file.table is None and not file.is_lossless:
        return None
    size, shift = (width, height), (0, 0)
    swaps, flips = file.orientation >= 5, (file.orientation in (2, 3, 6, 7), file.orientation in (3, 4, 7, 8))
    if of_kept:
        if overlay.shift is None:
            return None
        size, shift = overlay.kept_size, overlay.shift
        if overlay.is_swapped:
            swaps, flips = not swaps, flips[::-1]
        flips = flips[0] != overlay.flips[0], flips[1] != overlay.flips[1]
    table = np.ones((_BLOCK, _BLOCK), np.float32) if file.table is None else file.table
    starts = [
        ((side if is_flipped else 0) - by) % _BLOCK for side, is_flipped, by in zip(size, flips, shift, strict=True)
    ]
    return _Steps(table.T if swaps else table, *starts)


def _fit(overlay: Overlay, seen: Differences, steps: _Steps | None, *, source_is_kept: bool) -> _Fit | None:
    """Compare a supposed source with a picture of known steps."""
    if steps is None:
        return None
    sampled = [_coefficients(box, overlay, seen, steps) for box in overlay.samples]
    made = np.concatenate([pair[source_is_kept] for pair in sampled]) if sampled else np.zeros((0, 8, 8), np.float32)
    table = np.maximum(steps.table, _coarser_inside(made))
    beyond = total = 0.0
    close = counted = places = 0
    for box in tiles(overlay.inside()):
        pair = _coefficients(box, overlay, seen, steps)
        source, made = pair[not source_is_kept], pair[source_is_kept]
        places += len(made)
        off = np.abs(source - made)
        off[:, 0, 0] = 0
        beyond += float(np.square(np.maximum(off - table / 2 - _ROUNDING, 0)).sum(dtype=np.float64))
        total += float(np.square(off).sum(dtype=np.float64))
        stepped = (np.abs(made) > 0.6 * table) & (table >= _LEAST_STEP)
        stepped[:, 0, 0] = False
        counted += int(np.count_nonzero(stepped))
        close += int(np.count_nonzero(stepped & (off < table / 4)))
    share = close / counted if counted >= _FEWEST else None
    off = np.sqrt(total / max(1, places * _BLOCK**2))
    return _Fit(beyond / max(1.0, total), share, float(table.mean()), float(off))


def _coefficients(box: Box, overlay: Overlay, seen: Differences, steps: _Steps) -> tuple[Blocks, Blocks]:
    """Return the coefficients (N, 8, 8) of the luma of the kept photo and of the duplicate, in whole blocks."""
    left, top = box.left + (steps.across - box.left) % _BLOCK, box.top + (steps.down - box.top) % _BLOCK
    width, height = ((end - start) // _BLOCK * _BLOCK for start, end in ((left, box.right), (top, box.bottom)))
    if width <= 0 or height <= 0:
        return (np.zeros((0, _BLOCK, _BLOCK), np.float32),) * 2
    within = Box(left, top, left + width, top + height)
    first, second = (_cosines(_luma(picture)) for picture in (seen.laid(within), overlay.part(within)))
    return first, second


def _luma(picture: Pixels) -> Floats:
    """Return the luma (h, w) without rounding."""
    return np.asarray(cv2.transform(picture.astype(np.float32), _WEIGHTS), np.float32)


@cache
def _cosine_matrix() -> Floats:
    frequency, place = np.arange(_BLOCK)[:, None], np.arange(_BLOCK)
    matrix = np.cos((2 * place + 1) * frequency * np.pi / 16) / 2
    matrix[0] /= np.sqrt(2)
    return np.asarray(matrix, np.float32)


def _cosines(luma: Floats) -> Blocks:
    """Return the coefficients (N, 8, 8) of each block, as ITU-T T.81, section A.3.3 defines them."""
    height, width = luma.shape
    blocks = luma.reshape(height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK).swapaxes(1, 2).reshape(-1, _BLOCK, _BLOCK)
    matrix = _cosine_matrix()
    return np.asarray(matrix @ (blocks - 128) @ matrix.T, np.float32)


def _coarser_inside(blocks: Blocks) -> Floats:
    """Return the steps (8, 8) of an earlier JPEG that a picture betrays; 1 if there are none."""
    frequencies = sorted(np.ndindex(_BLOCK, _BLOCK), key=sum)[1 : 1 + _STEP_FREQUENCIES]
    some = blocks[:: max(1, len(blocks) // _MOST_BLOCKS)]
    values = [np.abs(some[:, row, column]) for row, column in frequencies]
    best, least = np.ones((_BLOCK, _BLOCK), np.float32), _ON_STEPS
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


class _Detail(NamedTuple):
    """The finest detail of both photos, in places."""

    shares: NDArray[np.float64]
    """(N,): energy of the kept photo's, as a share of the duplicate's."""
    follows: NDArray[np.float64]
    """(N,): what of it follows the duplicate's, in times of the latter."""

    @classmethod
    def of(cls, overlay: Overlay, seen: Differences) -> _Detail:
        """Measure it in the busier places of the duplicate."""
        parts = [cls._measured(seen.laid(box), overlay.part(box)) for box in tiles(overlay.inside())]
        own, theirs, both = (np.concatenate([part[number] for part in parts]).astype(np.float64) for number in range(3))
        busy = theirs > max(_LEAST_DETAIL, float(np.quantile(theirs, 0.3))) if len(theirs) else np.zeros(0, np.bool_)
        floor = np.maximum(theirs[busy], 0.1)
        return cls(own[busy] / floor, both[busy] / floor)

    @staticmethod
    def _measured(kept: Pixels, duplicate: Pixels) -> list[Floats]:
        width, height = (side // _CELL for side in kept.shape[1::-1])
        if not width or not height:
            return [np.zeros(0, np.float32)] * 3
        whole = np.s_[: height * _CELL, : width * _CELL]
        lumas = [_luma(np.ascontiguousarray(picture[whole])) for picture in (kept, duplicate)]
        one, other = (luma - cv2.GaussianBlur(luma, (0, 0), 1) for luma in lumas)
        return [
            np.asarray(cv2.resize(product, (width, height), interpolation=cv2.INTER_AREA), np.float32).ravel()
            for product in (one * one, other * other, one * other)
        ]

    @property
    def holds_all(self) -> bool:
        """True if the kept photo has at least as much detail everywhere, and no more contrast."""
        return (
            len(self.shares) > 0
            and float(np.quantile(self.shares, 0.05)) >= _NEVER_LESS
            and float(np.median(self.follows)) <= _LOUDER
        )

    @property
    def is_blurred(self) -> bool:
        """True if the duplicate lacks what no sharpening could have added to the kept photo."""
        return len(self.shares) > 0 and float(np.quantile(self.shares, 0.1)) > _BLURRED


def _has_finer_detail(overlay: Overlay) -> bool:
    """Tell whether a larger kept photo shows what is too fine for the duplicate: it was not enlarged from it."""
    share = 1 / overlay.scale
    if overlay.scale < _LEAST_ENLARGED:
        return False
    gains: list[tuple[float, float, float, float]] = []
    for box in overlay.samples:
        pictures = overlay.at_kept_size(box, _FINE_SIDE)
        if not pictures:
            continue
        own, *laid = (_spectrum(_luma(picture)) for picture in pictures)
        most = np.max(laid, axis=0)
        fine, coarse = ((share * low, min(1.0, share * high)) for low, high in ((1.1, 2.2), (0.5, 0.9)))
        gains.append((_energy(own, fine), _energy(most, fine), _energy(own, coarse), _energy(most, coarse)))
    if not gains:
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

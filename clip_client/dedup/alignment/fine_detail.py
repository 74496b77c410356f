"""Which of two photos that lie on each other has more of the finest detail."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.alignment.differences import Differences
    from clip_client.dedup.alignment.overlay import Overlay
    from clip_client.dedup.types import Floats, Pixels


_WEIGHTS: Final = np.array([[0.299, 0.587, 0.114]], np.float32)
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
_LEAST_GAIN: Final = 2.5
"""Times the energy finer than the duplicate can show that enlarging itself leaves. Measured on 17 sample photos and
their copies at 0.15 to 0.75 of the size: enlarged copies reach 1.8, photos seldom stay below 3."""
_LEAST_ENLARGED: Final = 1.11
"""Ratio of the sides below which too few frequencies are left to tell."""
_FINE_SIDE: Final = 128
"""Pixels of the kept photo, side of a tile whose frequencies are looked at."""


def luma_of(picture: Pixels) -> Floats:
    """Return the luma (h, w) without rounding."""
    return np.asarray(cv2.transform(picture.astype(np.float32), _WEIGHTS), np.float32)


def holds_all_detail(seen: Differences, *, is_reduced: bool) -> bool:
    """Tell whether the kept photo has at least as much of the finest detail as the busier places of the duplicate, and
    no more contrast."""
    parts = [_energies(seen.laid(box), seen.overlay.part(box)) for box in seen.overlay.tiles()]
    own, theirs, both = np.concatenate(parts, axis=1, dtype=np.float64)
    if not len(theirs):
        return False
    busy = theirs > max(_LEAST_DETAIL, float(np.quantile(theirs, 0.3)))
    if not busy.any():
        return False
    shares, follows = own[busy] / theirs[busy], both[busy] / theirs[busy]
    return float(np.quantile(shares, 0.05)) >= _NEVER_LESS[is_reduced] and float(np.median(follows)) <= _LOUDER


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
    for box in overlay.samples:
        pictures = overlay.at_kept_size(box, _FINE_SIDE)
        if not pictures:
            continue
        own, *laid = (_spectrum(luma_of(picture)) for picture in pictures)
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

"""Tells a photo from an enlarged, softened or noisy copy of it, by its finest detail."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from clip_client.dedup.aligned import ENLARGED, NOISY, SOFTER
from clip_client.dedup.alignment.geometry import inverse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.aligned import Transform
    from clip_client.dedup.alignment.geometry import Affine

    Luma = NDArray[np.uint8]
    Waves = NDArray[np.float32]
    Spectra = NDArray[np.float64]

_SIDES: Final = (128, 64)
"""Pixels, side of a tile; the smaller one for small pictures."""
_TILES: Final = 6
"""Tiles across and down, at most."""
_FINER: Final = 1.1
"""Frequencies from this many times the highest one of the smaller photo are finer than it can show."""
_OCTAVE: Final = 2.2
"""And up to this many times: beyond, an enlarged copy has nothing but what its encoder adds."""
_COARSE: Final = (0.5, 0.9)
"""Shares of the highest frequency of the smaller photo: what both show, which gives the contrast of the two."""
_BROAD: Final = (0.0, 0.1)
"""Shares of the highest frequency that a file can have: what even a blurred copy shows, which gives its contrast."""
_TRACES: Final = ((0.1, 0.25), (0.25, 0.45))
"""The same: what a blurred copy still shows a trace of."""
_LEAST_GAIN: Final = 2.5
"""Times the energy that enlarging itself leaves. Measured on 17 sample photos and their copies at 0.15 to 0.75 of the
size: enlarged copies reach 1.8, photos seldom stay below 3."""
_MOST_NOISE: Final = 6.0
"""Times the fine energy of the duplicate in its plainest tiles. Of 20 sample photos, those encoded again in JPEG or
WebP at quality 10 to 85 reach 5.6; with noise of 8 levels added, half of them exceed 9, and with 15 levels 29."""
_SHARPER: Final = 1.7
"""Times the energy of the duplicate's traces that follows them, so that noise adds nothing to it. Of 20 sample photos,
all but one reach 1.8 against their copy blurred by one pixel, and 7 against one blurred by two; with noise of 5 to 15
levels added they stay below 1.6."""
_LEAST_COHERENCE: Final = 0.5
"""Of the traces in both photos: with less, the noise is stronger than what it could follow."""
_LEAST_ENERGY: Final = 0.25
"""Squared levels, about that of rounding to whole levels: a tile with less counts as if it had this."""
_MOST_SHARE: Final = 0.9
"""Of the sides: above, too few frequencies are left."""
_SAME_SIZE: Final = 0.97
"""Of the sides: above, sizes differ by rounding."""


def doubt_about(kept: Luma, duplicate: Luma, to_kept: Transform) -> str:
    """Return a sign that ``kept`` was made from ``duplicate``: ENLARGED, SOFTER or NOISY; empty if there is none.

    Both are lumas (H, W) of whole pictures, and ``kept`` has at least as many pixels for the same content. ``to_kept``
    leads from the pixels of ``duplicate`` to those of ``kept``. The duplicate is laid on the kept photo, enlarged if
    need be, and the energies of the fine frequencies are compared. A sign is no proof: a photo without fine detail, or
    one that is hardly larger, has no more than its copy, and a strong encoder takes the noise away that a camera left.
    """
    affine = np.array(to_kept, np.float64).reshape(2, 3)
    share = float(1 / np.sqrt(abs(np.linalg.det(affine[:, :2]))))
    left, top, right, bottom = _covered(duplicate.shape, affine, kept.shape)
    side = next((side for side in _SIDES if side <= min(right - left, bottom - top)), 0)
    is_same_size = share > _SAME_SIZE
    sign = SOFTER if is_same_size else ENLARGED
    if not side or _MOST_SHARE < share <= _SAME_SIZE:
        return sign
    back = inverse(affine)
    # Interpolation would take from the detail of a picture that is not enlarged.
    ways = (cv2.INTER_NEAREST,) if is_same_size else (cv2.INTER_LINEAR, cv2.INTER_CUBIC)
    own, laid, shared = [], [], []
    for x, y in ((x, y) for y in _starts(top, bottom, side) for x in _starts(left, right, side)):
        tiles = _laid_on(duplicate, back, x, y, side, ways)
        if tiles:
            waves, others = _waves(kept[y : y + side, x : x + side]), [_waves(tile) for tile in tiles]
            own.append(_spectrum(waves, waves))
            laid.append(np.max([_spectrum(other, other) for other in others], axis=0))
            shared.append(_spectrum(waves, others[0]))
    if not own:
        return sign
    limit = 0.5 if is_same_size else share
    fine, coarse = ((limit * low, min(1.0, limit * high)) for low, high in ((_FINER, _OCTAVE), _COARSE))
    energies = _energy(np.array(laid if is_same_size else own), *fine)
    by_detail, quarter = np.argsort(energies), max(1, len(energies) // 4)
    sharpest, plainest = by_detail[-quarter:], by_detail[:quarter]
    gain, contrast = (
        _energy(np.array(own)[sharpest], *band).sum() / max(1e-6, _energy(np.array(laid)[sharpest], *band).sum())
        for band in (fine, coarse)
    )
    if not is_same_size:
        return "" if gain > _LEAST_GAIN * max(1.0, contrast) else ENLARGED
    detailed = np.argsort(_energy(np.array(laid), *coarse))[-quarter:]
    of_detailed = tuple(np.array(spectra)[detailed] for spectra in (own, laid, shared))
    broad, _ = _following(of_detailed, _BROAD)
    if gain * _LEAST_GAIN <= broad:
        return SOFTER
    least = _LEAST_ENERGY * _energy_of_noise(side, *fine)
    noise = _energy(np.array(own)[plainest], *fine) / np.maximum(energies[plainest], least)
    if np.median(noise) <= _MOST_NOISE * broad:
        return ""
    # A blurred copy lacks what looks like noise, too, but it also lacks detail that it still shows a trace of.
    traces = [_following(of_detailed, band) for band in _TRACES]
    is_blurred = any(more > _SHARPER * broad and coherence > _LEAST_COHERENCE for more, coherence in traces)
    return "" if is_blurred else NOISY


def _covered(shape: tuple[int, ...], to_kept: Affine, kept_shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the box around the duplicate in the kept photo, in whole pixels."""
    height, width = shape
    corners = np.array([[0, 0], [width, 0], [0, height], [width, height]]) @ to_kept[:, :2].T + to_kept[:, 2]
    low, high = np.maximum(corners.min(axis=0), 0), np.minimum(corners.max(axis=0), kept_shape[::-1])
    (left, top), (right, bottom) = np.rint(low).astype(int).tolist(), np.rint(high).astype(int).tolist()
    return left, top, right, bottom


def _laid_on(duplicate: Luma, back: Affine, x: int, y: int, side: int, ways: tuple[int, ...]) -> list[Luma]:
    """Return what the duplicate shows of the tile at ``x``, ``y`` of the kept photo, interpolated in several ways.

    Empty if it does not cover the tile.
    """
    ends = np.array([[x, y], [x + side, y], [x, y + side], [x + side, y + side]])
    corners = ends @ back[:, :2].T + back[:, 2]
    size = duplicate.shape[::-1]
    if (corners < -1).any() or (corners > np.array(size) + 1).any():
        return []
    # Only a part of the duplicate, because OpenCV takes no sides of more than 32,767 pixels.
    margin = 3
    low = np.maximum(np.floor(corners.min(axis=0)).astype(int) - margin, 0)
    high = np.ceil(corners.max(axis=0)).astype(int) + margin
    part = duplicate[low[1] : high[1], low[0] : high[0]]
    centred = back.copy()  # OpenCV counts from the middle of the first pixel
    centred[:, 2] += back[:, :2] @ (x + 0.5, y + 0.5) - 0.5 - low
    return [
        np.asarray(
            cv2.warpAffine(
                part, centred, (side, side), flags=way | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE
            ),
            np.uint8,
        )
        for way in ways
    ]


def _starts(start: int, end: int, side: int) -> list[int]:
    """Return where tiles begin that are spread from ``start`` to ``end``."""
    starts: list[int] = np.unique(
        np.linspace(start, end - side, min(_TILES, (end - start) // side)).astype(int)
    ).tolist()
    return starts


def _waves(tile: Luma) -> Waves:
    """Return the Fourier transform (side, side, 2), real and imaginary."""
    window, _ = _window_and_band(len(tile))
    return np.asarray(cv2.dft((tile - np.float32(tile.mean())) * window, flags=cv2.DFT_COMPLEX_OUTPUT), np.float32)


def _spectrum(one: Waves, other: Waves) -> NDArray[np.float64]:
    """Return the energy (side / 2,) that both share, by frequency from 0 to the highest one across or down."""
    _, band = _window_and_band(len(one))
    energy = cv2.mulSpectrums(one, other, 0, conjB=True)[..., 0]
    return np.asarray(np.bincount(band, energy.ravel(), len(one) // 2))


def _following(spectra: tuple[Spectra, ...], band: tuple[float, float]) -> tuple[float, float]:
    """Return what of the kept photo's energy follows the duplicate's, in times of the latter, and their coherence.

    ``spectra`` are those of the kept photo, of the duplicate, and what both share.
    """
    ours, theirs, both = (max(1e-6, float(_energy(one, *band).sum())) for one in spectra)
    return (both / theirs) ** 2, both**2 / (ours * theirs)


@cache
def _window_and_band(side: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return the Hann window (side, side), and the number (side * side,) of each frequency's band."""
    window = np.hanning(side)[:, None] * np.hanning(side)
    frequency = np.abs(np.fft.fftfreq(side)) * side
    band = np.minimum(np.maximum(frequency[:, None], frequency), side // 2 - 1)
    return window.astype(np.float32), band.astype(np.intp).ravel()


def _energy_of_noise(side: int, low: float, high: float) -> float:
    """Return the energy of white noise of one squared level between two shares of the highest frequency."""
    of_window = float((np.hanning(side) ** 2).sum()) ** 2
    return of_window * side**2 * (high**2 - low**2)


def _energy(spectra: Spectra, low: float, high: float) -> NDArray[np.float64]:
    """Return the energy (N,) between two shares of the highest frequency."""
    bands = spectra.shape[1]
    return np.asarray(spectra[:, round(low * bands) : max(round(low * bands) + 1, round(high * bands))].sum(axis=1))

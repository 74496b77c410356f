"""The steps to which a JPEG rounds: which are too coarse for a proof, and how an encoder rounds to them.

libjpeg has a fast transform beside the exact one, which TurboJPEG uses below quality 96 unless it is told not to. What
rounds down in it (``jfdctfst.c``) moves the first row of coefficients of every block the same way, one by 1.8 levels,
which looks as if the whole photo had been sharpened; and it divides by whole numbers (``jcdctmgr.c``), which for steps
of 1 are up to 4.5 % too small. No small bound holds both, so it is repeated, number for number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.proof.gate import COARSE, UNUSUAL_CODING, NotProvedError
from clip_client.dedup.types import Floats

SIDE: Final = 0.75
"""Steps by which an encoder may round towards zero: half a step if it rounds to the nearest, more if it spares bits in
busy blocks, as jpegli does: with 0.5 15 of 19 of its copies pass, with 0.75 all."""
_SIDE_OF_TRELLIS: Final = 1.5
"""Steps for mozjpeg, which moves coefficients by 1.5 to 1.9 steps if that saves bits: with 1, 22 of 28 of its copies
pass, with 1.5 all. A changed letter in small type comes closer to the limit by a quarter, so only progressive files and
those with its tables get it."""

_LUMA: Final = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
"""Usual steps of luma at quality 50: T.81, table K.1."""
_CHROMA: Final = np.array(
    [
        [17, 18, 24, 47, 99, 99, 99, 99],
        [18, 21, 26, 66, 99, 99, 99, 99],
        [24, 26, 56, 99, 99, 99, 99, 99],
        [47, 66, 99, 99, 99, 99, 99, 99],
        *[[99] * 8] * 4,
    ]
)
"""Usual steps of chroma at quality 50: T.81, table K.2."""
_MOZJPEG: Final = np.array(
    [
        [16, 16, 16, 18, 25, 37, 56, 85],
        [16, 17, 20, 27, 34, 40, 53, 75],
        [16, 20, 24, 31, 43, 62, 91, 135],
        [18, 27, 31, 40, 53, 74, 106, 156],
        [25, 34, 43, 53, 69, 94, 131, 189],
        [37, 40, 62, 74, 94, 124, 169, 238],
        [56, 53, 91, 106, 131, 169, 226, 311],
        [85, 75, 135, 156, 189, 238, 311, 418],
    ]
)
"""Steps of mozjpeg for both, by N. Robidoux: ``jcparam.c``."""


def _at_quality(table: NDArray[np.int_], quality: int) -> NDArray[np.int_]:
    """Scale steps as libjpeg does: ``jpeg_quality_scaling``."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((table * scale + 50) // 100, 1, 255).ravel()


_LEAST_QUALITY: Final = 40
"""Below quality 30 a changed digit in small type passes the law: 8 px at quality 16, 10 px at 26."""
_COARSEST: Final = tuple(
    np.maximum(*(_at_quality(one, _LEAST_QUALITY) for one in (table, _MOZJPEG))) for table in (_LUMA, _CHROMA)
)
"""Steps of luma and of chroma, the coarser ones of the usual tables. The first step alone tells nothing: ffmpeg's is 8
at each of its qualities, and its coarsest copies of a page may show another digit."""


def check_steps(steps: Sequence[Floats]) -> None:
    """Check the steps (64,) of each plane: Y alone, or Y, Cb and Cr. Raises :class:`NotProvedError`."""
    if not all(of_plane.all() for of_plane in steps):
        raise NotProvedError(UNUSUAL_CODING)  # T.81 has no step of 0, which nothing can be divided by
    luma, *chroma = steps
    if (luma > _COARSEST[0]).any() or any((of_plane > _COARSEST[1]).any() for of_plane in chroma):
        raise NotProvedError(COARSE)


def side_of(luma: Floats, *, is_progressive: bool) -> float:
    """Return by how many steps, (64,), the encoder of a file may have rounded its luma towards zero."""
    is_of_mozjpeg = any(np.array_equal(_at_quality(_MOZJPEG, quality), luma) for quality in range(1, 101))
    return _SIDE_OF_TRELLIS if is_progressive or is_of_mozjpeg else SIDE


_OF_TURBOJPEG: Final = frozenset(
    _at_quality(table, quality).tobytes() for table in (_LUMA, _CHROMA) for quality in range(1, 96)
)
"""Steps with which it uses the fast transform: ``turbojpeg.c``."""
_SCALES: Final = np.append(1, np.sqrt(2) * np.cos(np.arange(1, 8) * np.pi / 16))
_SCALE: Final = np.rint(np.outer(_SCALES, _SCALES).ravel() * 2**14).astype(np.int32)
"""(64,): 2**11 times what the fast transform multiplies a coefficient by."""


def may_be_fast(steps: Floats) -> bool:
    """Tell whether coefficients of these steps, (64,), may be those of libjpeg's fast transform."""
    return steps.astype(np.int_).tobytes() in _OF_TURBOJPEG


def fast_coefficients(blocks: Floats, steps: Floats) -> Floats:
    """Transform blocks, (n, 64), of levels as libjpeg's fast transform does, whose errors depend on the steps (64,).

    Return coefficients, (n, 64), which an encoder that divides by the steps rounds as that one does.
    """
    rows = np.rint(blocks.T).astype(np.int32).reshape(8, 8, -1) - 128
    found = _along(_along(rows.swapaxes(0, 1)).swapaxes(0, 1)).reshape(64, -1)
    divisors = (steps.astype(np.int32) * _SCALE + 2**10) >> 11
    return cast("Floats", (found.T * (steps / divisors)).astype(np.float32))


def _along(levels: NDArray[np.int32]) -> NDArray[np.int32]:
    """Transform along the first axis: Y. Arai, T. Agui and M. Nakajima, 1988, rounded down as libjpeg does."""
    sums, differences = levels[:4] + levels[:3:-1], levels[:4] - levels[:3:-1]
    outer, inner = sums[:2] + sums[:1:-1], sums[:2] - sums[:1:-1]
    turned = ((inner[0] + inner[1]) * 181) >> 8
    first, second, third = differences[:3] + differences[1:]
    shared = ((third - first) * 98) >> 8
    low, high = ((third * 139) >> 8) + shared, ((first * 334) >> 8) + shared
    middle = (second * 181) >> 8
    near, far = differences[0] + middle, differences[0] - middle
    even = outer[0] + outer[1], inner[0] + turned, outer[0] - outer[1], inner[0] - turned
    odd = near + high, far - low, far + low, near - high
    return np.stack([one for pair in zip(even, odd, strict=True) for one in pair])

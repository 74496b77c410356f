"""The law for chroma, which files store once for several pixels, and which decoders spread over them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

from clip_client.dedup.proof.law import FLAT, fine_detail, worst_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clip_client.dedup.types import Floats, Pixels

_SHARE: Final = 0.2
"""The share of fine detail that is added to the limit of a flat block: five times that of luma, because chroma passes
through two averages and an interpolation that programs do in several ways."""
_SHARE_OF_LUMA: Final = 0.1
"""Share of luma's fine detail that counts as chroma's: rounded RGB carries one into the other."""
_MOST_OF_LUMA: Final = 500
"""Squared levels of luma's fine detail that count at most, as in a busy photo. Black type on white has 100 times more,
which would hide the colour of a word: green type of 21 px at quality 92 passed for grey."""
_TAPS: Final = np.array([1, 6, 1], np.float32) / 8
"""Effect of an average of two on pixels that a triangle of 1/4 and 3/4 has interpolated, as usual decoders do."""
_NO_TAPS: Final = np.ones(1, np.float32)


def worst_block_of_chroma(
    kept: Sequence[Pixels],
    duplicate: Sequence[Pixels],
    steps: Sequence[Floats],
    sampling: tuple[int, int],
    luma_detail: Floats,
) -> float:
    """Return how much of its limit the worst block of Cb and Cr uses, as :func:`~.law.worst_block` does.

    ``kept`` and ``duplicate`` are Cb and Cr, (H, W), at full size; ``luma_detail`` is that of the kept luma's blocks.
    """
    worst = 0.0
    for ours, theirs, of_plane in zip(kept, duplicate, steps, strict=True):
        stored, source = _averaged(theirs, sampling), _averaged(ours, sampling)
        plain = sampling == (1, 1)
        found = _worst(source if plain else _spread(source, sampling), stored, of_plane, sampling, luma_detail)
        if found > 1 and not plain:
            # Some programs repeat chroma in place of interpolating it, or never leave the stored planes.
            found = min(found, _worst(source, stored, of_plane, sampling, luma_detail))
        worst = max(worst, found)
        if worst > 1:
            break
    return worst


def _worst(kept: Any, duplicate: Any, steps: Floats, sampling: tuple[int, int], luma_detail: Floats) -> float:
    detail = fine_detail(kept)
    covered = np.minimum(_SHARE_OF_LUMA * _covered(luma_detail, sampling, detail.shape), np.float32(_MOST_OF_LUMA))
    return worst_block(kept, duplicate, steps, FLAT + np.float32(_SHARE) * (detail + covered))


def _averaged(plane: Pixels, sampling: tuple[int, int]) -> Any:
    """Average (H, W) over the pixels of each stored value; the last row and column stand for those that are missing."""
    across, down = sampling
    if sampling == (1, 1):
        return plane
    height, width = plane.shape
    if width % across or height % down:
        plane = cv2.copyMakeBorder(plane, 0, -height % down, 0, -width % across, cv2.BORDER_REPLICATE)  # type: ignore[assignment]
    size = -(-width // across), -(-height // down)
    return cv2.resize(plane.astype(np.float32), size, interpolation=cv2.INTER_AREA)


def _spread(plane: Any, sampling: tuple[int, int]) -> Any:
    """Blur averages as interpolation and a second average do, along each side that is stored at half size."""
    across, down = (_TAPS if step == 2 else _NO_TAPS for step in sampling)
    return cv2.sepFilter2D(plane, -1, across, down, borderType=cv2.BORDER_REPLICATE)


def _covered(luma_detail: Floats, sampling: tuple[int, int], shape: tuple[int, ...]) -> Floats:
    """Return the largest detail of the luma blocks that each chroma block, (rows, columns) = ``shape``, covers."""
    across, down = sampling
    rows, columns = shape
    missing = ((0, max(0, rows * down - luma_detail.shape[0])), (0, max(0, columns * across - luma_detail.shape[1])))
    whole = np.pad(luma_detail, missing, "edge")[: rows * down, : columns * across]
    found: Floats = whole.reshape(rows, down, columns, across).max(axis=(1, 3))
    return found

"""The law: no block of a duplicate, on its own grid, shows more than its encoder's rounding of the kept photo.

An encoder rounds each coefficient of a block of 8 x 8 to whole steps. If the kept photo, laid on the duplicate, is what
it rounded, up to a small error n, then what lies beyond the steps, squared and added up, is at most |n|^2, whatever the
steps are. Rounding to whole levels leaves an n of 0.2 squared levels in each coefficient, and a filter that is nearly
the right one 0.0003 to 0.0015 of the fine detail of the block; so a block differs only if it has far more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import cv2
import numpy as np

from clip_client.dedup.proof.steps import fast_coefficients, may_be_fast
from clip_client.dedup.types import Floats, Indices, Mask, Pixels

Plane = Pixels | Floats
"""(H, W), levels of 0 to 255."""
BLOCK: Final = 8
FLAT: Final = 64.0
"""Squared levels beyond the steps above which a flat block differs: one level for a whole block. It is 2.2 times what
rounding leaves: chi squared of 64 coefficients stays below 150 in all blocks of 999 of 1,000 photos, times 0.2."""
_LUMA_SHARE: Final = 0.04
"""The share of the fine detail that is added in a busy block: 12 times what the worst filter of those that fit leaves.
Of 902 true copies 95 in 100 stay below 0.84 of the limit; the least visible edit at quality 40 and finer is at 1.2."""
_SHARE_OF_SAME_SIZE: Final = 0.01
"""The share if both have one size: no filter changed anything, and what is left is the precision of a transform. With
0.04 a note of 26 levels between the lines of a page passes at quality 60, with 0.01 one of 15; of 119 copies by 18
tools 105 pass in place of 106."""
_CHROMA_SHARE: Final = 0.2
"""The share of chroma's fine detail: five times that of luma, because chroma passes through two averages and an
interpolation that programs do in several ways."""
_SHARE_OF_LUMA: Final = 0.1
"""Share of luma's fine detail that counts as chroma's: rounded RGB carries one into the other."""
_MOST_OF_LUMA: Final = 500
"""Squared levels of luma's fine detail that count at most, as in a busy photo. Black type on white has 100 times more,
which would hide the colour of a word: green type of 21 px at quality 92 passed for grey."""
_TAPS: Final = np.array([1, 6, 1], np.float32) / 8
"""Effect of an average of two on pixels that a triangle of 1/4 and 3/4 has interpolated, as usual decoders do."""
_NO_TAPS: Final = np.ones(1, np.float32)
_FINE: Final = 1.0
"""Pixels, the deviation of the Gauss filter that fine detail is the difference from."""
_FILLS: Final = 3
"""Times that what an encoder saw beyond the levels is estimated, each from the one before. With three, partial blocks
of 26 of 26 copies stay below the limit; without any, copies of pages reach 80 times it."""
_AT_ONCE: Final = 4096
"""Blocks that are looked at together, the most different first: a fake is found among the first."""
_TELL_THE_TRANSFORM: Final = 1_000
"""Blocks by which the encoder's transform is told."""
_STRIP: Final = 64
"""Rows that become floats together: they stay in the processor's cache."""
WHITE: Final = 255

_OF_ROW: Final = cv2.dct(np.eye(BLOCK), flags=cv2.DCT_ROWS).T
_BASIS: Final = np.kron(_OF_ROW, _OF_ROW).astype(np.float32)
"""(64, 64): the coefficients of a block b, (64,), are ``_BASIS @ b``, orthonormal, by rows of frequencies."""


def coefficients(blocks: Floats) -> Floats:
    """Transform blocks, (n, 64), into their coefficients, (n, 64) of float32."""
    return _times(blocks, _BASIS.T)


def _times(blocks: Floats, matrix: Floats) -> Floats:
    """Return ``blocks @ matrix``, 64 blocks at a time.

    For more, NumPy's OpenBLAS starts a thread on each core, which wait for each other in loops: on two busy cores 300
    blocks take 10 times the processor time. Several photos are compared at once anyway.
    """
    whole = len(blocks) - len(blocks) % BLOCK**2
    stacks = blocks[:whole].reshape(-1, BLOCK**2, BLOCK**2) @ matrix
    return np.concatenate([stacks.reshape(-1, BLOCK**2), blocks[whole:] @ matrix])


def whole_blocks(plane: Plane) -> Any:
    """Repeat the last row and column of (H, W) up to whole blocks."""
    height, width = plane.shape[:2]
    below, right = -height % BLOCK, -width % BLOCK
    if not below and not right:
        return plane
    return cv2.copyMakeBorder(plane, 0, below, 0, right, cv2.BORDER_REPLICATE)


def blocks_at(plane: Any, where: Indices) -> Floats:
    """Return the blocks, (n, 64), at some places of a plane of whole blocks, counted by rows."""
    columns = plane.shape[1] // BLOCK
    # A row of a block is copied as one item, in half the time of eight.
    rows = np.ascontiguousarray(plane).view(np.dtype((np.void, BLOCK * plane.itemsize)))
    down, across = np.divmod(where, columns)
    found = rows.reshape(len(plane) // BLOCK, BLOCK, columns)[down, :, across].view(plane.dtype)
    return cast("Floats", found.astype(np.float32))


def all_blocks(plane: Plane) -> Floats:
    """Return the blocks, (n, 64), of a plane, by rows."""
    whole = whole_blocks(plane)
    return blocks_at(whole, np.arange(whole.size // BLOCK**2))


def fine_detail(plane: Plane) -> Floats:
    """Return 64 times the mean squared fine detail, (rows, columns), of each block or its busiest neighbour.

    An error of the filter is as large as what lies beside a block.
    """
    whole = whole_blocks(plane)
    detail = _squared_difference(whole, cv2.GaussianBlur(whole, (0, 0), _FINE))
    return cast("Floats", cv2.dilate(detail, np.ones((3, 3), np.uint8), borderType=cv2.BORDER_REPLICATE))


def _squared_difference(first: Any, second: Any) -> Floats:
    """Return the sum of the squared differences of two planes in each block, (rows, columns)."""
    height, width = first.shape
    means = np.empty((height // BLOCK, width // BLOCK), np.float32)
    for top in range(0, height, _STRIP):
        rows = slice(top, min(top + _STRIP, height))
        difference = cv2.absdiff(first[rows], second[rows])
        squares = cv2.multiply(difference, difference, dtype=cv2.CV_32F)
        size = width // BLOCK, squares.shape[0] // BLOCK
        means[top // BLOCK : rows.stop // BLOCK] = cv2.resize(squares, size, interpolation=cv2.INTER_AREA)
    return means * np.float32(BLOCK**2)


def beyond_steps(kept: Floats, duplicate: Floats, steps: Floats, side: float = 0.5) -> Floats:
    """Return the sum of the squares of what lies beyond the steps (64,) in each of n blocks (n, 64), in levels.

    A coefficient may lie half a step from the duplicate's, and ``side`` steps on the side that is farther from zero.
    """
    difference = coefficients(kept - duplicate)
    allowed: Floats = steps / 2
    if side > 0.5:
        ours = coefficients(duplicate - 128)
        is_towards_zero = np.abs(ours + difference) > np.abs(ours)
        allowed = np.where(is_towards_zero, np.float32(side) * steps, allowed)
    beyond = np.maximum(np.abs(difference) - allowed, 0)
    return cast("Floats", np.einsum("ij,ij->i", beyond, beyond))


def beyond_all(kept: Floats, duplicate: Floats, steps: Floats, side: float, outside: Mask | None = None) -> Floats:
    """Return what lies beyond the steps in each block, (n,): the least by some estimates of what was cut off.

    Black and white cut off what the encoder's steps overshoot, and nothing is shown ``outside`` the picture: there the
    duplicate may have shown whatever the steps make of the kept photo.
    """
    outside = np.zeros(duplicate.shape, bool) if outside is None else outside
    found = beyond_steps(kept, duplicate, steps, side)
    is_cut = ((duplicate >= WHITE) | (duplicate <= 0) | outside).any(axis=1)
    if not is_cut.any():
        return found
    kept, duplicate, outside = kept[is_cut], duplicate[is_cut], outside[is_cut]
    least, estimate = found[is_cut], kept
    for _ in range(_FILLS):
        rounded = _times(np.rint(coefficients(estimate - 128) / steps) * steps, _BASIS) + 128
        estimate = np.where(duplicate >= WHITE, np.maximum(rounded, WHITE), duplicate)
        estimate = np.where(duplicate <= 0, np.minimum(rounded, 0), estimate)
        estimate = np.where(outside, rounded, estimate)
        least = np.minimum(least, beyond_steps(kept, estimate, steps, side))
    found[is_cut] = least
    return found


def worst_block(kept: Plane, duplicate: Plane, steps: Floats, limits: Floats, side: float = 0.5) -> float:
    """Return at most 1 if all blocks keep to their limits; above 1 the duplicate shows what the kept photo does not.

    Both planes are (H, W); ``steps`` is (64,), and ``limits`` (rows, columns of blocks) bounds what exceeds the steps.
    One transform must explain all blocks: the exact one, or, for the steps of TurboJPEG, libjpeg's fast one.
    """
    height, width = duplicate.shape
    ours, theirs = whole_blocks(kept), whole_blocks(duplicate)
    bounds = limits.ravel()
    # What lies beyond the steps is never more than the whole difference.
    shares = _squared_difference(ours, theirs).ravel() / bounds
    suspects = np.flatnonzero(shares > 1)
    suspects = suspects[np.argsort(-shares[suspects], kind="stable")]

    def worst_if(*, is_fast: bool) -> float:
        worst = 0.0
        for start in range(0, len(suspects), _AT_ONCE):
            where = suspects[start : start + _AT_ONCE]
            one, other = blocks_at(ours, where), blocks_at(theirs, where)
            if is_fast:  # a block from which the exact transform makes what the fast one made
                one = _times(fast_coefficients(one, steps), _BASIS) + 128
            found = beyond_steps(one, other, steps) / bounds[where]
            over = np.flatnonzero(found > 1)
            if len(over):
                outside = _outside(where[over], width, height, theirs.shape[1] // BLOCK)
                towards = 0.5 if is_fast else side
                found[over] = beyond_all(one[over], other[over], steps, towards, outside) / bounds[where[over]]
            worst = max(worst, float(found.max()))
            if worst > 1:
                break
        return worst

    worst = worst_if(is_fast=False)
    return min(worst, worst_if(is_fast=True)) if worst > 1 and may_be_fast(steps) else worst


def as_encoded(kept: Floats, stored: Floats, steps: Floats) -> Floats:
    """Return the coefficients, (n, 64), of the kept photo by the transform that leaves less beyond the steps (64,).

    Those given are exact, and ``stored`` are the duplicate's.
    """
    if not may_be_fast(steps):
        return kept

    def fast(exact: Floats) -> Floats:
        return fast_coefficients(_times(exact, _BASIS) + 128, steps)

    some = slice(None, None, len(kept) // _TELL_THE_TRANSFORM + 1)
    exact_beyond, fast_beyond = (
        np.maximum(np.abs(one - stored[some]) - steps / 2, 0) for one in (kept[some], fast(kept[some]))
    )
    return fast(kept) if np.vdot(fast_beyond, fast_beyond) < np.vdot(exact_beyond, exact_beyond) else kept


def _outside(where: Indices, width: int, height: int, columns: int) -> Mask:
    """Return which pixels of blocks, (n, 64), lie outside of a picture."""
    down, across = np.divmod(where, columns)
    rows = down[:, None] * BLOCK + np.repeat(np.arange(BLOCK), BLOCK)
    return (rows >= height) | (across[:, None] * BLOCK + np.tile(np.arange(BLOCK), BLOCK) >= width)


def luma_limits(detail: Floats, *, is_same_size: bool) -> Floats:
    """Return what may lie beyond the steps of luma in blocks of this fine detail, (rows, columns)."""
    return FLAT + np.float32(_SHARE_OF_SAME_SIZE if is_same_size else _LUMA_SHARE) * detail


def worst_block_of_chroma(
    kept: Sequence[Pixels],
    duplicate: Sequence[Pixels],
    steps: Sequence[Floats],
    sampling: tuple[int, int],
    luma_detail: Floats,
) -> float:
    """Return how much of its limit the worst block of Cb and Cr uses, as :func:`worst_block` does.

    ``kept`` and ``duplicate`` are Cb and Cr, (H, W), at full size, which files store once for several pixels;
    ``luma_detail`` is that of the kept luma's blocks.
    """
    across, down = sampling
    covered = np.maximum.reduceat(luma_detail, np.arange(0, luma_detail.shape[0], down), axis=0)
    covered = np.maximum.reduceat(covered, np.arange(0, luma_detail.shape[1], across), axis=1)
    of_luma = np.minimum(_SHARE_OF_LUMA * covered, np.float32(_MOST_OF_LUMA))
    worst = 0.0
    for ours, theirs, of_plane in zip(kept, duplicate, steps, strict=True):
        stored, sources, found = _averaged(theirs, sampling), [_averaged(ours, sampling)], np.inf
        if 2 in sampling:  # but some programs repeat chroma in place of interpolating it, or never leave stored planes
            taps, upright = (_TAPS if step == 2 else _NO_TAPS for step in sampling)
            sources.insert(0, cv2.sepFilter2D(sources[0], -1, taps, upright, borderType=cv2.BORDER_REPLICATE))
        for source in sources:
            limits = FLAT + np.float32(_CHROMA_SHARE) * (fine_detail(source) + of_luma)
            found = min(found, worst_block(source, stored, of_plane, limits))
            if found <= 1:
                break
        worst = max(worst, found)
        if worst > 1:
            break
    return worst


def _averaged(plane: Pixels, sampling: tuple[int, int]) -> Any:
    """Average (H, W) over the pixels of each stored value; the last row and column stand for those that are missing."""
    across, down = sampling
    if sampling == (1, 1):
        return plane
    height, width = plane.shape
    if width % across or height % down:
        plane = cv2.copyMakeBorder(plane, 0, -height % down, 0, -width % across, cv2.BORDER_REPLICATE)  # type: ignore[assignment]
    rows, columns = plane.shape[0] // down, plane.shape[1] // across
    averages = np.empty((rows, columns), np.float32)
    for top in range(0, rows, _STRIP):
        strip = plane[top * down : (top + _STRIP) * down].astype(np.float32)
        size = columns, len(strip) // down
        averages[top : top + _STRIP] = cv2.resize(strip, size, interpolation=cv2.INTER_AREA)
    return averages

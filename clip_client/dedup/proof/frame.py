"""Turn of the kept photo, and the part of it that the duplicate's pixels cover."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import cv2
import numpy as np

from clip_client.dedup.types import Floats, Pixels

_THUMBNAIL: Final = 32
"""Pixels on a side of what is compared to find the turn, averaged by area; fewer if the duplicate has fewer."""
_FIRST_STEP: Final = 4
"""Times that a large picture is reduced first: OpenCV averages whole numbers of pixels in a fifth of the time."""
_LEAST_CORRELATION: Final = 0.7
"""Least correlation of the thumbnails. True copies reach 0.96. It only nominates: 3 of 5,356 pairs of other photos are
above 0.9."""
_OTHER_ASPECT: Final = (0.02, 1.5)
"""Share of a side, and pixels, by which programs that round or fit sizes change the aspect at most."""
_DECIMALS: Final = 2
"""Decimals of a scale that a person names."""


class Turn(NamedTuple):
    """One of the eight ways to lay a rectangle on itself or on its side."""

    swaps: bool
    """Whether rows become columns, before the flips."""
    flip: int | None
    """As :func:`cv2.flip` counts: 0 upside down, 1 left to right, -1 both."""

    def of(self, picture: Any) -> Any:
        """Turn an array (H, W) or (H, W, 3)."""
        turned = cv2.transpose(picture) if self.swaps else picture
        return turned if self.flip is None else cv2.flip(turned, self.flip)

    def of_steps(self, steps: Floats) -> Floats:
        """Turn the steps of a block, (64,), by rows of frequencies: a flip only changes signs."""
        return steps.reshape(8, 8).T.ravel() if self.swaps else steps


UNTURNED: Final = Turn(swaps=False, flip=None)
_TURNS: Final = tuple(Turn(swaps, flip) for swaps in (False, True) for flip in (None, 0, 1, -1))


class Frame(NamedTuple):
    """The part of the turned photo that the duplicate covers, in its pixels; it may reach a few beyond the photo."""

    left: float
    top: float
    width: float
    height: float

    def is_all_of(self, size: tuple[int, int]) -> bool:
        return (self.width, self.height) == size


def best_turn(kept: Pixels, duplicate: Pixels) -> Turn | None:
    """Return the turn of ``kept`` that is most like ``duplicate``, both luma (H, W); None if none is like it."""
    side = min(_THUMBNAIL, *duplicate.shape)
    ours, theirs = _thumbnail(kept, side), _thumbnail(duplicate, side)
    shapes = {False: kept.shape, True: kept.shape[::-1]}
    turns = (turn for turn in _TURNS if _has_aspect(shapes[turn.swaps], duplicate.shape))
    correlations = {turn: _correlation(turn.of(ours), theirs) for turn in turns}
    best = max(correlations, key=correlations.__getitem__, default=None)
    return None if best is None or correlations[best] < _LEAST_CORRELATION else best


def _has_aspect(kept: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Tell whether one side fits if the other one is scaled to its size."""
    share, pixels = _OTHER_ASPECT
    return any(
        abs(kept[one] * shape[other] / kept[other] - shape[one]) <= max(share * shape[one], pixels)
        for one, other in ((0, 1), (1, 0))
    )


def _thumbnail(luma: Pixels, side: int) -> Floats:
    down, across = (side / of_side for of_side in luma.shape)
    if min(luma.shape) >= _FIRST_STEP**2 * side:
        # The last rows and columns may be too few for a step. The scales leave them out without a shift, which would
        # make a nearly symmetric picture most like its mirror image.
        height, width = (of_side // _FIRST_STEP for of_side in luma.shape)
        whole = luma[: height * _FIRST_STEP, : width * _FIRST_STEP]
        luma = cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
        down, across = _FIRST_STEP * down, _FIRST_STEP * across
    small: Floats = cv2.resize(luma, None, fx=across, fy=down, interpolation=cv2.INTER_AREA).astype(np.float32)
    small -= small.mean()
    return small


def _correlation(first: Any, second: Floats) -> float:
    norm = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float((first * second).sum()) / norm if norm > 0 else 1.0


def frames(kept: tuple[int, int], size: tuple[int, int]) -> list[Frame]:
    """Return the parts that a duplicate of ``size`` may cover of a turned photo; the whole is the first.

    If a rounded side changed the aspect ratio, programs either stretch the photo, or scale both sides alike and crop or
    pad at the end or at both ends (libvips, sharp, ``ImageOps.fit``). OpenCV keeps the scale that it was given, such as
    0.7, although it rounds both sides.
    """
    (width, height), (ours_width, ours_height) = size, kept
    found = [Frame(0, 0, ours_width, ours_height)]
    if ours_width * height != ours_height * width:
        for scale in (width / ours_width, height / ours_height):
            covers = width / scale, height / scale
            at_centre = (ours_width - covers[0]) * 0.5, (ours_height - covers[1]) * 0.5
            found += [Frame(0, 0, *covers), Frame(*at_centre, *covers)]
    named = round(width / ours_width, _DECIMALS)
    if named * ours_width != width and all(abs(named * ours - side) < 1 for ours, side in zip(kept, size, strict=True)):
        found.append(Frame(0, 0, width / named, height / named))
    return found

"""The proof of one pair. Only its answer says that a photo may move as a re-encoded copy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

from clip_client.dedup.proof.choice import likeliest_way
from clip_client.dedup.proof.chroma import worst_block_of_chroma
from clip_client.dedup.proof.direction import is_closer_than_a_source, lies_on_steps_of_kept
from clip_client.dedup.proof.frame import best_turn
from clip_client.dedup.proof.gate import NotProvedError, PhotoFile, check_grey
from clip_client.dedup.proof.law import fine_detail, luma_limits, stronger_share, worst_block
from clip_client.dedup.proof.lay import Layable
from clip_client.dedup.proof.planes import duplicate_planes, own_luma, readings, to_chroma, to_luma

if TYPE_CHECKING:
    from clip_client.dedup.proof.gate import Checked
    from clip_client.dedup.proof.planes import Duplicate, Reading
    from clip_client.dedup.types import Floats, Pixels

OTHER_FRAME: Final = "another frame"
OTHER_PIXELS: Final = "other pixels"
OTHER_LUMA: Final = "other luma"
OTHER_CHROMA: Final = "other chroma"

KEPT: Final = "kept"
DUPLICATE: Final = "duplicate"
EITHER: Final = "either"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Whether the kept photo shows all that the duplicate shows."""

    holds: bool
    reason: str = ""
    """Reason why it does not hold: a constant of this module or of :mod:`.gate`; empty if it does."""
    source: str = ""
    """If it holds: :data:`KEPT`; :data:`DUPLICATE`, as far as steps tell; or :data:`EITHER` if it holds both ways."""
    used: float = 0.0
    """Share of its limit that the worst block uses; above 1, that of the first such block. 0 if none was compared."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Laid:
    """Outcome of the law for one reading of the kept photo."""

    used: float
    reason: str = ""
    luma: Pixels | None = None
    """Luma of the kept photo on the duplicate's grid, (H, W)."""
    is_same_size: bool = False


def prove(kept: bytes, duplicate: bytes) -> Proof:
    """Prove from two encoded files that ``kept`` shows all that ``duplicate`` shows; see :func:`prove_file`."""
    return prove_file(PhotoFile(kept), PhotoFile(duplicate))


def prove_file(kept: PhotoFile, duplicate: PhotoFile) -> Proof:
    """Prove that ``kept`` shows all that ``duplicate`` shows.

    In no block of its own grid may the duplicate show what the kept photo, turned, reduced and laid on it, does not
    show to within the duplicate's own steps. If nothing is proved, the returned proof does not hold.
    """
    from preprocess_ensemble.imaging.quiet import quiet_libraries

    with quiet_libraries():
        try:
            duplicate.check_parts(kept)
            stored = duplicate_planes(duplicate.as_duplicate)
            best = _best_reading(kept, duplicate, stored)
        except NotProvedError as error:
            return Proof(holds=False, reason=error.reason)
        if best.used > 1:
            return Proof(holds=False, reason=best.reason, used=best.used)
        return Proof(holds=True, source=_source(kept, duplicate, stored, best), used=best.used)


def _best_reading(kept: PhotoFile, duplicate: PhotoFile, stored: Duplicate) -> _Laid:
    """Return what the law says of the kept photo by the first reading of which it holds, or by the nearest one."""
    found = []
    for reading in readings(kept.as_kept, duplicate.as_duplicate):
        found.append(_compared(reading, stored))
        if found[-1].used <= 1:
            break
    return min(found, key=lambda one: one.used)


def _compared(reading: Reading, stored: Duplicate) -> _Laid:
    luma = reading.luma()
    turn = best_turn(luma, stored.planes[0])
    if turn is None:
        return _Laid(used=np.inf, reason=OTHER_FRAME)
    luma, pixels = turn.of(luma), turn.of(reading.pixels)
    is_same_size = luma.shape[::-1] == stored.size
    if is_same_size and stored.pixels is not None:
        # Nothing but an edit changes a pixel of a lossless file; the law would let one level pass.
        is_same = reading.is_rgb and np.array_equal(pixels, stored.pixels)
        return _Laid(used=0.0 if is_same else np.inf, reason=OTHER_PIXELS, luma=luma, is_same_size=True)
    if not is_same_size:
        colours = Layable(pixels, stored.size)
        way = likeliest_way(Layable(luma, stored.size), colours if reading.is_rgb else None, stored)
        pixels = colours.whole(way)
        luma = to_luma(pixels) if reading.is_rgb else np.ascontiguousarray(pixels[..., 0])
    detail = fine_detail(luma)
    used = worst_block(
        luma, stored.planes[0], stored.steps[0], luma_limits(detail, is_same_size=is_same_size), stored.side
    )
    used = max(used, stronger_share(luma, stored.planes[0], stored.steps[0])) if used <= 1 else used
    if used > 1:
        return _Laid(used=used, reason=OTHER_LUMA)
    chroma: Any = cv2.split(to_chroma(pixels) if reading.is_rgb else pixels)[-2:]
    if len(stored.planes) == 1:
        check_grey(chroma)
    else:
        of_chroma = worst_block_of_chroma(chroma, stored.planes[1:], stored.steps[1:], stored.sampling, detail)
        if of_chroma > 1:
            return _Laid(used=of_chroma, reason=OTHER_CHROMA)
        used = max(used, of_chroma)
    return _Laid(used=used, luma=luma, is_same_size=is_same_size)


def _source(kept: PhotoFile, duplicate: PhotoFile, stored: Duplicate, laid: _Laid) -> str:
    """Return which of the two is the source, where the law holds."""
    assert laid.luma is not None
    is_closer = is_closer_than_a_source(laid.luma, stored.planes[0], stored.steps[0])
    if laid.is_same_size:
        on_kept = _on_steps_of_kept(kept.as_kept, stored.planes[0])
        may_be_later = is_closer or (on_kept is not None and lies_on_steps_of_kept(*on_kept))
        if is_closer is False and not may_be_later:
            return KEPT
        if not _holds(duplicate, kept):
            return DUPLICATE if may_be_later else KEPT
        return _source_of_equals(on_kept, stored, is_kept_closer=bool(is_closer))
    if is_closer is None:
        # A photo that shows no more than an enlarged copy of the duplicate was most likely enlarged.
        is_closer = _shows_more_pixels(kept, stored) and _holds(duplicate, kept)
    return DUPLICATE if is_closer else KEPT


def _on_steps_of_kept(kept: Checked, duplicate: Pixels) -> tuple[Pixels, Pixels, Floats] | None:
    """Return the luma of the kept photo as it is stored, that of the duplicate turned to it, and the steps, (64,)."""
    own = own_luma(kept)
    turn = None if own is None else best_turn(duplicate, own[0])
    return None if own is None or turn is None else (own[0], turn.of(duplicate), own[1])


def _source_of_equals(on_kept: tuple[Pixels, Pixels, Floats] | None, stored: Duplicate, *, is_kept_closer: bool) -> str:
    """Return the source of two files of one size, of which each shows all of the other.

    What was made from a file lies closer to its steps than the file lies to those of what was made from it.
    """
    is_duplicate_closer = None if on_kept is None else is_closer_than_a_source(on_kept[1], on_kept[0], on_kept[2])
    if is_kept_closer:
        return EITHER if is_duplicate_closer else DUPLICATE
    if is_duplicate_closer is not None:
        return KEPT if is_duplicate_closer else DUPLICATE
    if on_kept is None:
        return EITHER
    # The steps are too fine to tell, and the finer ones keep more.
    ours, theirs = on_kept[2].mean(), stored.steps[0].mean()
    return KEPT if ours < theirs else DUPLICATE if ours > theirs else EITHER


def _holds(kept: PhotoFile, duplicate: PhotoFile) -> bool:
    """Tell whether the law holds."""
    with suppress(NotProvedError):
        duplicate.check_parts(kept)
        return _best_reading(kept, duplicate, duplicate_planes(duplicate.as_duplicate)).used <= 1
    return False


def _shows_more_pixels(kept: PhotoFile, stored: Duplicate) -> bool:
    pixels = kept.as_kept.pixels
    return pixels is not None and pixels[..., 0].size > stored.planes[0].size

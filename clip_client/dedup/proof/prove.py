"""The proof of one pair. Only its answer says that a photo may move as a re-encoded copy."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.proof.choice import likeliest_way
from clip_client.dedup.proof.frame import best_turn
from clip_client.dedup.proof.gate import NotProvedError, PhotoFile, check_grey
from clip_client.dedup.proof.law import fine_detail, luma_limits, worst_block, worst_block_of_chroma
from clip_client.dedup.proof.lay import Layable, Window
from clip_client.dedup.proof.planes import as_stored, readings, to_chroma, to_luma
from clip_client.dedup.proof.sample import Sample

if TYPE_CHECKING:
    from clip_client.dedup.proof.gate import Checked
    from clip_client.dedup.proof.planes import Duplicate
    from clip_client.dedup.types import Floats, Pixels

OTHER_FRAME: Final = "another frame"
OTHER_PIXELS: Final = "other pixels"
OTHER_LUMA: Final = "other luma"
OTHER_CHROMA: Final = "other chroma"

KEPT: Final = "kept"
DUPLICATE: Final = "duplicate"
EITHER: Final = "either"

_CLEARLY: Final = 2.0
"""Share of its limit that a block of a part must use to refuse the whole. Pillow rounds the position of a part to 1e-4
pixels, which changes up to 0.5 % of its levels by one; this takes twelve in one block."""
_EDGE: Final = 2
"""Blocks along the edge of a part whose limits are unknown: fine detail is that of neighbours, by a filter of 3 pixels.
"""


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
class _Outcome:
    """What the law says by one reading of the kept photo."""

    used: float
    reason: str = ""
    sample: Sample | None = None
    """Of the kept photo laid on the duplicate, if the law holds; None if their pixels are equal."""
    size: tuple[int, int] = (0, 0)
    """Width and height of the turned kept photo, if the law holds."""


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
            stored, best = _best_reading(kept, duplicate)
        except NotProvedError as error:
            return Proof(holds=False, reason=str(error))
        if best.used > 1:
            return Proof(holds=False, reason=best.reason, used=best.used)
        return Proof(holds=True, source=_source(kept, duplicate, stored, best), used=best.used)


def _best_reading(kept: PhotoFile, duplicate: PhotoFile) -> tuple[Duplicate, _Outcome]:
    """Return what the law says by the first reading of the kept photo for which it holds, or by the nearest one."""
    duplicate.check_parts(kept)
    stored = as_stored(duplicate.as_duplicate)
    found = []
    for picture in readings(kept.as_kept, duplicate.as_duplicate):
        found.append(_compared(picture, kept.as_kept, stored))
        if found[-1].used <= 1:
            break
    return stored, min(found, key=lambda one: one.used)


def _compared(picture: Pixels, kept: Checked, stored: Duplicate) -> _Outcome:
    """Return what the law says of the kept photo; ``picture`` is what :func:`readings` yielded."""
    luma, is_rgb = to_luma(picture), picture.ndim == 3
    turn = best_turn(luma, stored.luma)
    if turn is None:
        return _Outcome(used=np.inf, reason=OTHER_FRAME)
    luma = turn.of(luma)
    photo = Layable(turn.of(picture) if is_rgb else luma, stored.size)
    whole, is_same_size = Window(0, 0, *stored.size), photo.size == stored.size
    way, parts = likeliest_way(luma, photo if is_rgb else None, stored)
    if is_same_size and stored.file.pixels is not None:
        # Nothing but an edit changes a pixel of a lossless file; the law would let one level pass.
        is_same = is_rgb and np.array_equal(photo.part(way, whole), stored.file.pixels)
        return _Outcome(used=0.0 if is_same else np.inf, reason=OTHER_PIXELS, size=photo.size)
    for part in (*parts, whole):
        laid = photo.part(way, part)
        laid_luma = part.of(luma) if is_same_size else to_luma(laid)
        detail = fine_detail(laid_luma)
        limits = luma_limits(detail, is_same_size=is_same_size)
        limits = limits if part is whole else _CLEARLY * _without_edge(limits)
        used = worst_block(laid_luma, part.of(stored.luma), stored.steps[0], limits, stored.side)
        if used > 1:
            return _Outcome(used=used if part is whole else _CLEARLY * used, reason=OTHER_LUMA)
    sample = Sample.of(laid_luma, stored.luma)
    used = max(used, sample.stronger_share(stored.steps[0]))
    if used > 1:
        return _Outcome(used=used, reason=OTHER_LUMA)
    if is_rgb:
        chroma = to_chroma(laid)
    else:
        chroma = [Layable(turn.of(plane), stored.size).part(way, whole) for plane in kept.stored_chroma()]
    if not chroma:
        return _Outcome(used=np.inf, reason=OTHER_CHROMA)
    if len(stored.steps) == 1:
        check_grey(chroma)
        chroma = []
    of_chroma = worst_block_of_chroma(chroma, stored.chroma(), stored.steps[1:], stored.sampling, detail)
    if of_chroma > 1:
        return _Outcome(used=of_chroma, reason=OTHER_CHROMA)
    return _Outcome(used=max(used, of_chroma), sample=sample, size=photo.size)


def _without_edge(limits: Floats) -> Floats:
    inner = np.full_like(limits, np.inf)
    inner[_EDGE:-_EDGE, _EDGE:-_EDGE] = limits[_EDGE:-_EDGE, _EDGE:-_EDGE]
    return inner


def _source(kept: PhotoFile, duplicate: PhotoFile, stored: Duplicate, best: _Outcome) -> str:
    """Return which of the two is the source, where the law holds."""
    is_closer = None if best.sample is None else best.sample.is_closer_than_a_source(stored.steps[0])
    if best.size != stored.size:
        if is_closer is None:
            # A photo that shows no more than an enlarged copy of the duplicate was most likely enlarged.
            is_closer = math.prod(best.size) > math.prod(stored.size) and _holds(duplicate, kept)
        return DUPLICATE if is_closer else KEPT
    own, own_steps = kept.as_kept.stored_luma or (None, stored.steps[0])
    of_kept = None if own is None else _turned_sample(stored.luma, own)
    may_be_later = is_closer or (of_kept is not None and of_kept.lies_on_steps(own_steps))
    if is_closer is False and not may_be_later:
        return KEPT
    if not _holds(duplicate, kept):
        return DUPLICATE if may_be_later else KEPT
    # Each shows all of the other. What was made from a file lies closer to its steps than the file lies to those of
    # what was made from it.
    if of_kept is None:
        return DUPLICATE if is_closer else EITHER
    is_duplicate_closer = of_kept.is_closer_than_a_source(own_steps)
    if is_closer:
        return EITHER if is_duplicate_closer else DUPLICATE
    if is_duplicate_closer is not None:
        return KEPT if is_duplicate_closer else DUPLICATE
    # The steps are too fine to tell, and the finer ones keep more.
    ours, theirs = own_steps.mean(), stored.steps[0].mean()
    return KEPT if ours < theirs else DUPLICATE if ours > theirs else EITHER


def _turned_sample(duplicate: Pixels, own: Pixels) -> Sample | None:
    """Take a sample of the luma of the duplicate on that of the kept photo as it is stored, (H, W) each."""
    turn = best_turn(duplicate, own)
    turned = None if turn is None else turn.of(duplicate)
    return None if turned is None or turned.shape != own.shape else Sample.of(turned, own)


def _holds(kept: PhotoFile, duplicate: PhotoFile) -> bool:
    with suppress(NotProvedError):
        return _best_reading(kept, duplicate)[1].used <= 1
    return False

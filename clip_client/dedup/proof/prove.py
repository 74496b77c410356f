"""The proof of one pair. Only its answer says that a photo may move as a re-encoded copy."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from clip_client.dedup.proof.choice import likeliest_way
from clip_client.dedup.proof.frame import UNTURNED, Turn, best_turn
from clip_client.dedup.proof.gate import Checked, NotProvedError, PhotoFile, check_grey
from clip_client.dedup.proof.law import as_encoded, fine_detail, luma_limits, worst_block, worst_block_of_chroma
from clip_client.dedup.proof.lay import Layable, Window
from clip_client.dedup.proof.planes import Duplicate, as_stored, readings, to_chroma, to_luma
from clip_client.dedup.proof.sample import FOLLOWS, OWN, Sample
from clip_client.dedup.types import Floats, Pixels

OTHER_FRAME: Final = "another frame"
OTHER_PIXELS: Final = "other pixels"
OTHER_LUMA: Final = "other luma"
OTHER_CHROMA: Final = "other chroma"

KEPT: Final = "kept"
DUPLICATE: Final = "duplicate"
EITHER: Final = "either"
NEITHER: Final = "neither"

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
    """If it holds, as far as steps tell: :data:`KEPT`, or :data:`DUPLICATE`. Of two for which steps tell nothing, the
    one with the finer steps; :data:`EITHER` if the steps are equal, :data:`NEITHER` if each has finer ones, or one may
    be a changed copy of the other."""
    used: float = 0.0
    """Share of its limit that the worst block uses; above 1, that of the first such block. 0 if none was compared."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Outcome:
    """What the law says by one reading of the kept photo."""

    used: float
    reason: str = ""
    sample: Sample | None = None
    """Of the kept photo laid on the duplicate, if the law holds."""
    size: tuple[int, int] = (0, 0)
    """Width and height of the turned kept photo, if the law holds."""


def prove(kept: bytes, duplicate: bytes) -> Proof:
    """Prove from two encoded files that ``kept`` shows all that ``duplicate`` shows; see :func:`prove_file`."""
    return prove_file(PhotoFile(kept), PhotoFile(duplicate))


def prove_file(kept: PhotoFile, duplicate: PhotoFile) -> Proof:
    """Prove that ``kept`` shows all that ``duplicate`` shows.

    The law: in no block of its own grid may the duplicate show what the kept photo, turned, reduced and laid on it,
    does not show to within the duplicate's own steps. If nothing is proved, the returned proof does not hold.
    """
    from preprocess_ensemble.imaging.quiet import quiet_libraries

    with quiet_libraries():
        try:
            stored, best = _best_reading(kept, duplicate)
        except NotProvedError as error:
            return Proof(holds=False, reason=str(error))
        if best.used > 1:
            return Proof(holds=False, reason=best.reason, used=best.used)
        try:
            source = _source(kept, duplicate, stored, best)
        except NotProvedError:  # the kept photo may be made from the duplicate, but cannot be compared as one
            source = NEITHER
        return Proof(holds=True, source=source, used=best.used)


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
        sample = Sample.of(luma, stored.luma)
        return _Outcome(used=0.0 if is_same else np.inf, reason=OTHER_PIXELS, sample=sample, size=photo.size)
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
    steps = stored.steps[0]
    stronger = sample.stronger_share(steps)
    if stronger > 1:
        stronger = sample._replace(laid=as_encoded(sample.laid, sample.stored, steps)).stronger_share(steps)
    used = max(used, stronger)
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
    """Return from which of two files the other was made, if the law holds: a value of :attr:`Proof.source`."""
    laid, theirs, is_same_size = best.sample, stored.steps[0], best.size == stored.size
    assert laid is not None
    back = _laid_back(kept, duplicate) if is_same_size else None
    if back is None:
        is_later = laid.is_closer_than_a_source(theirs)
        if is_later is None and is_same_size:
            return EITHER if _holds(duplicate, kept) else KEPT
        if is_later is None:
            # A photo that shows no more than an enlarged copy of the duplicate was most likely enlarged.
            is_later = math.prod(best.size) > math.prod(stored.size) and _holds(duplicate, kept)
        return DUPLICATE if is_later else KEPT
    beneath, ours, turn = back
    is_near = beneath.is_closer_than_a_source(ours, turn.of_steps(theirs))
    is_other_near = laid.is_closer_than_a_source(theirs, turn.of_steps(ours))
    if bool(is_near) != bool(is_other_near):
        return KEPT if is_near else DUPLICATE
    share, other = 1.0, 1.0
    if turn == UNTURNED:  # both have the same blocks: values become values
        share, other = laid.own_share(theirs, ours), beneath.own_share(ours, theirs)
    if (share <= FOLLOWS) != (other <= FOLLOWS):
        return KEPT if share <= FOLLOWS else DUPLICATE
    missed, other_missed = laid.missed(theirs), beneath.missed(ours)
    if missed.is_clearly_less(other_missed):
        return KEPT
    if other_missed.is_clearly_less(missed):
        return DUPLICATE
    # One may be made from the other with changes. A turned one may show all of the other, but nobody wants it instead.
    return NEITHER if turn != UNTURNED or min(share, other) < OWN else _finer(kept, stored)


def _laid_back(kept: PhotoFile, duplicate: PhotoFile) -> tuple[Sample, Floats, Turn] | None:
    """Return the duplicate laid on a kept JPEG of its size, the steps of that, and how it was turned."""
    own = kept.as_kept.stored_luma
    if own is None:
        return None
    luma = to_luma(next(readings(duplicate.as_kept, kept.as_duplicate)))
    turn = best_turn(luma, own[0])
    if turn is None or turn.of(luma).shape != own[0].shape:
        return None
    return Sample.of(turn.of(luma), own[0]), own[1], turn


def _finer(kept: PhotoFile, stored: Duplicate) -> str:
    """Return which of two photos of one size has no coarser steps: it shows the other to within smaller ones."""
    ours, theirs = as_stored(kept.as_duplicate).coarseness(), stored.coarseness()
    both = min(len(ours), len(theirs))  # a grey one has luma alone
    is_finer, is_coarser = (ours[:both] < theirs[:both]).any(), (ours[:both] > theirs[:both]).any()
    if is_finer:
        return NEITHER if is_coarser else KEPT
    return DUPLICATE if is_coarser else EITHER


def _holds(kept: PhotoFile, duplicate: PhotoFile) -> bool:
    with suppress(NotProvedError):
        return _best_reading(kept, duplicate)[1].used <= 1
    return False

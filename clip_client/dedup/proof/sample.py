"""What the coefficients of some blocks tell about two whole photos: which one is the source, or that one was sharpened.

Only steps of :data:`_COARSE` levels tell something, because the rounding of levels hides finer ones.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from clip_client.dedup.proof.law import BLOCK, WHITE, as_encoded, blocks_at, coefficients
from clip_client.dedup.types import Floats, Mask, Pixels

_BLOCKS: Final = 20_000
_COARSE: Final = 6
_FEWEST: Final = 100
"""Least number of coefficients with coarse steps that tells something."""
_MOST_STRONGER: Final = 0.015
"""Share of the coefficients of coarse steps that lie beyond half a step by more than a level. 334 copies by 10 tools
reach 0.0115; noise and sharpening that stayed below the limit of every block had at least 0.020."""
_LEAST_SPREAD: Final = 0.7
"""A source lies evenly between the steps of its copy: its spread is 1. What was made from the copy, with finer steps,
lies near them: its spread is the square of the ratio of the steps. With 0.8, 11 of 270 true copies were taken for
sources, with 0.7 seven, five of which hold the same."""
_EVEN: Final = 3
"""Times that steps must be as coarse as those of a JPEG for its values to lie evenly between them: of steps of 7 and 9,
most coefficients are 1 in both files, 2 levels apart, which is a spread of 0.98 or 0.59, whichever was first."""
_ROUNDING: Final = 2 * 12**-0.5
"""Levels, twice the deviation of a coefficient whose pixels were rounded to levels: a value so near to the middle
between two steps may become either."""
_ROUNDS_UP_FROM: Final = (1 / 2, 5 / 8)
"""Fraction of a step from which an encoder rounds up, away from 0: that of most encoders, and of ffmpeg."""
FOLLOWS: Final = 0.05
"""Share of the values that may be missed. Of 145 copies by standard encoders none misses more than 0.005, of 144 by
ffmpeg five miss more than this; half of the files made beside the other miss over 0.15."""
_MORE: Final = 2.0
"""Times the share of missed values from which on one file follows from the other, but not the reverse."""
_BY_CHANCE: Final = 3
"""Values that rounding may decide in one direction alone: beside turned copies that lost nothing, 1 and 0 are missed,
or 2 and 6."""
OWN: Final = 0.75
"""Share of what chance makes from which on values are a file's own. Copies have at most 0.02, half of the changed ones
less than 0.35, and half of the files made beside the other more than 0.6."""


class Missed(NamedTuple):
    """Number of values of one photo that do not follow from the other one, and of those that could tell it."""

    wrong: int
    of: int

    def is_clearly_less(self, other: Missed) -> bool:
        """Tell whether what was compared follows, but what ``other`` counts does not."""
        expected = _MORE * self.wrong * other.of / max(1, self.of) + _BY_CHANCE
        is_enough = min(self.of, other.of) >= _FEWEST
        return is_enough and self.wrong <= FOLLOWS * self.of and other.wrong > expected


class Sample(NamedTuple):
    """Coefficients, (n, 64), of some blocks of the luma of two photos, one of which has known steps."""

    laid: Floats
    """Of the photo that was laid on the other one."""
    stored: Floats
    is_whole: Mask
    """(n,): black and white cut nothing off the stored block."""

    @classmethod
    def of(cls, laid: Pixels, stored: Pixels) -> Sample:
        """Take whole blocks of two planes (H, W), spread evenly over the picture."""
        height, width = (side // BLOCK * BLOCK for side in stored.shape)
        count = height * width // BLOCK**2
        where = np.unique(np.linspace(0, max(0, count - 1), min(count, _BLOCKS)).astype(np.intp))
        ours, theirs = (blocks_at(plane[:height, :width], where) for plane in (laid, stored))
        is_whole = ((theirs > 0) & (theirs < WHITE)).all(axis=1)
        return cls(coefficients(ours - 128), coefficients(theirs - 128), is_whole)

    def _tells(self, steps: Floats) -> Mask:
        """Return which coefficients were not rounded to 0 and have coarse ``steps`` (64,)."""
        return np.abs(self.stored) > np.where(steps >= _COARSE, steps / 2, np.inf)

    def stronger_share(self, steps: Floats) -> float:
        """Return the share of the coefficients that are stronger in the stored photo, divided by the limit.

        The limit of a block leaves room for a filter that does not fit. A duplicate that was sharpened as a whole, or
        that has noise of its own, may use this room in every block: most of its coefficients then lie beyond the same
        end of their step. 0 if too few steps are coarse.
        """
        tells = self._tells(steps) & self.is_whole[:, None]
        tells[:, 0] = False  # levels of a plain block are rounded all alike
        if tells.sum() < _FEWEST:
            return 0.0
        stronger = np.sign(self.stored) * (self.stored - self.laid) > steps / 2 + 1
        return float(stronger[tells].mean()) / _MOST_STRONGER

    def is_closer_than_a_source(self, steps: Floats, own: Floats | None = None) -> bool | None:
        """Tell whether the laid photo lies closer to the steps of the stored one than a source does.

        None if too few steps are coarse, or too few are beside the laid photo's ``own``. The spread is 12 times the
        mean square of the distance in steps, which is cut at a half.
        """
        tells = self._tells(steps if own is None else np.where(steps >= _EVEN * own, steps, 0))
        if tells.sum() < _FEWEST:
            return None
        distances = np.clip((self.laid - self.stored) / steps, -0.5, 0.5)[tells]
        return float(12 * np.mean(distances**2)) < _LEAST_SPREAD

    def missed(self, steps: Floats) -> Missed:
        """Count the stored values of ``steps`` that do not follow from the laid photo.

        What an encoder makes of a photo follows from that photo, unless rounding decides; but a photo with values of
        its own does not follow from a copy that has lost them. Levels of blocks tell nothing: a brighter copy has
        others.
        """
        laid = (as_encoded(self.laid, self.stored, steps) / steps)[:, 1:]
        found, counts = np.rint(self.stored / steps)[:, 1:], []
        may_tell = (found != 0) | (np.abs(laid) >= min(_ROUNDS_UP_FROM))
        bounds = np.broadcast_to(_ROUNDING / steps[1:], laid.shape)[may_tell]
        laid, found = laid[may_tell], found[may_tell]
        for up in _ROUNDS_UP_FROM:
            raised = np.abs(laid) + 1 - up
            follows = np.copysign(np.floor(raised), laid)
            tells = ((found != 0) | (follows != 0)) & (np.abs(raised - np.rint(raised)) > bounds)
            counts.append(Missed(int((found != follows)[tells].sum()), int(tells.sum())))
        return min(counts, key=lambda one: one.wrong / max(1, one.of))

    def own_share(self, steps: Floats, own: Floats) -> float:
        """Return how many stored values of ``steps`` are others than those nearest to the laid JPEG of ``own`` steps.

        Counted are values in whose place others would give the same value of the laid JPEG, as share of the number that
        chance makes. 1, as of values of its own, if there are too few.
        """
        places = np.flatnonzero(own > steps)
        places = places[places > 0]
        ratio = own[places] / steps[places]
        laid, stored = as_encoded(self.laid, self.stored, steps)[:, places], self.stored[:, places]
        laid, middle, half = laid / steps[places], np.rint(self.laid[:, places] / own[places]) * ratio, ratio / 2
        follows = np.rint(laid)
        is_one_of = np.floor(middle + half) > np.ceil(middle - half)
        tells = is_one_of & ((0.5 - np.abs(laid - follows)) * steps[places] > _ROUNDING)
        nearest = np.minimum(follows + 0.5, middle + half) - np.maximum(follows - 0.5, middle - half)
        by_chance = (1 - np.clip(nearest / ratio, 0, 1))[tells].sum()
        found = (np.rint(stored / steps[places]) != follows)[tells].sum()
        return float(found / by_chance) if tells.sum() >= _FEWEST else 1.0

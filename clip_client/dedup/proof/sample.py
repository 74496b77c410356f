"""What the coefficients of some blocks tell about two whole photos: which one is the source, or that one was sharpened.

Only steps of :data:`_COARSE` levels tell something, because the rounding of levels hides finer ones.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from clip_client.dedup.proof.law import BLOCK, WHITE, blocks_at, coefficients
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
_LEAST_STEP: Final = 3
"""Levels. Rounding hides which of two finer steps a coefficient has."""
_ROUNDING: Final = 12**-0.5
"""Levels, the deviation of a coefficient whose pixels were rounded to levels."""
_OTHERS: Final = (0.1, 0.15)
"""Share of other values than the one that coarser steps give: at most, if made from them; at least, if their source.
Of 65 re-saves at slightly finer steps nine in ten have less than 0.1, and 98 in 100 less than 0.15; of 73 sources of
slightly coarser copies one has less than 0.1, and 95 in 100 have more than 0.15. Between the two, nothing is told."""


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

    def lies_on_steps(self, steps: Floats, own: Floats) -> float | None:
        """Return how surely the laid photo lies on the steps of the stored one, as one does that this was made from.

        From 0 to 1; None if too few coefficients tell it. Only those tell that become the same in the coarser ``own``
        steps as others do, because what was made from coarse steps has one value for each of them.
        """
        with np.errstate(invalid="ignore"):
            ratio = np.where((steps >= _LEAST_STEP) & (own > steps), own / steps, np.nan)
        found, coarse = np.rint(self.stored / steps), np.rint(self.laid / own)
        made, size = np.rint(coarse * ratio), np.abs(coarse)
        is_one_of_several = np.floor((size + 0.5) * ratio) > np.maximum(np.ceil((size - 0.5) * ratio), 0)
        is_clear = (0.5 - np.abs(coarse * ratio - made)) * steps > _ROUNDING
        tells = is_one_of_several & is_clear & (found != 0)
        tells[:, 0] = False
        if tells.sum() < _FEWEST:
            return None
        least, most = _OTHERS
        return float(np.clip((most - (found != made)[tells].mean()) / (most - least), 0, 1))

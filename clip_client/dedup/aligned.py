"""The tests that two photos passed, one of which is their alignment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from clip_client.dedup.types import ALTERED, RE_ENCODED

Transform: TypeAlias = tuple[float, float, float, float, float, float]
"""A 2 x 3 matrix by rows: from the pixels of one photo to those of another, both upright, at full size."""

MADE_LATER: Final = "its compression seems later"
LACKS_DETAIL: Final = "it lacks detail"
"""Doubt about a photo that is proved to be made from another one, if the proof names no difference."""
UNTOLD: Final = "which of the two shows more cannot be told"
UNPROVED: Final = "it is not proved to show all that this file shows"
"""Doubt about a photo for which the law of :mod:`clip_client.dedup.proof` does not hold or cannot be tested."""
PUT_INTO: Final = "it shows the picture inside a border, a screenshot or the like"
"""Doubt about a photo that contains another photo, with a seam around it."""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Position of a duplicate on the kept photo, and the differences."""

    tier: str
    """:data:`~clip_client.dedup.types.RE_ENCODED`, ``EDITED`` or ``ALTERED``."""
    changes: tuple[str, ...]
    """Changes from the kept photo to the duplicate, in words, such as ``"cropped to 84 %"``."""
    lost: tuple[str, ...] = ()
    """Parts that only the duplicate has, in words, such as ``"colour"`` or ``"45% of the picture"``."""
    doubts: tuple[str, ...] = ()
    """Reasons, in words, why this alignment moves no photo, such as a border around the picture."""
    transform: Transform
    """The position of the duplicate on the kept photo."""
    residual: float = 0.0
    """1 minus the 10th percentile of the local correlation over the overlap; 0 for a proved copy."""
    region: tuple[float, float, float, float] | None = None
    """Left, top, width and height of the region that differs, as shares of the kept picture; None if none differs."""
    region_share: float = 0.0

    @property
    def loses_nothing(self) -> bool:
        """Whether the duplicate can move, as far as the alignment tells."""
        return self.tier != ALTERED and not self.lost and not self.doubts

    @property
    def is_proved(self) -> bool:
        """Whether :mod:`clip_client.dedup.proof` holds: one photo shows all of the other, whichever is the source."""
        return self.tier == RE_ENCODED and not {*self.doubts} - {MADE_LATER, UNTOLD}


@dataclass(frozen=True, kw_only=True)
class Match:
    """One test that two photos passed."""

    test: str
    """``"bytes"``, ``"pixels"``, ``"alignment"``, ``"perceptual hash"`` or ``"embedding"``."""
    value: float
    """Differing bits for a perceptual hash, cosine similarity for an embedding, else 1."""
    threshold: float
    """The least ``value`` that passes; for a perceptual hash, the greatest."""
    alignment: Alignment | None = None

    def __str__(self) -> str:
        if self.test == "embedding":
            return f"embedding: cosine {self.value:.4f} (at least {self.threshold:g})"
        if self.test == "perceptual hash":
            return f"perceptual hash: {self.value:g} of 64 bits differ (at most {self.threshold:g})"
        if self.alignment is not None:
            changes = "".join(f", {change}" for change in self.alignment.changes)
            return f"alignment: {self.alignment.tier}{changes}"
        return f"same {self.test}"

    def to_mapping(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

"""Checks at full size what the alignment of two small pictures says: that the kept photo holds all of the duplicate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clip_client.dedup.alignment.better_file import FileFacts, doubt_about
from clip_client.dedup.alignment.differences import Differences
from clip_client.dedup.alignment.overlay import Overlay
from clip_client.dedup.types import ALTERED, RE_ENCODED

if TYPE_CHECKING:
    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.alignment.differences import Map
    from clip_client.dedup.alignment.keypoints import Pixels


@dataclass(frozen=True, kw_only=True, eq=False)
class FullPhoto:
    """A decoded photo, and what its file says."""

    pixels: Pixels
    """(H, W, 3): upright, RGB, in the colours of both photos."""
    facts: FileFacts


def check_at_full_size(
    kept: FullPhoto, duplicate: FullPhoto, alignment: Alignment, *, is_source: bool = False, each: Map = map
) -> Alignment:
    """Return the ``alignment`` of ``duplicate`` with ``kept``, corrected by what shows at full size.

    It becomes ``ALTERED`` if a place differs by more than compression and resizing explain, and gets a doubt unless
    ``kept`` is proved to hold all that ``duplicate`` shows, or known to be its source (``is_source``). ``each`` maps a
    function over tiles.
    """
    overlay = Overlay(kept.pixels, duplicate.pixels, alignment.transform)
    seen = Differences(overlay)
    if alignment.tier == RE_ENCODED and overlay.is_whole and kept.facts.is_lossless and duplicate.facts.is_lossless:
        found = seen.differing_pixels()  # nothing but an edit changes a pixel of a lossless file
    else:
        found = seen.outliers(each)
    if found is not None:
        return replace(alignment, tier=ALTERED, region=found.region, region_share=found.share)
    doubt = "" if is_source else doubt_about(kept.facts, duplicate.facts, overlay, seen)
    return replace(alignment, doubts=(doubt,)) if doubt else alignment

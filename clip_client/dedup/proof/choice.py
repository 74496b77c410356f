"""Chooses the filter and the frame by which a duplicate was most likely made, on a few windows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.proof.frame import frames
from clip_client.dedup.proof.law import BLOCK, beyond_all, blocks_at, fine_detail, whole_blocks
from clip_client.dedup.proof.lay import FILTERS, LINEAR_LIGHT, MIP, Layable, Way, Window
from clip_client.dedup.proof.planes import to_luma

if TYPE_CHECKING:
    from clip_client.dedup.proof.planes import Duplicate
    from clip_client.dedup.types import Pixels

_WINDOW: Final = 160
"""Pixels on a side of a window."""
_BUSIEST: Final = 4
"""Windows with the most fine detail. The corners, which tell one frame from another, are taken, too."""
_POOR: Final = 0.1
"""If even the best filter leaves more squared levels a pixel beyond the steps, filters of linear light are tried."""


def likeliest_way(luma: Layable, colours: Layable | None, duplicate: Duplicate) -> Way:
    """Return the way of laying the kept photo that leaves the least beyond the duplicate's steps.

    ``luma`` is the kept photo's Y, ``colours`` its RGB. Whole differences would prefer blurring filters.
    """
    windows = _windows(duplicate.planes[0])

    def cost(way: Way) -> float:
        beyond = pixels = 0.0
        for window in windows:
            laid = to_luma(colours.part(way, window)) if way.in_linear_light and colours else luma.part(way, window)
            there = duplicate.planes[0][window.top : window.bottom, window.left : window.right]
            ours, theirs = whole_blocks(laid), whole_blocks(there)
            every = np.arange(theirs.size // BLOCK**2)
            found = beyond_all(blocks_at(ours, every), blocks_at(theirs, every), duplicate.steps[0], duplicate.side)
            beyond += float(found.sum())
            pixels += theirs.size
        return beyond / pixels

    whole, *others = frames(luma.size, duplicate.size)
    costs = {way: cost(way) for name in FILTERS if luma.can(way := Way(name, whole))}
    if colours is not None and min(costs.values()) > _POOR:
        costs |= {way: cost(way) for name in LINEAR_LIGHT for way in [Way(name, whole, in_linear_light=True)]}
    # All filters again: on a wrong frame, those that blur are the best.
    ways = [way._replace(frame=frame) for frame in others for way in costs if way.filter != MIP]
    costs |= {way: cost(way) for way in ways if luma.can(way)}
    return min(costs, key=costs.__getitem__)


def _windows(luma: Pixels) -> list[Window]:
    """Return some windows, on whole blocks of a plane (H, W); the whole plane where it is small."""
    height, width = luma.shape
    detail = fine_detail(luma)
    found = []
    for top in range(0, max(height - _WINDOW + 1, 1), _WINDOW):
        for left in range(0, max(width - _WINDOW + 1, 1), _WINDOW):
            window = Window(left, top, min(left + _WINDOW, width), min(top + _WINDOW, height))
            down, across = (slice(start // BLOCK, (start + _WINDOW) // BLOCK) for start in (top, left))
            found.append((float(detail[down, across].mean()), window))
    busiest = [window for _, window in sorted(found, reverse=True)[:_BUSIEST]]
    if min(width, height) <= 2 * _WINDOW:
        return busiest
    right, bottom = (side // BLOCK * BLOCK - _WINDOW for side in (width, height))
    corners = [Window(left, top, left + _WINDOW, top + _WINDOW) for left in (0, right) for top in (0, bottom)]
    return list(dict.fromkeys([*busiest, *corners]))

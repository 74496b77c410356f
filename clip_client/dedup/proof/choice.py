"""Chooses the filter and the frame by which a duplicate was most likely made, on a few windows of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from heapq import heappop, heappush
from typing import Final

from clip_client.dedup.proof.frame import frames
from clip_client.dedup.proof.law import BLOCK, all_blocks, beyond_all, fine_detail
from clip_client.dedup.proof.lay import BOX, FILTERS, LINEAR_LIGHT, Layable, Way, Window
from clip_client.dedup.proof.planes import Duplicate, to_luma
from clip_client.dedup.types import Pixels

_WINDOW: Final = 160
"""Pixels on a side of a window."""
_BUSIEST: Final = 4
"""Windows with the most fine detail. The corners, which tell one frame from another, are taken, too."""
_POOR: Final = 0.1
"""If even the best filter leaves more squared levels a pixel beyond the steps, filters of linear light are tried."""


def likeliest_way(luma: Pixels, colours: Layable | None, duplicate: Duplicate) -> tuple[Way, list[Window]]:
    """Return the way of laying the kept photo that leaves the least beyond the duplicate's steps.

    ``luma`` is the kept photo's Y, ``colours`` its RGB. Whole differences would prefer blurring filters. Also return
    windows to look at first, because a photo that is no copy most likely shows more there; none if it shows no more.
    """
    photo = Layable(luma, duplicate.size)
    whole, *others = frames(photo.size, duplicate.size)
    if photo.size == duplicate.size:
        (width, height), middle = photo.size, photo.size[1] // 2 // BLOCK * BLOCK
        strip = Window(0, middle, width, middle + _WINDOW)
        return Way(FILTERS[0], whole), [strip] if height > 4 * _WINDOW else []
    windows = _windows(duplicate.luma)
    stored = {window: all_blocks(window.of(duplicate.luma)) for window in windows}

    @cache
    def beyond(way: Way, window: Window) -> float:
        laid = to_luma(colours.part(way, window)) if way.filter in LINEAR_LIGHT and colours else photo.part(way, window)
        return float(beyond_all(all_blocks(laid), stored[window], duplicate.steps[0], duplicate.side).sum())

    def best(ways: Sequence[Way]) -> tuple[float, Way]:
        """Add up windows of the best way so far: most ways leave more in one window than the best one in all."""
        queue = [(0.0, number, 0) for number in range(len(ways))]
        while True:
            cost, number, seen = heappop(queue)
            if seen == len(windows):
                return cost, ways[number]
            heappush(queue, (cost + beyond(ways[number], windows[seen]), number, seen + 1))

    much = _POOR * sum(blocks.size for blocks in stored.values())
    ways = [way for name in FILTERS if photo.can(way := Way(name, whole))]
    cost, way = best(ways)
    if colours is not None and cost > much:
        ways += [Way(name, whole) for name in LINEAR_LIGHT]
    # All filters again: on a wrong frame, those that blur are the best.
    ways += [one for frame in others for before in ways if photo.can(one := before._replace(frame=frame))]
    cost, way = best(ways)
    # A box ends abruptly, so rounding may give a window other pixels than the whole.
    return way, windows if cost > much and way.filter != BOX else []


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

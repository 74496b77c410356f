"""Very large images take turns, so that a batch of them does not need memory for all at once."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Final

__all__ = ("taking_turns",)

_LARGE_PIXELS: Final = 32_000_000
"""More than most cameras deliver; 0.4 GB with alpha, which is the most that each thread takes at one time."""

_turn: Final = threading.Lock()


def taking_turns(pixels: int) -> AbstractContextManager[object]:
    """Hold while an image is decoded that needs memory for so many ``pixels``; all but large ones pass at once."""
    return _turn if pixels > _LARGE_PIXELS else nullcontext()

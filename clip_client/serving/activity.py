"""Tells a busy server from a frozen one while it does not answer its canary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

COMPUTES: Final = 0.02
"""Share of one core from which a server counts as working: idle it uses 0.006, and a fiftieth is still progress."""
SAMPLE_S: Final = 1.0


class Activity:
    """When a server last computed and last finished a request, in seconds of the event loop's clock."""

    def __init__(self, computed_s: Callable[[], float], finished: Callable[[], Awaitable[float | None]]) -> None:
        """``finished`` returns the number of finished requests, or None if it is unknown."""
        self._read_computed_s, self._ask_finished = computed_s, finished
        self._finished: float | None = None
        self.reset()

    def reset(self) -> None:
        """Start again after an answered canary; only the count of finished requests is kept."""
        self._computed_at = self._finished_at = self._sampled_at = asyncio.get_running_loop().time()
        self._computed_s = self._read_computed_s()

    async def sample(self) -> tuple[float, float]:
        """Return the seconds without any work, and those without a finished request."""
        finished = None
        with suppress(TimeoutError):  # a frozen server never says how much it has finished
            finished = await asyncio.wait_for(self._ask_finished(), SAMPLE_S)
        now, computed_s = asyncio.get_running_loop().time(), self._read_computed_s()
        if computed_s - self._computed_s > COMPUTES * max(SAMPLE_S, now - self._sampled_at):  # housekeeping is less
            self._computed_at = now
        self._sampled_at, self._computed_s = now, computed_s
        if finished not in (None, self._finished):
            self._finished, self._finished_at = finished, now
        return now - max(self._computed_at, self._finished_at), now - self._finished_at

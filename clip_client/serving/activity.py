"""Tells a busy server from a frozen one while it does not answer its canary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from clip_client.serving.triton_process import race

COMPUTES: Final = 0.02  # share of a core with which a server works; idle it uses 0.006, and a fiftieth is progress
SAMPLE_S: Final = 1.0


class Activity:
    """When a server last computed and last finished a request. ``ended`` gives their number, None if unknown."""

    def __init__(self, computed_s: Callable[[], float], ended: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        self._read_computed_s, self._ask_finished = computed_s, ended
        self._finished: float | None = None
        self.reset()

    def reset(self) -> None:
        """Start again after an answered canary; only the count of finished requests is kept."""
        self._computed_at = self._finished_at = self._sampled_at = asyncio.get_running_loop().time()
        self._computed_s = self._read_computed_s()

    async def sample(self) -> tuple[float, float]:
        """Return the seconds without any work, and those without a finished request."""
        finished = await race(self._ask_finished(), timeout_s=SAMPLE_S)  # a frozen server never says it
        now, computed_s = asyncio.get_running_loop().time(), self._read_computed_s()
        if computed_s - self._computed_s > COMPUTES * max(SAMPLE_S, now - self._sampled_at):  # housekeeping is less
            self._computed_at = now
        self._sampled_at, self._computed_s = now, computed_s
        if finished not in (None, self._finished):
            self._finished, self._finished_at = finished, now
        return now - max(self._computed_at, self._finished_at), now - self._finished_at

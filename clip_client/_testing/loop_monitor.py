"""Measures how long the event loop was blocked, for tests."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import Self

_TICK_S: Final = 0.005


class LoopWatch:
    """Measures, while it is entered, how long the running event loop was blocked.

    ::

        async with LoopWatch() as watch:
            await something()
        assert watch.worst_s < 0.05
    """

    def __init__(self) -> None:
        self.worst_s = 0.0
        """The longest time, in seconds, by which a timer was late."""
        self.worst_busy_s = 0.0
        """The most processor time, in seconds, that the loop's thread used between two timers. Other processes do not
        affect it. Time spent waiting for a file does not count."""
        self.mean_s = 0.0
        """The mean time, in seconds, by which timers were late."""
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._arm()
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._armed_at_s = time.thread_time()
        due_at = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(due_at, self._tick, due_at)

    def _tick(self, due_at: float) -> None:
        late_s = self._loop.time() - due_at
        self._ticks += 1
        self.mean_s += (late_s - self.mean_s) / self._ticks
        self.worst_s = max(self.worst_s, late_s)
        self.worst_busy_s = max(self.worst_busy_s, time.thread_time() - self._armed_at_s)
        self._arm()

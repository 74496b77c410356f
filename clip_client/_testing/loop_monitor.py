"""Was the event loop ever blocked? A measure, for tests."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_TICK_S: Final = 0.005


class LoopWatch:
    """Measures, while it is entered, for how long the running event loop did not come round.

    ::

        async with LoopWatch() as watch:
            await something()
        assert watch.worst_s < 0.05
    """

    def __init__(self) -> None:
        self.worst_s = 0.0
        """The longest time, in seconds, by which a timer was late."""
        self.worst_busy_s = 0.0
        """The most processor time that the loop's thread took from one timer to the next: what kept the loop from
        coming round, whoever else had the processor meanwhile. Waiting for a file does not show here."""
        self.mean_s = 0.0
        """By how much the timers were late on average, in seconds."""
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._armed_at_s = time.thread_time()
        due = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(due, self._tick, due)

    def _tick(self, due: float) -> None:
        late_s = self._loop.time() - due
        self._ticks += 1
        self.mean_s += (late_s - self.mean_s) / self._ticks
        self.worst_s = max(self.worst_s, late_s)
        self.worst_busy_s = max(self.worst_busy_s, time.thread_time() - self._armed_at_s)
        self._arm()

"""Was the event loop ever blocked? A measure, for tests."""

from __future__ import annotations

import asyncio
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
        due = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(due, self._tick, due)

    def _tick(self, due: float) -> None:
        self.worst_s = max(self.worst_s, self._loop.time() - due)
        self._arm()

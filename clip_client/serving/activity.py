"""Tells a busy server from a frozen one while it does not answer its canary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from clip_client.serving.triton_process import race

if TYPE_CHECKING:
    from clip_client.serving.triton_process import TritonProcess

COMPUTES: Final = 0.02
"""Share of one core from which a server counts as working: idle it uses 0.006, and a fiftieth is still progress."""
SAMPLE_S: Final = 1.0


class Activity:
    """When a server last computed and last finished a request, in seconds of the event loop's clock."""

    def __init__(self, process: TritonProcess, finished: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        """``finished`` returns the number of finished requests, or None if it is unknown."""
        self._process, self._ask_finished = process, finished
        self._finished: float | None = None
        self.reset()

    def reset(self) -> None:
        """Start again after an answered canary; only the count of finished requests is kept."""
        self._computed_at = self._finished_at = self._sampled_at = asyncio.get_running_loop().time()
        self._computed_s = self._process.computed_s()

    async def sample(self) -> tuple[float, float]:
        """Return the seconds without any work, and those without a finished request."""
        # A frozen server never says how much it has finished.
        answer, _ = await race(self._ask_finished(), self._process.ended(), timeout_s=SAMPLE_S)
        now, computed_s = asyncio.get_running_loop().time(), self._process.computed_s()
        if (elapsed_s := now - self._sampled_at) > SAMPLE_S / 2:  # in less, housekeeping would be much of it
            if computed_s - self._computed_s > COMPUTES * elapsed_s:
                self._computed_at = now
            self._sampled_at, self._computed_s = now, computed_s
        if not answer.cancelled() and answer.result() not in (None, self._finished):
            self._finished, self._finished_at = answer.result(), now
        return now - max(self._computed_at, self._finished_at), now - self._finished_at

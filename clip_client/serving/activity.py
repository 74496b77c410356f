"""Tells a busy server from a frozen one while it does not answer its canary."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from clip_client.serving.triton_process import race

if TYPE_CHECKING:
    from clip_client.serving.triton_process import TritonProcess

COMPUTES: Final = 0.02
"""Share of one core. An idle server uses 0.006 of a core. One that has work and gets a fiftieth of its machine still
makes progress."""

_SAMPLE_EVERY_S: Final = 1.0
_FIRST_SAMPLE_S: Final = 0.1
"""If a canary takes longer, sampling begins."""

_Finished: TypeAlias = Callable[[], Coroutine[Any, Any, "float | None"]]


class Activity:
    """When a server last worked, by its processor time and its finished requests.

    Only recent work counts: the latest sample is compared with the newest one that is at least a second older. So the
    processor time that a server used before it froze makes it look active for two samples at most.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._samples: deque[tuple[float, float]] = deque(maxlen=8)
        """When each was taken, and the processor time until then."""
        self._finished: float | None = None
        self._computed_at = self._finished_at = 0.0

    def reset(self, process: TritonProcess) -> None:
        """Start again after an answered canary; only the count of finished requests is kept."""
        self._computed_at = self._finished_at = now = self._now()
        self._samples.clear()
        self._samples.append((now, process.computed_s()))

    async def keep_sampling(self, process: TritonProcess, finished: _Finished) -> None:
        """Take samples until this is cancelled."""
        await asyncio.sleep(_FIRST_SAMPLE_S)
        while True:
            await self.sample(process, finished)
            await asyncio.sleep(_SAMPLE_EVERY_S)

    async def sample(self, process: TritonProcess, finished: _Finished) -> bool:
        """Record what the server has done so far; return whether it is working.

        ``finished`` returns the number of its finished requests, or None if it does not say; a frozen server never
        answers that.
        """
        computed_s = process.computed_s()
        answer, _ = await race(finished(), process.ended(), timeout_s=_SAMPLE_EVERY_S)
        count, now = None if answer.cancelled() else answer.result(), self._now()
        older = (sample for sample in reversed(self._samples) if now - sample[0] >= _SAMPLE_EVERY_S)
        before_at, before_s = next(older, self._samples[0])
        self._samples.append((now, computed_s))
        if count not in (None, self._finished):
            self._finished, self._finished_at = count, now
        if computed_s - before_s > COMPUTES * (now - before_at):
            self._computed_at = now
        return self._computed_at == now or self._finished_at > before_at

    @property
    def unfinished_s(self) -> float:
        """Seconds without a finished request, at the latest sample."""
        return self._samples[-1][0] - self._finished_at

    @property
    def idle_s(self) -> float:
        """Seconds without a finished request and without computing, at the latest sample."""
        return min(self.unfinished_s, self._samples[-1][0] - self._computed_at)

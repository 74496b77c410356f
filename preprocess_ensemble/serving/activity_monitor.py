"""Whether a server that does not answer its canary is working, judged by processor time and finished requests."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

SAMPLE_EVERY_S: Final = 1.0
"""Interval between two samples of a server that has not answered its canary yet."""

_COMPUTES: Final = 0.02
"""Share of one core. An idle server uses 0.006 of a core. One that has work and gets a fiftieth of its machine still
makes progress."""


class _Sample(NamedTuple):
    at: float
    computed_s: float


class ActivityMonitor:
    """Remembers when a server last worked.

    Only recent work counts: the latest sample is compared with the newest one that is at least a second older. So the
    processor time that a server used before it froze makes it look active for two samples at most.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=8)
        self._finished: float | None = None
        self._computed_at = 0.0
        self._finished_at = 0.0

    def reset(self, computed_s: float, *, now: float) -> None:
        """Start again after an answered canary; only the count of finished requests is kept."""
        self._computed_at = self._finished_at = now
        self._samples.clear()
        self._samples.append(_Sample(at=now, computed_s=computed_s))

    def sample(self, computed_s: float, finished: float | None, *, now: float) -> bool:
        """Record the server's processor time and its count of finished requests; return whether it is working.

        ``finished`` is None if the server does not report it.
        """
        before = next((one for one in reversed(self._samples) if now - one.at >= SAMPLE_EVERY_S), self._samples[0])
        self._samples.append(_Sample(at=now, computed_s=computed_s))
        if finished is not None and finished != self._finished:
            self._finished, self._finished_at = finished, now
        if computed_s - before.computed_s > _COMPUTES * (now - before.at):
            self._computed_at = now
        return self._computed_at == now or self._finished_at > before.at

    @property
    def unfinished_s(self) -> float:
        """Seconds without a finished request, at the latest sample."""
        return self._samples[-1].at - self._finished_at

    @property
    def idle_s(self) -> float:
        """Seconds without a finished request and without computing, at the latest sample."""
        return self._samples[-1].at - max(self._finished_at, self._computed_at)

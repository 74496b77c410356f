"""How much time a call, or some of its items, have left. No other module adds or subtracts such times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_LEAST_S: Final = 0.001
"""gRPC takes 0 for a time that has passed."""


class Deadline:
    """When the time of some items ends: those of one call, or those first sent at one time.

    Times are in seconds of the event loop's clock.
    """

    __slots__ = ("_now", "at", "extended_by_s", "since")

    def __init__(self, seconds: float, now: Callable[[], float] | None = None) -> None:
        """Begin now and end in ``seconds``; ``now`` is the clock, by default that of the running loop."""
        self._now = asyncio.get_running_loop().time if now is None else now
        self.since = self._now()
        """When this time began."""
        self.at = self.since + seconds
        self.extended_by_s: float | None = None
        """After each result, the items that are left have this much time again; None if ``at`` is fixed."""

    @property
    def expired(self) -> bool:
        return self._now() >= self.at

    @property
    def remaining(self) -> float:
        """Seconds that are left, at least a millisecond."""
        return max(_LEAST_S, self.at - self._now())

    @property
    def elapsed(self) -> float:
        """Seconds since this time began."""
        return self._now() - self.since

    @property
    def of_request(self) -> float:
        """Seconds that a request may take which is sent now: results of other requests may extend ``at``."""
        return self.remaining if self.extended_by_s is None else self.extended_by_s

    def ends_within(self, seconds: float) -> bool:
        return self.at - self._now() <= seconds

    def or_later(self, other: Deadline) -> Deadline:
        """Return the one of both that ends later."""
        return other if other.at > self.at else self

    def waited(self, submitted_at: float) -> float:
        """Return the seconds that an item has waited since it was submitted, or since this time began if later."""
        return self._now() - max(submitted_at, self.since)

    def given(self, submitted_at: float) -> float:
        """Return the seconds that an item has in all, from the same moment on."""
        return self.at - max(submitted_at, self.since)

    def on_progress(self) -> None:
        """Record that an item of the call has its result."""
        if self.extended_by_s is not None:
            self.since = self._now()
            self.at = self.since + self.extended_by_s

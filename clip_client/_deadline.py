"""The time that is left to a call, to some of its items, or to other work. Only this module computes such times."""

from __future__ import annotations

import asyncio
from typing import Final

_LEAST_S: Final = 0.001  # gRPC takes 0 for a time that has passed


class Deadline:
    """The end of one call, or of items first sent together, in seconds of the running event loop's clock."""

    __slots__ = ("_now", "at", "extended_by_s", "since")

    def __init__(self, seconds: float, *, extended_by_s: float | None = None) -> None:
        self._now = asyncio.get_running_loop().time
        self.since = self._now()  # the beginning, or the last extension by a result
        self.at = self.since + seconds
        self.extended_by_s = extended_by_s  # what is left gets it again after each result; None if ``at`` is fixed

    @property
    def expired(self) -> bool:
        return self._now() >= self.at

    @property
    def remaining(self) -> float:
        return max(_LEAST_S, self.at - self._now())

    @property
    def elapsed(self) -> float:
        return self._now() - self.since

    @property
    def of_request(self) -> float:
        """Seconds that a request sent now may take: results of other requests may extend ``at``."""
        return self.remaining if self.extended_by_s is None else self.extended_by_s

    def ends_within(self, seconds: float) -> bool:
        return self.at - self._now() <= seconds

    def waited(self, submitted_at: float) -> float:
        """Return the seconds that an item has waited since ``submitted_at``, or since the beginning if later."""
        return self._now() - max(submitted_at, self.since)

    def given(self, submitted_at: float) -> float:
        """Return all seconds that an item has, counted from the same moment as in :meth:`waited`."""
        return self.at - max(submitted_at, self.since)

    def on_progress(self) -> None:
        if self.extended_by_s is not None:
            self.since = self._now()
            self.at = self.since + self.extended_by_s

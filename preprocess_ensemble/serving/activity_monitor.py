"""Whether a server that does not answer its canary is at work, told by processor time and finished requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

__all__ = ("LOOK_EVERY_S", "ActivityMonitor")

LOOK_EVERY_S: Final = 1.0
"""Between two looks at a server that has not answered its canary yet."""

_COMPUTES: Final = 0.02
"""Share of one core. A server that waits for work needs 0.006 of one, and one that has any and gets a fiftieth of its
machine still makes its way."""


@dataclass(frozen=True, kw_only=True)
class _Look:
    at: float
    computed_s: float


class ActivityMonitor:
    """Remembers when a server was last at work.

    Only what happened lately counts: of the looks at least a second old, the newest is compared with now. So the
    processor time that a server used before it froze does not make it look alive for longer than two looks.
    """

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque(maxlen=8)
        self._done: float | None = None
        self._computed_at = 0.0
        self._finished_at = 0.0

    def is_well(self, computed_s: float, *, now: float) -> None:
        """The canary came through; everything before is forgotten, but the count of requests."""
        self._computed_at = self._finished_at = now
        self._looks.clear()
        self._looks.append(_Look(at=now, computed_s=computed_s))

    def look(self, computed_s: float, done: float | None, *, now: float) -> bool:
        """Note the server's processor time and its count of finished requests; returns whether it is at work.

        ``done`` is None if the server does not say.
        """
        before = next((look for look in reversed(self._looks) if now - look.at >= LOOK_EVERY_S), self._looks[0])
        self._looks.append(_Look(at=now, computed_s=computed_s))
        if done is not None and done != self._done:
            self._done, self._finished_at = done, now
        if computed_s - before.computed_s > _COMPUTES * (now - before.at):
            self._computed_at = now
        return self._computed_at == now or self._finished_at > before.at

    @property
    def unfinished_s(self) -> float:
        """For how long no request was finished, at the last look."""
        return self._looks[-1].at - self._finished_at

    @property
    def idle_s(self) -> float:
        """For how long no request was finished and nothing computed, at the last look."""
        return self._looks[-1].at - max(self._finished_at, self._computed_at)

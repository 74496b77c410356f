"""How many images may be in flight at one server: a limit that finds itself.

Triton 2.51 neither refuses work nor drops what is expired, so a queue in it is work done for nobody. The only sign of
that queue is time. The rule is additive increase, multiplicative decrease (Chiu and Jain 1989; RFC 5681), with delay
as the signal, as in TCP Vegas (Brakmo and Peterson 1995) and Netflix's concurrency-limits:

* ``base`` is the shortest latency seen within the last minutes for a request of that many images; what is above it is
  time spent in a queue.
* An answer is *late* when it spent more than ``max(base, queue_target_s)`` in a queue, or when it took more than half
  of the time that its caller had (and more than twice ``base``: an impatient caller is no sign of load).
* A late answer takes the limit down to 0.8 of itself, a refusal or an expired deadline to half; once per round trip.
* An answer in time lets it grow, if it was used: at first by the rows that were answered (slow start: it doubles per
  round trip), after the first decrease by ``sqrt(limit)`` rows per round trip (the step of Netflix's Gradient2).

Independent clients of one server see the same queue, and multiplicative decrease lets them converge to equal shares.
"""

from __future__ import annotations

import math
from typing import Final

_BASE_WINDOW_S: Final = 150.0
"""Minima live for one to two of these. Long, because under steady overload every new minimum holds a queue."""
_LATE_FACTOR: Final = 0.8
_REFUSED_FACTOR: Final = 0.5
_INITIAL: Final = 16
_SMOOTHING: Final = 0.125
"""Weight of a new latency in the running mean, as in RFC 6298."""


class AdaptiveLimit:
    """The limit of one server, in images. Times are seconds of any one clock."""

    def __init__(self, *, maximum: int, queue_target_s: float) -> None:
        self.in_flight = 0
        self.latency_s: float | None = None
        """Running mean of the latency of whole requests; None before the first answer."""
        self._maximum = maximum
        self._queue_target_s = queue_target_s
        self._limit = float(min(_INITIAL, maximum))
        self._slow_start = True
        self._decreased_at = -math.inf
        self._base = _BaseLatency()

    @property
    def limit(self) -> int:
        """Images that may be in flight now; at least 1."""
        return int(self._limit)

    def room(self, waiting: int, max_batch_size: int) -> int:
        """How many of ``waiting`` rows may be sent as one request now; 0 where it is better to wait.

        A request takes at most half of the limit, so that the server always has the next one, and is never a sliver of
        what will be free in a moment: that would split every later request, too (the silly window of RFC 813).
        """
        wanted = min(waiting, max_batch_size, max(1, self.limit // 2))
        return wanted if self.limit - self.in_flight >= wanted else 0

    def started(self, rows: int) -> None:
        """A request of so many rows was sent."""
        self.in_flight += rows

    def answered(self, rows: int, *, started_at: float, now: float, time_given_s: float) -> None:
        """The server has answered the request that was sent at ``started_at``, whose caller had ``time_given_s``."""
        used = 2 * self.in_flight >= self.limit
        self.in_flight -= rows
        latency = now - started_at
        self.latency_s = latency if self.latency_s is None else self.latency_s + _SMOOTHING * (latency - self.latency_s)
        base = self._base.update(rows, latency, now)
        if latency - base > max(base, self._queue_target_s) or latency > max(2 * base, time_given_s / 2):
            self._decrease(_LATE_FACTOR, started_at, now)
        elif used:
            step = rows if self._slow_start else rows / math.sqrt(self._limit)
            self._limit = min(self._limit + step, float(self._maximum))

    def refused(self, rows: int, *, started_at: float, now: float) -> None:
        """The server refused the request."""
        self.in_flight -= rows
        self._decrease(_REFUSED_FACTOR, started_at, now)

    def expired(self, rows: int, *, started_at: float, now: float) -> None:
        """The deadline of the request passed before the answer came."""
        self.in_flight -= rows
        if now - started_at > 2 * self._base.get(rows):
            self._decrease(_REFUSED_FACTOR, started_at, now)

    def gone(self, rows: int) -> None:
        """The request ended in a way that says nothing about load."""
        self.in_flight -= rows

    def _decrease(self, factor: float, started_at: float, now: float) -> None:
        # What was sent before the last decrease could not know of it.
        if started_at >= self._decreased_at:
            self._limit = max(1.0, self._limit * factor)
            self._decreased_at = now
            self._slow_start = False


class _BaseLatency:
    """Shortest latency per size of request, in powers of two, over the last one to two windows."""

    def __init__(self) -> None:
        self._current: dict[int, float] = {}
        self._previous: dict[int, float] = {}
        self._window_ends = -math.inf

    def update(self, rows: int, latency: float, now: float) -> float:
        """Take one latency into account; the base for a request of that size."""
        if now >= self._window_ends:
            self._previous, self._current = self._current, {}
            self._window_ends = now + _BASE_WINDOW_S
        size = rows.bit_length()
        self._current[size] = min(latency, self._current.get(size, math.inf))
        return self.get(rows)

    def get(self, rows: int) -> float:
        """The base for a request of that size; 0 where nothing is known yet."""
        # A size that was seen only in a queue is bounded by what is known of others: a request of half the rows takes
        # at least half the time, and a larger one takes at least as long.
        size = rows.bit_length()
        bounds = (
            base * 2 ** max(0, size - known)
            for minima in (self._current, self._previous)
            for known, base in minima.items()
        )
        return min(bounds, default=0.0)

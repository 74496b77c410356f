"""How many images may be in flight at one server: a limit that finds itself.

Triton 2.51 neither refuses work nor drops what is expired or cancelled, so a long queue in it is work done for nobody.
The only sign of that queue is time. The rule is additive increase, multiplicative decrease (Chiu and Jain, 1989), as in
TCP (RFC 5681) and in the AIMD limit of Netflix's concurrency-limits, with a latency that is too long as the signal:

* An answer is *late* when it took longer than ``target_latency_s``, or than a quarter of the time that its caller had:
  under overload an image may wait for half of its time before it is sent, and the last quarter is for what varies.
* A late answer takes the limit down to 0.8 of itself, a refusal or an expired deadline to half; once per round trip.
* An answer in time lets the limit grow, if it has held somebody back since the last one: at first by the rows that
  were answered (slow start: it doubles per round trip), after the first decrease by ``sqrt(limit)`` rows per round trip
  (the step of Netflix's Gradient2). A limit that held nobody back proves nothing by its size, and grown on it would be
  head-available_slots that was never tried, for the next burst to fill (congestion window validation, RFC 7661).

The target is a fixed time, and no multiple of the shortest latency seen as in TCP Vegas: clients that do not know of
each other then judge one queue by one measure and converge to equal shares, while one that first saw the server busy
would take its queue for the normal state and push the others aside. The price is a queue of up to that time under full
load, which buys full batches.
"""

from __future__ import annotations

import math
from typing import Final

_LATE_FACTOR: Final = 0.8
_REFUSED_FACTOR: Final = 0.5
_INITIAL: Final = 16
_FIRST_HOLD: Final = 0.125
"""Where nothing was answered yet, the part of the target for which a request that was given up keeps its place."""
_SMOOTHING: Final = 0.125
"""Weight of a new latency in the running mean, as in RFC 6298."""


class AdaptiveLimit:
    """The limit of one server, in images. Times are seconds of any one clock."""

    def __init__(self, *, maximum: int, target_latency_s: float) -> None:
        self.in_flight = 0
        self.latency_s: float | None = None
        """Running mean of the latency of whole requests; None before the first answer."""
        self._maximum = maximum
        self._target_latency_s = target_latency_s
        self._fastest_s = math.inf
        self._limit = float(min(_INITIAL, maximum))
        self._slow_start = True
        self._held_back = False
        self._decreased_at = -math.inf
        self._hold_s = 0.0
        """How long a request that was given up keeps its place; since the last answer, once one was given up."""
        self._held_at = -math.inf

    @property
    def limit(self) -> int:
        """Images that may be in flight now; at least 1."""
        return int(self._limit)

    def available_slots(self, waiting: int, max_batch_size: int) -> int:
        """How many of ``waiting`` rows may be sent as one request now; 0 where it is better to wait.

        A request takes at most half of the limit, so that the server always has the next one, and is never a sliver of
        what will be free in a moment: that would split every later request, too (the silly window of RFC 813).
        """
        best = min(waiting, max_batch_size)
        wanted = min(best, max(1, self.limit // 2))
        available_slots = wanted if self.limit - self.in_flight >= wanted else 0
        self._held_back = self._held_back or available_slots < best
        return available_slots

    def started(self, rows: int) -> None:
        """A request of so many rows was sent."""
        self.in_flight += rows

    def answered(self, rows: int, *, started_at: float, now: float, time_given_s: float) -> None:
        """The server has answered the request that was sent at ``started_at``, whose caller had ``time_given_s``."""
        held_back, self._held_back = self._held_back, False
        self._held_at = -math.inf
        self.in_flight -= rows
        latency = now - started_at
        self.latency_s = latency if self.latency_s is None else self.latency_s + _SMOOTHING * (latency - self.latency_s)
        self._fastest_s = min(self._fastest_s, latency)
        if latency > min(self._target_latency_s, self._patience_s(time_given_s)):
            self._decrease(_LATE_FACTOR, started_at, now)
        elif held_back:
            step = rows if self._slow_start else rows / math.sqrt(self._limit)
            self._limit = min(self._limit + step, float(self._maximum))

    def refused(self, rows: int, *, started_at: float, now: float) -> None:
        """The server refused the request."""
        self.in_flight -= rows
        self._decrease(_REFUSED_FACTOR, started_at, now)

    def expired(self, rows: int, *, started_at: float, now: float) -> None:
        """The deadline of the request passed before the answer came."""
        self.in_flight -= rows
        if self._fastest_s == math.inf or now - started_at > 2 * self._fastest_s:
            self._decrease(_REFUSED_FACTOR, started_at, now)

    def cancelled(self, *, started_at: float, now: float) -> float:
        """The caller of a request has gone. Returns the time from which its rows count as :meth:`release`.

        Triton decodes them all the same, so they keep their place for as long as an answer takes. Without answers
        nothing tells whether that is still enough: with each round trip that is given up, the time doubles.
        """
        longest_s = max(self._target_latency_s, self.latency_s or 0.0)
        if self._held_at == -math.inf:
            self._hold_s = self.latency_s or longest_s * _FIRST_HOLD
            self._held_at = now
        elif started_at >= self._held_at:
            self._hold_s = min(2 * self._hold_s, longest_s)
            self._held_at = now
        return started_at + self._hold_s

    def release(self, rows: int) -> None:
        """The request ended in a way that says nothing about load."""
        self.in_flight -= rows

    def _patience_s(self, time_given_s: float) -> float:
        # A caller who gives hardly more time than an idle server needs is impatient, and no sign of load.
        return max(time_given_s / 4, 2 * self._fastest_s)

    def _decrease(self, factor: float, started_at: float, now: float) -> None:
        # What was sent before the last decrease could not know of it.
        if started_at >= self._decreased_at:
            self._limit = max(1.0, self._limit * factor)
            self._decreased_at = now
            self._slow_start = False

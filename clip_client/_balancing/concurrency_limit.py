"""The limit of images in flight at one server, which adapts to the latency.

Triton 2.51 neither refuses work nor drops expired or cancelled requests, so a long queue in it is wasted work, and time
is its only sign. The rule is additive increase, multiplicative decrease (Chiu and Jain, 1989), as in TCP (RFC 5681):

* An answer is *late* if it took longer than ``target_latency_s``, or longer than a quarter of its caller's time. Under
  overload an image may wait for half of that time before it is sent, and the last quarter allows for variation.
* A late answer reduces the limit to 0.8 of its value; a refusal or an expired deadline halves it. Both count once per
  round trip.
* An answer in time increases the limit if the limit has made images wait since the last answer. At first the limit
  grows by the number of answered images (slow start: it doubles per round trip). After the first decrease it grows by
  ``sqrt(limit)`` images per round trip (the step of Netflix's Gradient2). If images never wait, the limit says nothing
  about the server, and growing it would let the next burst use untested capacity (congestion window validation,
  RFC 7661).

The target is a fixed time, not a multiple of the shortest latency as in TCP Vegas: a client that first saw a busy
server would take the queue for the normal state and displace the others. The cost is a queue of up to the target time
under full load; the benefit is full batches.
"""

from __future__ import annotations

import math
from typing import Final

_LATE_FACTOR: Final = 0.8
_REFUSED_FACTOR: Final = 0.5
_INITIAL: Final = 16
_FIRST_HOLD: Final = 0.125  # share of the target latency for which a cancelled request keeps slots before any answer
_SMOOTHING: Final = 0.125  # weight of a new latency in the running mean, as in RFC 6298


class AdaptiveLimit:
    """The limit of one server, in images. Times are in seconds, all from the same clock."""

    def __init__(self, *, maximum: int, target_latency_s: float) -> None:
        self.in_flight = 0
        self.latency_s: float | None = None  # running mean of the latency of whole requests
        self._maximum = maximum
        self._target_latency_s = target_latency_s
        self._fastest_s = math.inf
        self._limit = float(min(_INITIAL, maximum))
        self._slow_start = True
        self._held_back = False
        self._decreased_at = -math.inf
        self._hold_s = 0.0  # for which a cancelled request keeps its slots; set by the first one after an answer
        self._held_at = -math.inf

    @property
    def limit(self) -> int:
        return int(self._limit)

    def available_slots(self, waiting: int, max_batch_size: int) -> int:
        """Return the number of ``waiting`` images to send as one request now; 0 if it is better to wait.

        A request takes at most half of the limit, so that the server always has the next request. It is not much
        smaller than the slots that will be free in a moment: otherwise every later request would be split as well (the
        silly window of RFC 813).
        """
        best, limit = min(waiting, max_batch_size), self.limit
        wanted = min(best, max(1, limit // 2))
        available_slots = wanted if limit - self.in_flight >= wanted else 0
        self._held_back = self._held_back or available_slots < best
        return available_slots

    def started(self, images: int) -> None:
        self.in_flight += images

    def answered(self, images: int, *, started_at: float, now: float, time_given_s: float) -> None:
        held_back, self._held_back = self._held_back, False
        self._held_at = -math.inf
        self.in_flight -= images
        latency = now - started_at
        self.latency_s = latency if self.latency_s is None else self.latency_s + _SMOOTHING * (latency - self.latency_s)
        self._fastest_s = min(self._fastest_s, latency)
        # A caller may give hardly more time than an idle server needs, which is not a sign of load.
        patience_s = max(time_given_s / 4, 2 * self._fastest_s)
        if latency > min(self._target_latency_s, patience_s):
            self._decrease(_LATE_FACTOR, started_at, now)
        elif held_back:
            step = images if self._slow_start else images / math.sqrt(self._limit)
            self._limit = min(self._limit + step, float(self._maximum))

    def refused(self, images: int, *, started_at: float, now: float) -> None:
        self.in_flight -= images
        self._decrease(_REFUSED_FACTOR, started_at, now)

    def expired(self, images: int, *, started_at: float, now: float) -> None:
        self.in_flight -= images
        if self._fastest_s == math.inf or now - started_at > 2 * self._fastest_s:
            self._decrease(_REFUSED_FACTOR, started_at, now)

    def cancelled(self, *, started_at: float, now: float) -> float:
        """Record that a caller cancelled a request. Returns the time at which to call :meth:`release` for its images.

        Triton still decodes the images, so they keep their slots for as long as an answer takes. Without answers there
        is no sign whether this time is long enough, so it doubles with each cancelled round trip.
        """
        longest_s = max(self._target_latency_s, self.latency_s or 0.0)
        if self._held_at == -math.inf:
            self._hold_s = self.latency_s or longest_s * _FIRST_HOLD
            self._held_at = now
        elif started_at >= self._held_at:
            self._hold_s = min(2 * self._hold_s, longest_s)
            self._held_at = now
        return started_at + self._hold_s

    def release(self, images: int) -> None:
        """Free the slots of a request whose end says nothing about load."""
        self.in_flight -= images

    def _decrease(self, factor: float, started_at: float, now: float) -> None:
        # Ignore requests that were sent before the last decrease, because they belong to the same round trip.
        if started_at >= self._decreased_at:
            self._limit = max(1.0, self._limit * factor)
            self._decreased_at = now
            self._slow_start = False

"""When to retry: exponential back-off with full jitter, and a budget that keeps retries a small part of the load."""

from __future__ import annotations

import random
from typing import Final

from clip_client._errors import ModelNotReady, Overloaded, Unavailable

RETRIED: Final = (Unavailable, Overloaded, ModelNotReady)
"""Nothing else is sent to the same server again: a bad image stays bad, and a refused token stays refused."""

_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 1.0
"""A server that is up again is noticed within this time."""

_BUDGET: Final = 100.0
_BUDGET_PER_S: Final = 5.0
_BUDGET_PER_SUCCESS: Final = 0.1

_random: Final = random.SystemRandom()
"""Unlike ``random`` itself, the same in no two programs, also if they seed it."""


def backoff_s(failures: int) -> float:
    """Return how long to back off after this many failures in a row (1 or more).

    "Full jitter" of Brooker, "Exponential Backoff And Jitter" (AWS, 2015): uniform between 0 and the exponential cap,
    so that clients that lost a server together do not reconnect together.
    """
    doublings = min(failures - 1, 30)  # an outage of hours must not overflow
    return _random.uniform(0.0, min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0**doublings))


class RetryBudget:
    """Tokens for retries: a success earns a tenth, a second earns five, and a retry costs one (as in Finagle).

    During an outage of any length that pays for probing the servers that are down, about two requests a second each. If
    a server refuses many requests, only some of them are retried.
    """

    def __init__(self, now: float) -> None:
        self._tokens = _BUDGET
        self._updated = now

    def success(self) -> None:
        self._tokens = min(_BUDGET, self._tokens + _BUDGET_PER_SUCCESS)

    def spend(self, now: float) -> bool:
        """Pay for one retry; return False if there are not enough tokens."""
        self._tokens = min(_BUDGET, self._tokens + (now - self._updated) * _BUDGET_PER_S)
        self._updated = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

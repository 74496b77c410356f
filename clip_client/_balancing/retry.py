"""When to ask again: full-jitter exponential back-off, and a budget that keeps retries a small part of the load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clip_client._errors import ClipError, ModelNotReady, Overloaded, Unavailable

if TYPE_CHECKING:
    import random

RETRIED: Final = (Unavailable, Overloaded, ModelNotReady)
"""Nothing else is ever sent twice: an image that is bad stays bad, and a refused token stays refused."""

_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 1.0
"""A server that comes back is noticed within this time."""

_BUDGET: Final = 100.0
_BUDGET_PER_S: Final = 5.0
_BUDGET_PER_SUCCESS: Final = 0.1


def is_retried(error: ClipError) -> bool:
    """May a request that failed like this be sent again?"""
    return isinstance(error, RETRIED)


def backoff_s(failures: int, *, random_source: random.Random) -> float:
    """How long to leave a server alone after so many failures in a row (1 or more).

    "Full jitter" of Brooker, "Exponential Backoff And Jitter" (AWS, 2015): uniform between 0 and the exponential cap,
    so that clients which lost a server together do not come back together.
    """
    doublings = min(failures - 1, 30)  # an outage of hours must not overflow
    return random_source.uniform(0.0, min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0**doublings))


class RetryBudget:
    """Tokens for retries: every success earns a tenth, every second five, and a retry costs one (as in Finagle).

    An outage of any length leaves room for the probes of servers that are down, about two a second each; a server that
    refuses much of what it gets is not asked twice for all of it.
    """

    def __init__(self, now: float) -> None:
        self._tokens = _BUDGET
        self._updated = now

    def success(self) -> None:
        """A request was answered."""
        self._tokens = min(_BUDGET, self._tokens + _BUDGET_PER_SUCCESS)

    def spend(self, now: float) -> bool:
        """Take the price of one retry; False where there is not enough left."""
        self._tokens = min(_BUDGET, self._tokens + (now - self._updated) * _BUDGET_PER_S)
        self._updated = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

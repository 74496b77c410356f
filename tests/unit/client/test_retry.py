"""How long after a failure the client retries, and how often."""

from __future__ import annotations

from clip_client._balancing.retry import RetryBudget, backoff_s


def test_backoff_is_full_jitter_below_a_growing_cap() -> None:
    for failures, cap in ((1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (50, 1.0), (5000, 1.0)):
        delays = [backoff_s(failures) for _ in range(400)]
        assert 0 <= min(delays) < 0.1 * cap
        assert 0.9 * cap < max(delays) <= cap


def test_the_budget_is_used_up_and_earned_back_by_time_and_success() -> None:
    budget = RetryBudget(now=0.0)
    spent = sum(budget.spend(0.0) for _ in range(1000))
    assert spent == 100
    assert not budget.spend(0.0)
    assert budget.spend(0.3)
    assert not budget.spend(0.3)
    for _ in range(11):
        budget.success()
    assert budget.spend(0.3)
    assert not budget.spend(0.3)


def test_the_budget_is_capped() -> None:
    """Neither idle hours nor a million answers may allow a storm of retries later."""
    budget = RetryBudget(now=0.0)
    for _ in range(10_000):
        budget.success()
    assert sum(budget.spend(0.0) for _ in range(1000)) == 100
    assert sum(budget.spend(3600.0) for _ in range(1000)) == 100
    assert sum(budget.spend(3602.0) for _ in range(1000)) == 10

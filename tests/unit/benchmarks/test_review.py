"""The requests that the experiment times are answered by the real server."""

from __future__ import annotations

from benchmarks.experiments.dedup.review import measure_one


def test_every_request_of_the_experiment_is_answered() -> None:
    result = measure_one(5)
    assert result["groups"] == 5
    assert [len(result[name]) for name in ("pages_ms", "next_ms", "decision_ms")] == [5, 5, 5]
    assert min(result["next_ms"]) > 0
    assert all(0 < first <= every for first, every in result["rules_s"].values())

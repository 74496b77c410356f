"""The verdict of a soak."""

from __future__ import annotations

import pytest

from benchmarks.experiments.serving.soak import Series, records


@pytest.mark.parametrize("restarts", [[0.0] * 99 + [1.0], [1.0] * 100])
def test_a_restart_is_not_flat_whenever_it_happens(restarts: list[float]) -> None:
    assert not records({"restarts": Series(exact=True, values=restarts)})["restarts"]["flat"]


def test_memory_may_grow_by_five_percent_after_the_first_tenth() -> None:
    series = {"restarts": Series(exact=True, values=[0.0] * 100)}
    for last, flat in ((104.0, True), (106.0, False)):
        series["memory"] = Series(exact=False, values=[50.0] * 10 + [100.0] * 80 + [last] * 10)
        found = records(series)
        assert (found["restarts"]["flat"], found["memory"]["flat"]) == (True, flat)

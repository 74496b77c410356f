"""What the experiments conclude from their measurements, and what they measure with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.experiments.serving.ensemble import summary_of
from benchmarks.experiments.serving.soak import record
from benchmarks.experiments.serving.three_way import SYSTEMS, summarise
from benchmarks.fixtures.planted import THRESHOLD, planted
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.scripts.install_size import EXTRAS
from tests.fixtures.packaging.extras import extras


def test_the_server_is_full_at_the_first_point_near_the_best_and_other_vectors_are_invalid() -> None:
    model = {"mean_ms": {"queue": 1.0, "compute_infer": 2.0}, "share_batched": 0.5}
    one = {
        "latency_ms": {"p50": 1.0, "p95": 2.0, "p99": 3.0}, "mean_ms": 1.0, "gpu": {},
        "models": {"clip_preprocess": model, "clip_encoder": model},
    }  # fmt: skip
    rates = {1: 10.0, 2: 15.0, 4: 19.5, 8: 20.0, 16: 19.8}
    cells = {f"ensemble x{size} round 1": {**one, "rate": rate} for size, rate in rates.items()}
    for cosine, valid in ((1.0, True), (0.9998, False)):
        cells["ensemble start round 1"] = {"seconds": 3.0, "cosine": cosine}
        found = summary_of(ServerSetting(), list(rates), cells)
        assert (found["full_at"], found["valid"]) == (4, valid)


def three_way(cosine: float = 1.0) -> dict[str, Any]:
    systems = ["plain-batched", "ensemble"]
    rates = {"plain-batched": (10.0, 12.0), "ensemble": (20.0, 18.0)}
    found = {
        f"{system} x32": [{"rate": rate, "latency_ms": {"p50": 5.0}} for rate in values]
        for system, values in rates.items()
    }
    chosen = {name: SYSTEMS[name] for name in systems}
    return summarise(chosen, [32], found, {"plain-batched": 1.0, "ensemble": cosine}, {})


def test_ratios_are_taken_within_each_round() -> None:
    (ratio,) = three_way()["ratios"]
    assert (ratio["min"], ratio["max"], ratio["median"]) == pytest.approx((1.5, 2.0, 1.75))


def test_other_vectors_make_a_row_and_the_run_invalid() -> None:
    summary = three_way(cosine=0.99)
    assert not summary["systems"]["ensemble"]["valid"]
    assert not summary["valid"]


def test_exactly_the_planted_pairs_reach_the_threshold_and_all_are_close_together() -> None:
    vectors, family = planted(3000)
    products = vectors @ vectors.T
    assert products[np.triu(family[:, None] != family, 1)].max() < THRESHOLD
    copies = np.flatnonzero(family != np.arange(3000))
    assert len(copies) == 150
    assert (products[copies, family[copies]] >= THRESHOLD).all()
    cosines = products[np.triu_indices(3000, 1)]
    assert cosines.mean() == pytest.approx(0.6, abs=0.01)
    assert np.quantile(cosines, 0.99) == pytest.approx(0.73, abs=0.01)


def test_every_extra_for_users_is_measured() -> None:
    packages = extras()
    measured = [set().union(*(packages[name] for name in one.split(",") if name)) for one in EXTRAS]
    missing = {name for name in packages if not any(packages[name] <= one for one in measured)}
    assert missing == {"baseline", "bench", "dev", "gpu", "tracing"}


@pytest.mark.parametrize(
    ("name", "values", "flat"),
    [
        ("memory in MiB", [10.0] * 10 + [60.0] * 90, True),  # grows in the first tenth only
        ("memory in MiB", [60.0] * 90 + [62.9] * 10, True),
        ("memory in MiB", [60.0] * 90 + [63.1] * 10, False),
        ("open files", [17.0] * 15 + [18.0] * 85, True),  # seen in the second tenth
        ("open files", [17.0] * 90 + [18.0] * 10, False),
        ("restarts", [0.0] * 99 + [1.0], False),
        ("restarts", [1.0] * 100, False),
    ],
)
def test_what_a_soak_calls_flat(name: str, values: list[float], flat: bool) -> None:
    assert record(name, values)["flat"] is flat

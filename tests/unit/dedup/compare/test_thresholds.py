"""The thresholds of a model: built in, and asked for."""

from __future__ import annotations

import pytest

from clip_client.dedup import thresholds_for
from clip_client.dedup.compare.cells import wilson_interval
from clip_client.dedup.types import is_random

MODEL = "ViT-B-32/openai@1a2b3c4d"


@pytest.mark.parametrize(
    ("model_id", "is_untrained"),
    [
        ("ViT-B-32/random:0@1a2b3c4d", True),
        ("ViT-B-32/random@1a2b3c4d+fp16", True),
        (MODEL, False),
        ("ViT-B-32//data/random/weights@2.pt@1a2b3c4d", False),
    ],
)
def test_random_weights_are_known_by_the_id(model_id: str, is_untrained: bool) -> None:
    assert is_random(model_id) is is_untrained
    found = thresholds_for(model_id)
    assert found.recommended is not is_untrained
    # Two different textures reach 0.9965 under random weights, copies stay above 0.998.
    assert not is_untrained or 0.9965 < found.similar <= 0.998


def test_a_threshold_says_where_it_comes_from() -> None:
    known, unknown = thresholds_for(MODEL), thresholds_for("ViT-L-14/laion2b@1a2b3c4d")
    assert known.similar == unknown.similar
    assert ["not measured for this model" in one.source for one in (known, unknown)] == [False, True]
    asked = thresholds_for(MODEL, 0.9)
    assert asked.similar == 0.9
    assert "0.9 was asked for" in asked.source


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_no_other_number_is_a_threshold(value: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        thresholds_for(MODEL, value)


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (5, 5), (1, 3), (34, 35), (380, 381), (999, 1000)])
def test_the_interval_is_wilsons(successes: int, trials: int) -> None:
    # By definition: the shares from which the observed one is 1.96 standard deviations away, and no more.
    share = successes / trials
    for end in wilson_interval(successes, trials):
        assert 0 <= end <= 1
        assert (share - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / trials, abs=1e-12)
    assert wilson_interval(0, 0) == (0.0, 1.0), "without trials nothing is known"

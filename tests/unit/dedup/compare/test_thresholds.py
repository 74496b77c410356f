from __future__ import annotations

import pytest

from clip_client.dedup import thresholds_for
from clip_client.dedup.types import is_random


@pytest.mark.parametrize(
    ("model_id", "random"),
    [
        ("ViT-B-32/random:0@1a2b3c4d", True),
        ("ViT-B-32/random@1a2b3c4d+fp16", True),
        ("tiny_clip/random:7@00000000", True),
        ("ViT-B-32/openai@1a2b3c4d", False),
        ("ViT-B-32//data/random/weights@2.pt@1a2b3c4d", False),
    ],
)
def test_random_weights_are_known_by_the_id(model_id: str, random: bool) -> None:
    assert is_random(model_id) is random
    assert thresholds_for(model_id).recommended is not random


def test_random_weights_recommend_nothing() -> None:
    thresholds = thresholds_for("ViT-B-32/random:0@1a2b3c4d")
    assert "no threshold is recommended" in thresholds.source
    # Two different textures reach 0.9965 under random weights, copies stay above 0.998.
    assert 0.9965 < thresholds.similar <= 0.998


def test_an_unknown_model_says_that_its_numbers_are_borrowed() -> None:
    known, unknown = thresholds_for("ViT-B-32/openai@1a2b3c4d"), thresholds_for("ViT-L-14/laion2b@1a2b3c4d")
    assert known.similar == unknown.similar
    assert "not measured for this model" in unknown.source
    assert "not measured" not in known.source


def test_sscd_has_the_threshold_of_its_authors() -> None:
    published, other = (
        thresholds_for(f"sscd_{name}/file:a.torchscript.pt@1a2b3c4d") for name in ("disc_mixup", "disc_blur")
    )
    # Vectors nominate pairs for alignment as far down as they say anything.
    assert (published.similar, published.candidate, published.recommended) == (0.75, 0.75, True)
    assert other.similar == 0.75
    assert "sscd_disc_mixup alone" in other.source


def test_an_asked_for_threshold_replaces_the_default() -> None:
    lower, higher = (thresholds_for("ViT-B-32/openai@1a2b3c4d", value) for value in (0.9, 0.9999))
    assert (lower.similar, higher.similar) == (0.9, 0.9999)
    assert "0.9 was asked for" in lower.source


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_no_other_number_is_a_threshold(value: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        thresholds_for("ViT-B-32/openai@1a2b3c4d", value)

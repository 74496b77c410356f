"""Passports: what the client takes from one, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from clip_client import ModelInfo, ProtocolMismatch
from clip_client._model import may_be_compared
from clip_client.testing import FakeTriton


def passport(**changes: Any) -> dict[str, Any]:
    return {**FakeTriton(model="ViT-B-32", has_text=True).passport(), **changes}


def read(document: dict[str, Any]) -> ModelInfo:
    return ModelInfo.from_json(json.dumps(document), max_batch_size=32)


def test_a_passport() -> None:
    model = read(passport())
    assert model.id == "ViT-B-32/random:0@00000000"
    assert model.vector_id == "ViT-B-32/random:0@00000000|shortest-bicubic-224x224|original"
    assert model.is_random
    assert (model.dimension, model.max_batch_size) == (8, 32)
    assert model.fingerprint == (1234567, -7654321)
    assert model.canary_image.startswith(b"\x89PNG")
    assert np.isclose(np.linalg.norm(model.canary_vector), 1.0)
    assert model.preprocess["size"] == [224, 224]
    assert model.text is not None
    assert (model.text.context_length, model.text.logit_scale, model.text.logit_bias) == (77, 100.0, None)
    assert model.text_vector_id == "ViT-B-32/random:0@00000000|text-clip-bpe/lower-77"
    assert "canary_vector" not in repr(model.text), "it would fill a screen"
    assert not read(passport(pretrained="laion2b_s34b_b79k")).is_random


def test_a_text_tower_changes_nothing_about_the_images() -> None:
    pair, alone = read(passport()), read(FakeTriton(model="ViT-B-32").passport())
    assert (pair.id, pair.vector_id, pair.fingerprint) == (alone.id, alone.vector_id, alone.fingerprint)
    assert (alone.text, alone.text_vector_id) == (None, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a model's passport"),
        *(
            (json.dumps(passport(**change)), "incomplete")
            for change in ({"fingerprint": [1]}, {"fingerprint": ["a", "b"]}, {"dimension": 9}, {"preprocess": 5})
        ),
        (json.dumps(passport(contract=2)), "contract 2 and this client speaks 1"),
        (json.dumps(passport()).replace("context_length", "length"), "context_length"),
    ],
)
def test_what_is_no_passport_is_refused(text: str, says: str) -> None:
    with pytest.raises(ProtocolMismatch, match=says):
        ModelInfo.from_json(text, max_batch_size=1)


@pytest.mark.parametrize(
    ("first", "second", "may"),
    [
        ("m|p|original", "m|p|original", True),
        ("m|p|original", "m|p|thumb", False),
        ("m|p|original", "m|text-clip-bpe/lower-77", True),
        ("m|text-clip-bpe/lower-77", "m|p|thumb", True),
        ("m|text-clip-bpe/lower-77", "n|p|thumb", False),
        ("m|text-clip-bpe/lower-77", "m|text-clip-bpe/lower-64", False),
        ("m/file:a|b.pt@1|p|thumb", "m/file:a|b.pt@1|text-hf/whitespace-64", True),
        ("m/file:a|b.pt@1|p|thumb", "m/file:a|text-hf/whitespace-64", False),
    ],
)
def test_which_ids_may_be_compared(first: str, second: str, may: bool) -> None:
    assert may_be_compared(first, second) is may_be_compared(second, first) is may

"""Passports: what the client takes from one, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from clip_client import ModelInfo, ProtocolMismatch
from clip_client.testing import FakeTriton


def passport() -> dict[str, Any]:
    return FakeTriton(model="ViT-B-32").passport()


def test_a_passport() -> None:
    model = ModelInfo.from_json(json.dumps(passport()), max_batch_size=32)
    assert model.id == "ViT-B-32/random:0@00000000"
    assert model.vector_id == "ViT-B-32/random:0@00000000|shortest-bicubic-224x224|original"
    assert model.is_random
    assert (model.dimension, model.max_batch_size) == (8, 32)
    assert model.fingerprint == (1234567, -7654321)
    assert model.canary_image.startswith(b"\x89PNG")
    assert np.isclose(np.linalg.norm(model.canary_vector), 1.0)
    assert model.preprocess["size"] == [224, 224]


def test_a_trained_model_is_not_random() -> None:
    model = ModelInfo.from_json(json.dumps({**passport(), "pretrained": "laion2b_s34b_b79k"}), max_batch_size=1)
    assert not model.is_random


@pytest.mark.parametrize("missing", sorted(passport().keys() - {"contract", "id"}))
def test_an_incomplete_passport_is_refused(missing: str) -> None:
    text = json.dumps({name: value for name, value in passport().items() if name != missing})
    with pytest.raises(ProtocolMismatch, match="incomplete"):
        ModelInfo.from_json(text, max_batch_size=1)


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": [1]},
        {"fingerprint": ["a", "b"]},
        {"dimension": 9},
        {"model": ""},
        {"precision": 32},
        {"canary": {"image": "not base64", "vector": [0.0] * 8}},
        {"preprocess": 5},
    ],
)
def test_a_passport_with_a_wrong_value_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolMismatch, match="incomplete"):
        ModelInfo.from_json(json.dumps({**passport(), **change}), max_batch_size=1)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
def test_text_that_is_not_a_passport_is_refused(text: str) -> None:
    with pytest.raises(ProtocolMismatch, match="not"):
        ModelInfo.from_json(text, max_batch_size=1)


def test_another_contract_names_both_versions() -> None:
    with pytest.raises(ProtocolMismatch, match="contract 2 and this client speaks 1"):
        ModelInfo.from_json(json.dumps({**passport(), "contract": 2}), max_batch_size=1)

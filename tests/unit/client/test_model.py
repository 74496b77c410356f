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
    trained = ModelInfo.from_json(json.dumps({**passport(), "pretrained": "laion2b_s34b_b79k"}), max_batch_size=1)
    assert not trained.is_random


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a model's passport"),
        *(
            (json.dumps({**passport(), **change}), "incomplete")
            for change in ({"fingerprint": [1]}, {"fingerprint": ["a", "b"]}, {"dimension": 9}, {"preprocess": 5})
        ),
    ],
)
def test_what_is_no_passport_is_refused(text: str, says: str) -> None:
    with pytest.raises(ProtocolMismatch, match=says):
        ModelInfo.from_json(text, max_batch_size=1)


def test_another_contract_names_both_versions() -> None:
    with pytest.raises(ProtocolMismatch, match="contract 2 and this client speaks 1"):
        ModelInfo.from_json(json.dumps({**passport(), "contract": 2}), max_batch_size=1)

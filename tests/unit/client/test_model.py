"""Passports: what the client takes from one, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from clip_client import ModelInfo, ProtocolMismatch
from clip_client._model import may_be_compared
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


def test_the_passport_of_a_pair_has_a_second_id_for_texts() -> None:
    document = FakeTriton(model="ViT-B-32", has_text=True).passport()
    pair = ModelInfo.from_json(json.dumps(document), max_batch_size=32)
    alone = ModelInfo.from_json(json.dumps(passport()), max_batch_size=32)
    assert pair.text is not None
    assert (pair.text.context_length, pair.text.logit_scale, pair.text.logit_bias) == (77, 100.0, None)
    assert (pair.id, pair.vector_id, pair.fingerprint) == (alone.id, alone.vector_id, alone.fingerprint)
    assert pair.text_vector_id == "ViT-B-32/random:0@00000000|text-clip-bpe/lower-77"
    assert (alone.text, alone.text_vector_id) == (None, None)
    del document["text"]["tokenizer"]["context_length"]
    with pytest.raises(ProtocolMismatch, match="context_length"):
        ModelInfo.from_json(json.dumps(document), max_batch_size=32)


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

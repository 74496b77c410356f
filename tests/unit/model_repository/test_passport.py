import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess_ensemble.model_repository.passport import ContractMismatch, Passport, PassportError, compute_fingerprint
from tests.fixtures.models.passports import PASSPORT


def test_json_keeps_everything_and_is_ascii() -> None:
    text = PASSPORT.to_json()
    assert text.isascii()
    assert Passport.from_json(text) == PASSPORT
    assert json.loads(text)["id"] == "ViT-B-32/file:épreuve.pt@1a2b3c4d"
    assert replace(PASSPORT, weights_dtype="fp16").id == "ViT-B-32/file:épreuve.pt@1a2b3c4d+fp16"


@given(st.binary(max_size=40) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
@settings(deadline=None, max_examples=50, derandomize=True)
def test_any_other_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(PassportError, match=r"^The text is not a model's passport; export the model again\.$"):
        Passport.from_json(text)


def test_another_contract_is_refused_and_named() -> None:
    document = json.loads(PASSPORT.to_json()) | {"contract": 2}
    with pytest.raises(ContractMismatch, match=r"^The model .* contract 2 and .*; export the model again\.$") as caught:
        Passport.from_json(json.dumps(document))
    assert caught.value.found == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": ""}, "ValueError: model must be a text that is not empty"),
        ({"precision": 32}, "ValueError: precision must be a text that is not empty"),
        ({"fingerprint": [1]}, "ValueError: not enough values to unpack (expected 2, got 1)"),
        ({"onnx": 17}, "TypeError: 'int' object is not subscriptable"),
        ({"text": {"gate": 1}}, "KeyError: 'tokenizer'"),
        ({"dimension": 3}, "ValueError: a canary has 2 numbers, not 3"),
        ({"canary": {"image": "ab*c=", "vector": [0.6, 0.8]}}, "Error: Only base64 data is allowed"),
    ],
    ids=["empty", "a number", "one of two", "no object", "no text tower", "another length", "no base64"],
)
def test_a_field_of_another_kind_is_refused_with_its_reason(change: dict[str, Any], reason: str) -> None:
    document = json.loads(PASSPORT.to_json()) | change
    with pytest.raises(PassportError) as caught:
        Passport.from_json(json.dumps(document))
    assert str(caught.value) == f"The model's passport is incomplete ({reason}); export the model again."


def test_a_passport_holds_no_number_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(PASSPORT, parity=replace(PASSPORT.parity, min_cosine=float("nan"))).to_json()


EXTRA = {"contract", "exported_at", "graph_revision", "id"}  # fields that may be missing, or are compared before


@pytest.mark.parametrize("key", sorted(json.loads(PASSPORT.to_json()).keys() - EXTRA))
def test_a_missing_field_is_named(key: str) -> None:
    document = json.loads(PASSPORT.to_json())
    del document[key]
    with pytest.raises(PassportError, match=key):
        Passport.from_json(json.dumps(document))


def test_a_passport_of_an_earlier_export_has_no_time() -> None:
    document = json.loads(replace(PASSPORT, exported_at=7).to_json())
    assert Passport.from_json(json.dumps(document)).exported_at == 7
    del document["exported_at"]
    assert Passport.from_json(json.dumps(document)).exported_at == 0


IDENTITY: dict[str, Any] = {
    "model": "ViT-B-32",
    "weights_sha256": "00",
    "preprocess": {"size": [224, 224], "interpolation": "bicubic"},
    "weights_dtype": "fp32",
}


def test_whatever_decides_a_vector_changes_the_fingerprint() -> None:
    bilinear = {"size": [224, 224], "interpolation": "bilinear"}
    others = {"model": "ViT-B-32-quickgelu", "weights_sha256": "01", "preprocess": bilinear, "weights_dtype": "fp16"}
    assert others.keys() == IDENTITY.keys()
    found = {compute_fingerprint(**{**IDENTITY, key: value}) for key, value in others.items()}
    assert len(found | {compute_fingerprint(**IDENTITY)}) == 5


def test_the_fingerprint_of_a_known_model_never_changes() -> None:
    # Stores and exported models hold it: if this value changes, no client accepts a server that was set up before.
    assert compute_fingerprint(**IDENTITY) == (1568289197, 311227643)
    assert compute_fingerprint(**{**IDENTITY, "weights_sha256": "04"}) == (-1109935641, -924442616)

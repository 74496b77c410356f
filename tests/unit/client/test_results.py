"""What a caller gets: batches, items, errors, and what a model's passport says."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import clip_client
from clip_client import (
    ClipError,
    DeadlineExceeded,
    EmbeddedItem,
    EmbeddingBatch,
    ImageError,
    ItemError,
    ItemErrors,
    ModelInfo,
    ProtocolMismatch,
)
from clip_client._model import Tower, may_be_compared
from clip_client._pipeline.chunk import Chunk, Collector
from clip_client.testing import FakeTriton
from tests.fixtures.models.model_info import model_info

KINDS = [value for value in vars(clip_client).values() if isinstance(value, type) and issubclass(value, ClipError)]
TRUNCATED = ImageError("The file ends early.", code="TRUNCATED", index=1, source="b.jpg", request_id="r")


def batch(**changes: Any) -> EmbeddingBatch:
    vectors = np.array([[1, 0], [np.nan, np.nan], [0, 1]], dtype=np.float32)
    known: dict[str, Any] = {"vectors": vectors, "errors": {1: TRUNCATED}, "model_id": "m", "vector_id": "m|p|original"}
    return EmbeddingBatch(**{**known, **changes})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not issubclass(kind, ItemError | ItemErrors)])
def test_errors_survive_copies_and_processes(kind: type[ClipError]) -> None:
    error = kind("a sentence.", request_id="r")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind
        assert (twin.message, twin.request_id, str(twin)) == ("a sentence.", "r", "a sentence. (request r)")


def test_image_errors_survive_copies_and_processes() -> None:
    both = ItemErrors({1: TRUNCATED, 5: TRUNCATED})
    for twin in (copy.copy(TRUNCATED), *(pickle.loads(pickle.dumps(both)).errors[index] for index in (1, 5))):
        assert (twin.code, twin.index, twin.source, twin.request_id) == ("TRUNCATED", 1, "b.jpg", "r")
        assert str(twin) == "b.jpg: TRUNCATED: The file ends early. (request r)"
    assert str(pickle.loads(pickle.dumps(both))) == str(both) == f"2 images failed, such as {TRUNCATED}"
    assert str(ImageError("no.", code="EMPTY", index=7)) == "image 7: EMPTY: no."


def test_sources_are_paths_or_none_and_as_many_as_the_vectors() -> None:
    assert batch().sources == (None, None, None)
    assert len(batch(sources=("a", None, "c"))) == 3
    with pytest.raises(ValueError, match="1 sources for 3 vectors"):
        batch(sources=("a",))


def test_a_late_image_is_named() -> None:
    collector = Collector(model_info(), Tower.IMAGE, expected=2, keeps_late=True)
    good, late = (Chunk(cast("Any", None), first, [b""], None) for first in (0, 1))
    good.vectors, good.truncated = np.ones((1, 2), np.float32), [False]
    late.errors = {0: DeadlineExceeded("late", request_id="r")}
    collector.add(good, [None])
    collector.add(late, ["b.jpg"])
    error = collector.batch().errors[1]
    assert (error.code, error.index, error.source, error.request_id) == ("TIMEOUT", 1, "b.jpg", "r")


def test_arrow_has_one_row_for_each_image() -> None:
    table = batch(sources=("a.jpg", "b.jpg", os.fsdecode(b"caf\xe9.jpg"))).to_arrow()
    assert table.column("path").to_pylist() == ["a.jpg", "b.jpg", "caf\\xe9.jpg"]
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 2)
    np.testing.assert_array_equal(np.array(table.column("vector").to_pylist()), batch().vectors)
    assert table.column("error_code").to_pylist() == [None, "TRUNCATED", None]
    assert table.column("error").to_pylist() == [None, "The file ends early.", None]
    assert table.schema.metadata == {b"model": b"m", b"vector_id": b"m|p|original", b"dimension": b"2"}


def test_a_missing_pandas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas .*install it with: pip install pandas"):
        batch().to_pandas()


def test_reprs_show_shape_source_and_code_and_no_content() -> None:
    assert repr(batch()) == "EmbeddingBatch(3 x 2 float32, 1 failed, vector_id='m|p|original')"
    assert repr(TRUNCATED) == "ImageError('The file ends early.', code='TRUNCATED', index=1, source='b.jpg')"
    vector = np.zeros(2, np.float32)
    for source, shown in (
        ("a.jpg", "'a.jpg'"),
        (b"secret", "<6 bytes>"),
        (np.zeros((4, 6, 3), np.uint8), "<array (4, 6, 3)>"),
    ):
        item = EmbeddedItem(index=0, source=source, vector=vector, error=None)
        assert repr(item) == f"EmbeddedItem(index=0, source={shown}, vector=float32(2,))"
    failed = EmbeddedItem(index=1, source="b.jpg", vector=None, error=TRUNCATED)
    assert repr(failed) == f"EmbeddedItem(index=1, source='b.jpg', error={TRUNCATED!r})"
    assert repr(model_info()) == "ModelInfo('m', dimension=2, weights_dtype='fp32', vector_id='m|p|original')"


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
    alone = read(FakeTriton(model="ViT-B-32").passport())
    assert (model.id, model.vector_id, model.fingerprint) == (alone.id, alone.vector_id, alone.fingerprint)
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

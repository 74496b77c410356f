"""The results that a caller gets: batches, items and errors."""

from __future__ import annotations

import copy
import os
import pickle
import re
import sys
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import clip_client
from clip_client import ClipError, DeadlineExceeded, EmbeddedItem, EmbeddingBatch, ImageError, ItemError, ItemErrors
from clip_client._model import Tower
from clip_client._pipeline.chunk import Chunk, Collector
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


@pytest.mark.parametrize(
    ("method", "package", "command"),
    [("to_arrow", "pyarrow", "pip install '.[cli]'"), ("to_pandas", "pandas", "pip install pandas")],
)
def test_a_missing_package_is_named(method: str, package: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"needs {package} .*install it with: {re.escape(command)}"):
        getattr(batch(), method)()


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

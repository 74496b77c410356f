from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from clip_client import DeadlineExceeded, EmbeddedItem, EmbeddingBatch, ImageError
from clip_client._model import Tower
from clip_client._results import Collector
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import InMemoryClient
from tests.fixtures.models.model_info import model_info

if TYPE_CHECKING:
    from pathlib import Path

TRUNCATED = ImageError("The file ends early.", code="TRUNCATED", index=1, source="b.jpg")


def batch(**changes: Any) -> EmbeddingBatch:
    """Three images, of which the second failed."""
    vectors = np.array([[1, 0], [np.nan, np.nan], [0, 1]], dtype=np.float32)
    known: dict[str, Any] = {"vectors": vectors, "errors": {1: TRUNCATED}, "model_id": "m", "vector_id": "m|p|original"}
    return EmbeddingBatch(**{**known, **changes})


def test_sources_are_paths_or_none_and_as_many_as_the_vectors() -> None:
    assert batch().sources == (None, None, None)
    assert len(batch(sources=("a", None, "c"))) == 3
    with pytest.raises(ValueError, match="1 sources for 3 vectors"):
        batch(sources=("a",))


async def test_embed_keeps_paths_and_drops_images(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"a")
    fake = FakeTriton()
    fake.script(Reply(row_errors={1: (4, "The file ends early.")}))
    async with InMemoryClient({"localhost": fake}) as clip:
        found = await clip.embed([b"0", b"1", path])
    assert found.sources == (None, None, str(path))
    assert list(found.errors) == [1]


def test_a_late_image_is_named() -> None:
    collector = Collector(model_info(), Tower.IMAGE, expected=2)
    collector.add(0, None, (np.ones(2, np.float32), False))
    collector.add(1, "b.jpg", DeadlineExceeded("late", request_id="r"))
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


@pytest.mark.parametrize(("method", "package"), [("to_arrow", "pyarrow"), ("to_pandas", "pandas")])
def test_a_missing_package_is_named(method: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"needs {package} .*install it with: pip install"):
        getattr(batch(), method)()


def test_reprs_show_shape_source_and_code_and_no_content() -> None:
    assert repr(batch()) == "EmbeddingBatch(3 x 2 float32, 1 failed, vector_id='m|p|original')"
    assert repr(TRUNCATED) == "ImageError('The file ends early.', code='TRUNCATED', index=1, source='b.jpg')"
    vector = np.zeros(2, np.float32)
    assert [
        repr(EmbeddedItem(index=0, source=source, vector=vector, error=None))
        for source in ("a.jpg", b"secret", np.zeros((4, 6, 3), np.uint8))
    ] == [
        "EmbeddedItem(index=0, source='a.jpg', vector=float32(2,))",
        "EmbeddedItem(index=0, source=<6 bytes>, vector=float32(2,))",
        "EmbeddedItem(index=0, source=<array (4, 6, 3)>, vector=float32(2,))",
    ]
    failed = EmbeddedItem(index=1, source="b.jpg", vector=None, error=TRUNCATED)
    assert repr(failed) == f"EmbeddedItem(index=1, source='b.jpg', error={TRUNCATED!r})"
    assert repr(model_info()) == "ModelInfo('m', dimension=2, precision='fp32', vector_id='m|p|original')"

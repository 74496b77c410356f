from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clip_client import EmbeddingBatch, VectorsError, save_vectors
from clip_client.search import PhotoIndex, photo_index


def unit(count: int, dimension: int, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)  # type: ignore[no-any-return]


def names(count: int) -> list[str]:
    return [f"/photos/{number}.jpg" for number in range(count)]


def index_of(keys: list[str], vectors: NDArray[Any], vector_id: str = "") -> PhotoIndex:
    index = PhotoIndex(vectors.shape[1], vector_id=vector_id)
    index.add(keys, vectors)
    return index


@given(
    count=st.integers(1, 2000), k=st.integers(1, 700), seed=st.integers(0, 5), spread=st.sampled_from([1.0, 1e-3, 1e-5])
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_the_nearest_are_those_of_a_full_sort_in_32_bits(count: int, k: int, seed: int, spread: float) -> None:
    vectors = unit(1, 16, 9) + spread * unit(count, 16, seed)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = unit(1, 16, 7)[0]
    hits = index_of(names(count), vectors).nearest(query, k)
    expected = np.sort(vectors @ query)[::-1][:k]
    assert len({hit.row for hit in hits}) == len(hits) == min(k, count)
    np.testing.assert_allclose([hit.score for hit in hits], expected, atol=3e-7)
    assert [hit.key for hit in hits] == [f"/photos/{hit.row}.jpg" for hit in hits]


@pytest.mark.parametrize("count", [37, 1001, 5003])
def test_equal_photos_are_in_the_order_of_their_rows(count: int) -> None:
    """A product of many rows rounds some of them differently."""
    index = index_of(names(count), np.tile(unit(1, 512, 4), (count, 1)))
    for query in unit(20, 512, 5):
        assert [hit.row for hit in index.nearest(query, 9)] == list(range(9))


def test_only_photos_that_count_are_found() -> None:
    vectors, query = unit(5000, 8), unit(1, 8, 3)[0]
    index = index_of(names(5000), vectors)
    among = np.random.default_rng(1).random(5000) < 0.01
    found = [hit.row for hit in index.nearest(query, 20, among=among)]
    rows = np.flatnonzero(among)
    assert found == rows[np.argsort(-(vectors[rows] @ query))][:20].tolist()
    assert index.nearest(query, 20, among=np.zeros(5000, dtype=bool)) == []


def test_an_index_can_grow_and_shrink_and_is_the_same_after_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photo_index, "MOST_IN_SEGMENT", 64)
    vectors = unit(300, 8)
    index = index_of(names(200), vectors[:200], vector_id="m|p|t")
    index.save(tmp_path)
    folders = {path.name for path in tmp_path.iterdir()}
    index = PhotoIndex.open(tmp_path)
    assert (index.vector_id, len(index)) == ("m|p|t", 200)
    index.add(names(300)[190:], vectors[190:])
    assert index.remove(["/photos/3.jpg", "/photos/299.jpg", "/absent"]) == 2
    expected = [name for name in names(300) if name not in ("/photos/3.jpg", "/photos/299.jpg")]
    assert sorted(index.keys()) == sorted(expected)
    before = index.nearest(vectors[5], 298)
    index.save(tmp_path)
    again = PhotoIndex.open(tmp_path)
    assert [hit[:2] for hit in again.nearest(vectors[5], 298)] == [hit[:2] for hit in before]
    assert sorted(again.keys()) == sorted(expected)
    # Parts that have not changed are not written again.
    assert len(folders & {path.name for path in tmp_path.iterdir()}) >= 2
    vector = again.vector("/photos/7.jpg")
    assert vector is not None
    np.testing.assert_allclose(vector, vectors[7], atol=1e-7)
    assert again.vector("/photos/3.jpg") is None


def test_a_key_has_one_vector_and_rows_without_direction_are_left_out() -> None:
    vectors = np.array([[1, 0], [np.nan, 0], [0, 0], [0, 3]], dtype=np.float32)
    index = index_of(["a", "b", "c", "a"], vectors)
    assert [(hit.key, round(hit.score, 3)) for hit in index.nearest(np.array([0, 1]), 9)] == [("a", 1.0)]


def test_small_parts_are_merged(tmp_path: Path) -> None:
    index = PhotoIndex(4)
    for number in range(40):
        index.add([str(number)], unit(1, 4, number))
        index.save(tmp_path)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) <= 7
    assert len(PhotoIndex.open(tmp_path)) == 40


def test_a_reader_keeps_what_it_has_opened_while_another_process_saves(tmp_path: Path) -> None:
    vectors = unit(50, 4)
    index_of(names(50), vectors).save(tmp_path)
    reader, writer = PhotoIndex.open(tmp_path), PhotoIndex.open(tmp_path)
    writer.remove(names(25))
    writer.save(tmp_path)
    assert len(reader.nearest(vectors[0], 50)) == 50
    assert len(PhotoIndex.open(tmp_path).nearest(vectors[0], 50)) == 25


@pytest.mark.parametrize("name", ["v.parquet", "v.npz", "folder"])
def test_what_embed_wrote_is_an_index_by_path(tmp_path: Path, name: str) -> None:
    vectors = unit(30, 4)
    vectors[4] = np.nan
    batch = EmbeddingBatch(
        vectors=vectors, errors={}, model_id="m", vector_id="m|p|t", sources=(*names(29), "/caf\udce9.jpg")
    )
    save_vectors(tmp_path / name, batch)
    index = PhotoIndex.from_vectors(tmp_path / name)
    assert (len(index), index.vector_id) == (29, "m|p|t")
    assert index.nearest(vectors[29], 1)[0].key == "/caf\udce9.jpg"


@pytest.mark.parametrize(
    ("query", "message"),
    [(np.ones(3), "of 2 numbers"), (np.zeros(2), "zero"), (np.full(2, np.nan), "NaN"), (np.full(2, np.inf), "NaN")],
)
def test_a_query_that_cannot_be_searched_is_one_sentence(query: NDArray[np.float64], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        index_of(["a"], np.ones((1, 2))).nearest(query)


def test_a_batch_is_refused_with_what_to_pass_instead() -> None:
    index = PhotoIndex(2)
    batch: Any = EmbeddingBatch(vectors=np.ones((1, 2), np.float32), errors={}, model_id="m", vector_id="m|p|t")
    for method, arguments in ((index.add, (["a"], batch)), (index.nearest, (batch,))):
        with pytest.raises(TypeError, match=r"an index takes arrays: pass batch\.vectors"):
            method(*arguments)


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PhotoIndex.open(tmp_path)
    index_of(names(9), unit(9, 4)).save(tmp_path)
    (vectors,) = tmp_path.glob("*/exact.npy")
    vectors.write_bytes(vectors.read_bytes()[:40])
    with pytest.raises(VectorsError, match="is damaged"):
        PhotoIndex.open(tmp_path)
    vectors.unlink()
    with pytest.raises(VectorsError, match="a part is missing"):
        PhotoIndex.open(tmp_path)
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(VectorsError, match="is damaged"):
        PhotoIndex.open(tmp_path)

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clip_client import EmbeddingBatch, Neighbour, VectorsError, nearest, save_vectors


def batch_of(vectors: Any, paths: tuple[str, ...] = (), *, vector_id: str = "m|p|original") -> EmbeddingBatch:
    rows = np.array(vectors, dtype=np.float32)
    return EmbeddingBatch(vectors=rows, errors={}, model_id="m", vector_id=vector_id, sources=paths)


def check_nearest(cosines: NDArray[np.float64], count: int) -> None:
    """Search vectors with these cosines to a query, and compare with a full sort."""
    paths = tuple(f"/{number:05}" for number in range(len(cosines)))
    best = nearest(np.array([1, 0]), batch_of(np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1), paths), count)
    assert [found.cosine for found in best] == pytest.approx(sorted(cosines.tolist(), reverse=True)[:count], abs=1e-6)
    for found in best:
        assert found.path == paths[found.row]
        assert found.cosine == pytest.approx(float(cosines[found.row]), abs=1e-6)
    assert len({found.row for found in best}) == len(best)


@given(eighths=st.lists(st.integers(-8, 8), min_size=1, max_size=40), count=st.integers(1, 10))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_the_nearest_are_those_of_a_full_sort(eighths: list[int], count: int) -> None:
    check_nearest(np.array(eighths) / 8, count)


def test_a_large_batch_is_searched_in_blocks() -> None:
    check_nearest(np.random.default_rng(0).integers(-8, 9, 20_000) / 8, 1500)


def test_cosines_do_not_depend_on_length_and_nothing_is_near_to_nan_or_zero() -> None:
    vectors = np.array([[3, 0], [0, 0], [np.nan, np.nan], [-1, 0], [1, 1]])
    found = [(one.row, round(one.cosine, 3), one.path) for one in nearest(np.array([5.0, 0.0]), vectors)]
    assert found == [(0, 1, None), (4, 0.707, None), (3, -1, None)]


def test_a_batch_gets_a_list_for_each_image_and_none_for_a_failed_one() -> None:
    photos = batch_of([[1, 0], [0, 1]], ("/a", "/b"))
    queries = batch_of([[0, 1], [np.nan, np.nan], [1, 0]])
    assert nearest(queries, photos, k=1) == [[Neighbour("/b", 1.0, 1)], [], [Neighbour("/a", 1.0, 0)]]


@pytest.mark.parametrize("name", ["vectors.parquet", "vectors.npz", "vectors"])
def test_files_are_searched_like_the_batch_in_them(tmp_path: Path, name: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)
    vectors[7] = np.nan
    photos = batch_of(vectors, tuple(f"/{number}.jpg" for number in range(len(vectors))))
    save_vectors(tmp_path / name, photos)
    assert nearest(vectors[2500], tmp_path / name, k=20) == nearest(vectors[2500], photos, k=20)
    first = nearest(vectors[2500], photos)[0]
    assert (first.path, round(first.cosine, 6), first.row) == ("/2500.jpg", 1.0, 2500)


def test_vectors_of_another_id_are_refused(tmp_path: Path) -> None:
    photos = batch_of([[1, 0]], ("/a",), vector_id="other")
    with pytest.raises(
        VectorsError, match=r"vectors of other, which must not be compared with those of m\|p\|original"
    ):
        nearest(batch_of([[1, 0]]), photos)
    save_vectors(tmp_path / "v.npz", photos)
    with pytest.raises(VectorsError, match=r"v\.npz holds vectors of other, which must not be compared"):
        nearest(batch_of([[1, 0]]), tmp_path / "v.npz")


@pytest.mark.parametrize(
    ("query", "vectors", "k", "message"),
    [
        (np.ones(2), np.ones((1, 2)), 0, "k must be at least 1, got 0"),
        (np.ones((3, 2)), np.ones((1, 2)), 1, r"one vector \(D,\) or an EmbeddingBatch, got an array \(3, 2\)"),
        (np.full(2, np.nan), np.ones((1, 2)), 1, "the query is NaN or zero"),
        (np.ones(2), np.ones(2), 1, r"must have the shape \(N, D\), got \(2,\)"),
        (np.ones(2), np.ones((1, 3)), 1, "the query has 2 numbers and the vectors have 3"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(
    query: NDArray[Any], vectors: NDArray[Any], k: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        nearest(query, vectors, k)

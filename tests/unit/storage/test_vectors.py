"""Vectors in files and folders: saved, loaded, refused, and searched for those that are nearest."""

import builtins
import errno
import io
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clip_client import EmbeddingBatch, ImageError, Neighbour, VectorsError, load_vectors, nearest, save_vectors
from clip_client._storage.lock import exclusive_lock
from clip_client._storage.vector_file import FileVersion, VectorFolder, is_vector_folder, vector_row
from clip_client.cli.errors import CommandFailed
from clip_client.cli.output import locked
from clip_client.dedup import FailedFile, StoreError
from tests.fixtures.albums import refusing
from tests.fixtures.models.model_info import model_info

NAMES = ("vectors.parquet", "vectors.npz", "vectors")
PHOTOS = ("/a.jpg", os.fsdecode(b"/caf\xe9.jpg"), "/c.jpg")


def batch(*paths: str | None, vector_id: str = "m|p|original", dimension: int = 4) -> EmbeddingBatch:
    vectors = np.arange(len(paths) * dimension, dtype=np.float32).reshape(-1, dimension)
    vectors[1] = np.nan
    error = ImageError("The file ends early.", code="TRUNCATED", index=1, source=paths[1])
    return EmbeddingBatch(vectors=vectors, errors={1: error}, model_id="m", vector_id=vector_id, sources=paths)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_saved_is_loaded(tmp_path: Path, name: str) -> None:
    saved = batch(*PHOTOS)
    save_vectors(tmp_path / name, saved)
    loaded = load_vectors(str(tmp_path / name))
    np.testing.assert_array_equal(loaded.vectors, saved.vectors)
    assert loaded.vectors.dtype == np.float32
    assert (loaded.sources, loaded.model_id, loaded.vector_id) == (PHOTOS, "m", "m|p|original")
    assert repr(loaded.errors) == repr(saved.errors)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_file_is_replaced_and_holds_images_without_paths(tmp_path: Path, name: str) -> None:
    save_vectors(tmp_path / name, batch(*PHOTOS))
    save_vectors(tmp_path / name, batch(None, None))
    assert load_vectors(tmp_path / name).sources == (None, None)


def test_a_folder_is_added_to_and_the_last_result_of_a_path_counts(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "vectors"
    save_vectors(folder, batch("/a.jpg", "/b.jpg"))
    save_vectors(folder, batch("/b.jpg", "/c.jpg"))
    loaded = load_vectors(folder)
    assert loaded.sources == ("/a.jpg", "/b.jpg", "/c.jpg")
    assert {index: error.index for index, error in loaded.errors.items()} == {2: 2}
    assert loaded.vectors[1].tolist() == [0, 1, 2, 3]


def test_a_folder_refuses_what_it_could_not_tell_apart_or_compare(tmp_path: Path) -> None:
    with pytest.raises(VectorsError, match="image 1 has no path, and a folder finds vectors by path"):
        save_vectors(tmp_path / "vectors", batch("/a.jpg", None))
    with pytest.raises(VectorsError, match=r"text 0 has no path, and a folder .* by path: save to a \.parquet"):
        save_vectors(tmp_path / "vectors", batch(None, None, vector_id="m|text-clip/lower-77"))
    save_vectors(tmp_path, batch(*PHOTOS))
    with pytest.raises(VectorsError, match=r"holds vectors of m\|p\|original, which must not be compared .* other"):
        save_vectors(tmp_path, batch(*PHOTOS, vector_id="other"))
    (tmp_path / "other").mkdir()
    save_vectors(tmp_path / "other", batch(*PHOTOS, vector_id="other"))
    (tmp_path / "other" / "part-00000.parquet").rename(tmp_path / "part-00001.parquet")
    with pytest.raises(VectorsError, match="holds vectors of other"):
        load_vectors(tmp_path)


@pytest.mark.parametrize("name", ["vectors.parquet", "vectors"])
def test_files_are_read_in_the_thread_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A thread of pyarrow's that still holds a file of Python's aborts a process that ends."""
    save_vectors(tmp_path / name, batch(*PHOTOS))
    threads = set()

    class Watched(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            threads.add(threading.get_ident())
            return super().read(size) or b""

    monkeypatch.setattr(builtins, "open", lambda path, mode: Watched(path, mode))
    load_vectors(tmp_path / name)
    assert threads == {threading.get_ident()}


def test_one_process_at_a_time_writes_into_a_folder(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / ".lock"), pytest.raises(VectorsError, match="another process is writing"):
        save_vectors(tmp_path, batch(*PHOTOS))


def archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def table(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.parquet", b"no Parquet at all", "is not a file of vectors, or is damaged"),
        ("v.parquet", table(x=[1]), "does not name the model"),
        ("v.npz", b"no archive", "is not a file of vectors, or is damaged"),
        ("v.npz", b"PK\3\4 no archive", "is not a file of vectors, or is damaged"),
        ("v.npz", archive(x=np.zeros(2)), "is not a file of vectors"),
        ("part-00000.parquet", b"no Parquet at all", "cannot be read .*move it away"),
        ("part-00000.parquet", table(x=[1]), "does not name the model"),
        ("part-of-none.txt", b"", "there are no vectors in"),
    ],
)
def test_a_damaged_or_other_file_is_one_sentence(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(VectorsError, match=message):
        load_vectors(tmp_path if name.startswith("part") else tmp_path / name)
    with pytest.raises(FileNotFoundError):
        load_vectors(tmp_path / f"absent {name}")


def test_a_disk_that_refuses_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_vectors(tmp_path / "v.npz", batch(*PHOTOS))
    before = (tmp_path / "v.npz").read_bytes()
    monkeypatch.setattr(os, "fsync", refusing(os.fsync, OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        save_vectors(tmp_path / "v.npz", batch("/other.jpg", "/b.jpg"))
    assert [path.name for path in tmp_path.iterdir()] == ["v.npz"]
    assert (tmp_path / "v.npz").read_bytes() == before


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    saved = batch(*PHOTOS)
    for use in (lambda: load_vectors(tmp_path / "v.parquet"), lambda: save_vectors(tmp_path, saved), saved.to_arrow):
        with pytest.raises(ImportError, match=r"needs pyarrow .*pip install '\.\[cli\]' in a clone"):
            use()


DIMENSION = 4


def opened(folder: Path, *, rows_per_file: int = 3) -> VectorFolder:
    made = VectorFolder(folder, model_info(id="m", dimension=DIMENSION))
    made.rows_per_file = rows_per_file
    return made


def version(path: str) -> FileVersion:
    return FileVersion(path=path, size_bytes=10, mtime_ns=1)


def good(path: str, *, element: int = 0) -> Mapping[str, Any]:
    return vector_row(version(path), np.eye(DIMENSION, dtype=np.float32)[element])


def write(folder: Path, *rows: Mapping[str, Any]) -> None:
    out = opened(folder)
    for row in rows:
        out.add(row)
    out.flush()


def vectors_in(folder: Path) -> dict[str | None, list[float]]:
    found: dict[str | None, list[float]] = {}
    for batch in opened(folder).batches():
        assert set(batch.errors) == {row for row, vector in enumerate(batch.vectors) if np.isnan(vector).all()}
        found.update((source, batch.vectors[row].tolist()) for row, source in enumerate(batch.sources))
    return {path: vector for path, vector in found.items() if not np.isnan(vector).any()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_are_numbered_on_from_what_is_there_and_a_hundred_thousand_stay_in_order(tmp_path: Path) -> None:
    write(tmp_path, *(good(f"/{number}") for number in range(7)))
    write(tmp_path, good("/7", element=1))
    assert names(tmp_path) == [f"part-0000{number}.parquet" for number in range(4)]
    assert [pq.ParquetFile(tmp_path / name).metadata.num_rows for name in names(tmp_path)] == [3, 3, 1, 1]
    (tmp_path / "part-00003.parquet").rename(tmp_path / "part-99999.parquet")
    write(tmp_path, good("/7", element=2))
    assert names(tmp_path)[3:] == ["part-100000.parquet", "part-99999.parquet"]
    assert vectors_in(tmp_path)["/7"] == [0, 0, 1, 0]


def test_a_slow_run_writes_files_by_the_clock_and_one_without_rows_none(tmp_path: Path) -> None:
    write(tmp_path)
    assert not is_vector_folder(tmp_path)
    assert not is_vector_folder(tmp_path / "absent")
    assert vectors_in(tmp_path) == {}
    out = opened(tmp_path, rows_per_file=1000)
    out.seconds_per_file = 0.0
    out.add(good("/a"))
    assert [path.name for path in out.written] == names(tmp_path) == ["part-00000.parquet"]
    assert is_vector_folder(tmp_path)


def test_what_is_finished_is_known_by_path_size_and_time_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder, photo = tmp_path / os.fsdecode(b"caf\xe9"), tmp_path / os.fsdecode(b"caf\xe9.jpg")
    photo.write_bytes(b"x")
    file = FileVersion.of(str(photo))
    failed = FailedFile(path="/b", code="TRUNCATED", message="The file ends early.")
    write(folder, vector_row(file, np.zeros(DIMENSION, np.float32)), vector_row(version("/b"), failure=failed))
    assert opened(folder).finished_keys(with_failed=False) == {FileVersion.of(str(photo)).key}
    assert opened(folder).finished_keys(with_failed=True) == {file.key, version("/b").key}
    assert list(vectors_in(folder)) == [str(photo)]
    os.utime(photo, ns=(0, 1))
    touched = FileVersion.of(str(photo))
    photo.write_bytes(b"longer")
    os.utime(photo, ns=(0, 1))
    assert len({file.key, touched.key, FileVersion.of(str(photo)).key}) == 3
    photo.unlink()
    assert FileVersion.of(str(photo)) == FileVersion(path=str(photo))


def test_damaged_and_strange_files_are_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, good("/a"), good("/b"), good("/c"))
    file = tmp_path / "part-00000.parquet"
    file.write_bytes(file.read_bytes()[:4] + bytes(196) + file.read_bytes()[200:])  # in a row group
    with pytest.raises(StoreError, match="move it away"):
        vectors_in(tmp_path)
    pq.write_table(pa.table({"x": [1]}, metadata={"model": "m", "vector_id": "m|p|original", "dimension": "4"}), file)
    with pytest.raises(StoreError, match="does not belong in this folder"):
        vectors_in(tmp_path)


def test_one_run_at_a_time_writes_into_a_folder_that_can_be_made(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with locked(folder):
        with pytest.raises(CommandFailed, match="another clip-client is writing"), locked(folder):
            pass
    with locked(folder):
        (folder / "file").touch()
    with pytest.raises(CommandFailed, match="cannot write into"), locked(folder / "file"):
        pass


def test_a_folder_that_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", refusing(Path.iterdir, PermissionError(13, "Permission denied")))
    with pytest.raises(StoreError, match="cannot be read: Permission denied"):
        opened(tmp_path)


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

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.cli.commands.similar import _Nearest
from clip_client.cli.errors import CommandFailed
from clip_client.cli.output.output_file import locked
from clip_client.cli.output.photo_file import PhotoFile, PhotoRow
from clip_client.cli.output.vector_shards import (
    ShardWriter,
    check_vector_id,
    finished_keys,
    read_vectors,
    shards_in,
    vector_id_of,
)
from clip_client.dedup import FailedFile

if TYPE_CHECKING:
    from pathlib import Path

DIMENSION = 4


def writer(folder: Path, *, rows_per_shard: int = 3, vector_id: str = "m|p|original", **options: Any) -> ShardWriter:
    return ShardWriter(
        folder, rows_per_shard=rows_per_shard, model_id="m", vector_id=vector_id, dimension=DIMENSION, **options
    )


def good(path: str, *, mtime_ns: int = 1, element: int = 0) -> PhotoRow:
    vector = np.eye(DIMENSION, dtype=np.float32)[element]
    return PhotoRow(file=PhotoFile(path=path, size_bytes=10, mtime_ns=mtime_ns), vector=vector)


def bad(path: str, *, mtime_ns: int = 1) -> PhotoRow:
    reason = FailedFile(path=path, code="TRUNCATED", message="The file ends early.")
    return PhotoRow(file=PhotoFile(path=path, size_bytes=10, mtime_ns=mtime_ns), failure=reason)


def write(folder: Path, *rows: PhotoRow) -> None:
    out = writer(folder)
    for row in rows:
        out.add(row)
    out.finish()


def test_shards_are_numbered_on_from_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, *(good(f"/{number}") for number in range(7)))
    write(tmp_path, good("/7"))
    names = [shard.name for shard in shards_in(tmp_path)]
    assert names == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet", "part-00003.parquet"]
    assert [pq.ParquetFile(shard).metadata.num_rows for shard in shards_in(tmp_path)] == [3, 3, 1, 1]


def test_a_hundred_thousand_shards_stay_in_order(tmp_path: Path) -> None:
    for number in (100_000, 99_999):
        (tmp_path / f"part-{number:05}.parquet").touch()
    assert [shard.name for shard in shards_in(tmp_path)] == ["part-99999.parquet", "part-100000.parquet"]


def test_nothing_to_write_is_no_shard(tmp_path: Path) -> None:
    write(tmp_path)
    assert shards_in(tmp_path) == []
    assert shards_in(tmp_path / "absent") == []
    assert vector_id_of([]) is None


def test_a_slow_run_closes_shards_by_the_clock(tmp_path: Path) -> None:
    out = writer(tmp_path, rows_per_shard=1000, seconds_per_shard=0.0)
    out.add(good("/a"))
    assert [shard.name for shard in out.written] == ["part-00000.parquet"]


def test_what_is_finished_is_known_by_path_size_and_time(tmp_path: Path) -> None:
    write(tmp_path, good("/a"), bad("/b"), good("/caf\udce9"))
    keys = finished_keys(shards_in(tmp_path), with_failed=False)
    assert keys == {good("/a").file.key, good("/caf\udce9").file.key}
    assert good("/a", mtime_ns=2).file.key not in keys
    assert finished_keys(shards_in(tmp_path), with_failed=True) == keys | {bad("/b").file.key}


def test_a_file_has_one_key_on_the_disk_and_in_a_shard(tmp_path: Path) -> None:
    photo = tmp_path / os.fsdecode(b"caf\xe9.jpg")
    photo.write_bytes(b"x")
    file = PhotoFile.look_at(str(photo))
    write(tmp_path, PhotoRow(file=file, vector=np.zeros(DIMENSION, dtype=np.float32)))
    assert finished_keys(shards_in(tmp_path), with_failed=False) == {PhotoFile.look_at(str(photo)).key}
    photo.write_bytes(b"longer")
    assert PhotoFile.look_at(str(photo)).key != file.key


def test_the_last_row_of_a_path_counts(tmp_path: Path) -> None:
    write(tmp_path, good("/a"), good("/b"), bad("/c"))
    write(tmp_path, good("/a", mtime_ns=2, element=1), bad("/b", mtime_ns=2), good("/c", element=2))
    found = {
        path: vector.tolist()
        for paths, vectors in read_vectors(shards_in(tmp_path))
        for path, vector in zip(paths, vectors, strict=True)
    }
    assert found == {b"/a": [0, 1, 0, 0], b"/c": [0, 0, 1, 0]}


def test_another_vector_id_is_refused(tmp_path: Path) -> None:
    write(tmp_path, good("/a"))
    check_vector_id(tmp_path, "m|p|original")
    with pytest.raises(CommandFailed, match=r"holds vectors of m\|p\|original, and this run makes those of other"):
        check_vector_id(tmp_path, "other")
    out = writer(tmp_path, vector_id="second")
    out.add(good("/b"))
    out.finish()
    with pytest.raises(CommandFailed, match="keep them in two folders"):
        check_vector_id(tmp_path, "second")


def test_what_is_no_shard_of_vectors_is_one_sentence(tmp_path: Path) -> None:
    shard = tmp_path / "part-00000.parquet"
    shard.write_bytes(b"PAR1 and no more")
    with pytest.raises(CommandFailed, match=r"part-00000.parquet cannot be read .*move it away"):
        vector_id_of([shard])
    pq.write_table(pa.table({"x": [1]}), shard)
    with pytest.raises(CommandFailed, match="does not say which model"):
        vector_id_of([shard])
    with pytest.raises(CommandFailed, match="has no column path_bytes"):
        list(read_vectors([shard]))


def test_a_killed_run_leaves_no_litter_for_long(tmp_path: Path) -> None:
    litter, other = tmp_path / ".part-00000.parquet.123.part", tmp_path / ".mine.part"
    litter.touch()
    other.touch()
    writer(tmp_path)
    assert not litter.exists()
    assert other.exists()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with locked(folder):
        with pytest.raises(CommandFailed, match="another clip-client is writing"), locked(folder):
            pass
    with locked(folder):
        pass


def test_a_folder_that_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.iterdir", refuse)
    with pytest.raises(CommandFailed, match="cannot be read: Permission denied"):
        shards_in(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandFailed, match="cannot write into"), locked(tmp_path / "file"):
        pass


@given(
    cosines=st.lists(st.integers(-8, 8), min_size=1, max_size=40),
    chunk=st.integers(1, 7),
    count=st.integers(1, 10),
)
@settings(deadline=None, max_examples=100, derandomize=True)
def test_the_nearest_are_those_of_a_full_sort(cosines: list[int], chunk: int, count: int) -> None:
    vectors = np.array(cosines, dtype=np.float32)[:, None] / 8
    nearest = _Nearest(np.ones(1, dtype=np.float32), count)
    paths = [f"/{number:02}" for number in range(len(cosines))]
    for start in range(0, len(cosines), chunk):
        nearest.add(paths[start : start + chunk], vectors[start : start + chunk])
    best = nearest.best()
    assert [cosine for cosine, _path in best] == sorted(vectors[:, 0].tolist(), reverse=True)[:count]
    assert all(vectors[int(path[1:]), 0] == cosine for cosine, path in best)
    assert len({path for _cosine, path in best}) == len(best)
    assert nearest.compared == len(cosines)


def test_a_folder_of_shards_may_have_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    write(folder, good("a.jpg"))
    assert vector_id_of(shards_in(folder)) == "m|p|original"
    assert [path for paths, _ in read_vectors(shards_in(folder)) for path in paths] == [b"a.jpg"]

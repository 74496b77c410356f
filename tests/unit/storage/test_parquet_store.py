"""Rows by content: that few are read without the others, by any number of processes, from files of any version."""

import builtins
import io
import os
import time
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from clip_client._storage.parquet_store import ParquetStore
from clip_client.dedup import Store
from tests.fixtures.vectors import read

_DIMENSION = 128


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def row(number: int, **columns: Any) -> dict[str, Any]:
    vector = np.full(_DIMENSION, number, dtype=np.float32)
    return {"sha256": key(number), "vector": vector, "code": "", "message": "", **columns}


def add(vectors: ParquetStore, *numbers: int, **columns: Any) -> None:
    for number in numbers:
        vectors.add(row(number, **columns))
    vectors.flush()


def found(vectors: ParquetStore, *numbers: int) -> dict[int, float]:
    """Return number -> the first element of its vector, for the ``numbers`` in the store, in the order of the rows."""
    wanted = [key(number) for number in numbers]
    return {
        numbers[position]: vector[0]
        for positions, table in vectors.find(wanted)
        for position, vector in zip(positions.tolist(), table.column("vector").to_pylist(), strict=True)
    }


@pytest.fixture
def vectors(tmp_path: Path) -> ParquetStore:
    return Store(tmp_path).vectors("model", _DIMENSION)


def compact(vectors: ParquetStore, **options: int) -> None:
    store = copy(vectors)
    for name, value in options.items():
        setattr(store, name, value)
    store.compact()


def files_of(vectors: ParquetStore) -> list[Path]:
    return sorted(vectors.folder.iterdir())


def test_few_rows_are_read_without_the_others(vectors: ParquetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add(vectors, *range(20_000))
    compact(vectors, small_files=1)
    (file,) = files_of(vectors)
    bytes_read = 0

    class Counted(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal bytes_read
            data = super().read(size) or b""
            bytes_read += len(data)
            return data

    monkeypatch.setattr(builtins, "open", lambda path, mode: Counted(path, mode))
    assert found(vectors, 19_999, 0, 7_777, 20_001) == {0: 0, 7_777: 7_777, 19_999: 19_999}
    hashes, row_groups = 20_000 * 32, 3 * vectors.rows_per_group * (32 + 4 * _DIMENSION)
    assert hashes < bytes_read < 1.5 * (hashes + row_groups) < file.stat().st_size / 3


def test_vectors_are_lists_of_one_length_and_a_refusal_comes_back(vectors: ParquetStore) -> None:
    """Lists of any length have offsets of 32 bits, which 4.19 million vectors of 512 numbers overflow."""
    vectors.add(row(1, vector=None, code="EMPTY", message="The file is empty."))
    add(vectors, 2)
    (file,) = files_of(vectors)
    schema = pq.read_schema(file)
    assert (schema.field("vector").type.list_size, schema.metadata[b"vector_id"]) == (_DIMENSION, b"model")
    refused, accepted = read(vectors).to_pylist()
    assert np.isnan(refused["vector"]).all()
    assert (refused["code"], refused["message"]) == ("EMPTY", "The file is empty.")
    assert accepted["vector"] == [2.0] * _DIMENSION


@pytest.mark.parametrize("is_compacted", [False, True])
def test_of_two_rows_of_a_content_the_later_counts(vectors: ParquetStore, is_compacted: bool) -> None:
    add(vectors, 1, 2)
    add(vectors, 1, vector=np.full(_DIMENSION, 9, dtype=np.float32))
    if is_compacted:
        compact(vectors, small_files=1)
        assert pq.ParquetFile(*files_of(vectors)).metadata.num_rows == 2
    assert found(vectors, 1, 2) == {1: 9, 2: 2}
    assert sorted(read(vectors).column("sha256").to_pylist()) == [key(1), key(2)]


def test_each_row_is_found_once_although_another_process_compacts_meanwhile(vectors: ParquetStore) -> None:
    for number in range(5):
        add(vectors, number)
    numbers = []
    for positions, table in vectors.find([key(number) for number in range(5)]):
        numbers += table.column("vector").to_pylist()
        assert len(positions) == len(table)
        compact(vectors, small_files=2)
    assert sorted(vector[0] for vector in numbers) == [0, 1, 2, 3, 4]
    assert len(files_of(vectors)) == 1


def test_many_small_files_become_one_and_large_ones_stay(vectors: ParquetStore) -> None:
    add(vectors, *range(100))
    (large,) = files_of(vectors)
    for number in range(100, 103):
        compact(vectors, small_files=2, small_file_rows=100)
        assert len(files_of(vectors)) == number - 99  # not more small ones than two
        add(vectors, number)
    compact(vectors, small_files=2, small_file_rows=100)
    first, merged = files_of(vectors)
    assert first == large
    assert pq.read_metadata(merged).num_rows == 3
    assert len(read(vectors)) == 103


def test_what_killed_processes_left_is_removed(vectors: ParquetStore) -> None:
    abandoned, in_use = vectors.folder / "1.part", vectors.folder / "2.part"
    for part in (abandoned, in_use):
        part.write_bytes(b"cut off")
    two_hours_ago = time.time() - 7200
    os.utime(abandoned, (two_hours_ago, two_hours_ago))
    vectors.compact()
    assert files_of(vectors) == [in_use]


def test_damage_costs_its_own_file_only(vectors: ParquetStore) -> None:
    add(vectors, *range(2000))
    (file,) = files_of(vectors)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40_000] = bytes(40_000)  # in a row group
    file.write_bytes(data)
    (vectors.folder / "0 damaged.parquet").write_bytes(b"PAR1 cut off")
    (vectors.folder / "0 part.part").write_bytes(b"left by a killed process")
    (vectors.folder / "0 link.parquet").symlink_to("nowhere")
    add(vectors, 5000)
    assert found(vectors, 5000)[5000] == 5000
    assert found(vectors, *range(2000), 5000)[5000] == 5000
    assert key(5000) in vectors.keys()

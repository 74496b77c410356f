"""The folder that a cluster fills: what is finished, what is refused, and how its files are ordered."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from clip_client._errors import VectorsError
from clip_client._vectors.vector_file import FileModel, FileVersion, VectorFolder, vector_row
from clip_client.distributed import DistributedError, image_files
from clip_client.distributed.embedded_rows import PartitionFolder
from clip_client.distributed.storage import Location

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.distributed import Partition

MODEL = FileModel("m", "m|p|original", 2)


def folder_at(address: Path | str, model: FileModel = MODEL) -> PartitionFolder:
    return PartitionFolder(location=Location.of(address), model=model, features=False)


def partitions(*names: str) -> list[Partition]:
    """Of one image each, which need not exist."""
    return [partition for name in names for partition in image_files([f"/photos/{name}"])]


def write(folder: PartitionFolder, partition: Partition, *values: float) -> None:
    with folder.writing(partition) as add:
        add([vector_row(FileVersion(path=partition.name), np.array(values, np.float32))])


@pytest.fixture(params=["disk", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "out") if request.param == "disk" else f"memory://{uuid.uuid4().hex}/out"


def test_a_run_that_starts_again_has_its_number_and_what_is_left(address: str) -> None:
    folder, (a, b) = folder_at(address), partitions("a", "b")
    first, left = folder.begin([a, b])
    assert (first.number, left) == (0, [a, b])
    write(first, a, 1, 0)
    again, left = folder.begin([a, b])
    assert (again.number, left, len(again.finished)) == (0, [b], 0)


def test_other_input_gets_the_next_number_and_knows_finished_images(address: str) -> None:
    folder, (a, b) = folder_at(address), partitions("a", "b")
    write(folder.begin([a])[0], a, 1, 0)
    grown = image_files(["/photos/a", "/photos/b"])
    begun, left = folder.begin(grown)
    assert (begun.number, left) == (1, grown)
    assert begun.finished.tolist() == [FileVersion(path="/photos/a").key]
    write(folder.begin([b])[0], b, 0, 1)
    # This run has what the last one wrote, and something that the last one did not have.
    (c,) = partitions("c")
    assert [folder.begin(some)[0].number for some in ([b, c], [a, c], [a, b, c])] == [1, 2, 1]


def test_the_later_run_counts_for_a_local_reader_whatever_its_key(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    (a,) = partitions("a")
    for number in range(8):  # the keys of the files are in no order
        version = FileVersion(path="/photos/a", size_bytes=number)
        (partition,) = partitions(f"{number}")
        with replace(folder, number=number).writing(partition) as add:
            add([vector_row(version, np.array([number, 0], np.float32))])
    (batch,) = VectorFolder(tmp_path, MODEL).batches()
    assert batch.vectors.tolist() == [[7, 0]]
    local = VectorFolder(tmp_path, MODEL)
    local.add(vector_row(FileVersion(path="/photos/a"), np.array([9, 0], np.float32)))
    local.flush()
    assert [path.name for path in local.written] == ["part-00008.parquet"]
    assert folder.begin([a])[0].number == 9


def test_a_file_appears_when_it_is_complete(address: str) -> None:
    folder, (a,) = folder_at(address), partitions("a")
    begun, _ = folder.begin([a])
    with suppress(KeyboardInterrupt), begun.writing(a) as add:
        add([vector_row(FileVersion(path="a"), np.array([1, 0], np.float32))])
        assert folder.begin([a])[1] == [a]
        raise KeyboardInterrupt
    assert folder.location.files(recursive=True) == []


def test_what_a_killed_worker_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, new = (tmp_path / f".part-00000-{'0' * 32}.parquet.{age}.part" for age in ("old", "new"))
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    folder_at(tmp_path).begin([])
    assert [old.exists(), new.exists()] == [False, True]
    VectorFolder(tmp_path, MODEL).remove_abandoned()
    assert not new.exists()


def test_an_output_that_cannot_be_continued_is_named(tmp_path: Path) -> None:
    folder, (a, b) = folder_at(tmp_path), partitions("a", "b")
    write(folder, a, 1, 0)
    with pytest.raises(VectorsError, match=r"parquet holds vectors of m\|p\|original, which must not be compared"):
        folder_at(tmp_path, MODEL._replace(vector_id="m|p|thumbnail")).begin([b])
    with pytest.raises(VectorsError, match=r"parquet holds vectors without features"):
        replace(folder, features=True).begin([b])
    (tmp_path / "part-00000.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DistributedError, match=r"part-00000\.parquet cannot be read"):
        folder.begin([b])


def test_importing_the_package_loads_neither_ray_nor_pyarrow() -> None:
    code = "import sys, clip_client.distributed; print(*{'ray', 'pyarrow', 'fsspec', 'faiss'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

"""The folder that a cluster fills: what is finished, what is refused, and what a search reads in it."""

import os
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from clip_client._errors import VectorsError
from clip_client._storage.parquet_store import table_of
from clip_client._storage.vector_file import FileModel, FileVersion, VectorFolder, vector_row
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.search import GroupRules
from clip_client.distributed import DistributedError, Partition, image_files
from clip_client.distributed.component_groups import group_photos
from clip_client.distributed.embedded_rows import (
    Chunk,
    EmbeddedRows,
    PartitionFolder,
    drawn,
    embedded_schema,
    first_with_content,
    read_facts,
)
from clip_client.distributed.storage import Location
from tests.fixtures.embedded_rows import MODEL, embedded_row, write_embedded, write_vectors
from tests.fixtures.vectors import clusters

VECTORS = clusters(seed=0, count=300, size=1, spread=0)
NOTHING = np.full_like(VECTORS[0], np.nan)
SMALL = MODEL._replace(dimension=2)


def folder_at(address: Path | str, model: FileModel = SMALL) -> PartitionFolder:
    return PartitionFolder(location=Location.of(address), model=model, features=False)


def partitions(*names: str) -> list[Partition]:
    """Return partitions of one image each. The files need not exist."""
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
    started, left = folder.begin(grown)
    assert (started.number, left) == (1, grown)
    assert started.finished.tolist() == [FileVersion(path="/photos/a").key]
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
    (batch,) = VectorFolder(tmp_path, SMALL).batches()
    assert batch.vectors.tolist() == [[7, 0]]
    local = VectorFolder(tmp_path, SMALL)
    local.add(vector_row(FileVersion(path="/photos/a"), np.array([9, 0], np.float32)))
    local.flush()
    assert [path.name for path in local.written] == ["part-00008.parquet"]
    assert folder.begin([a])[0].number == 9


def test_a_file_appears_when_it_is_complete(address: str) -> None:
    folder, (a,) = folder_at(address), partitions("a")
    started, _ = folder.begin([a])
    with suppress(KeyboardInterrupt), started.writing(a) as add:
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
    (mine := tmp_path / ".mine.part").touch()
    VectorFolder(tmp_path, SMALL).remove_abandoned()
    assert [new.exists(), mine.exists()] == [False, True]


def test_an_output_that_cannot_be_continued_is_named(tmp_path: Path) -> None:
    folder, (a, b) = folder_at(tmp_path), partitions("a", "b")
    write(folder, a, 1, 0)
    with pytest.raises(VectorsError, match=r"parquet holds vectors of m\|p\|original, which must not be compared"):
        folder_at(tmp_path, SMALL._replace(vector_id="m|p|thumbnail")).begin([b])
    with pytest.raises(VectorsError, match=r"parquet holds vectors without features"):
        replace(folder, features=True).begin([b])
    (tmp_path / "part-00000.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DistributedError, match=r"part-00000\.parquet cannot be read"):
        folder.begin([b])


def chunks_in(folder: Path) -> tuple[Chunk, ...]:
    return EmbeddedRows.of(Location.of(folder), 1000).chunks


def test_runs_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ("part-00002.parquet", f"part-99999-{32 * '0'}.parquet", "part-100000.parquet")
    for name in sorted(names):
        write_embedded(tmp_path / name, [embedded_row("/a.jpg", VECTORS[0], b"a")])
    (chunk,) = chunks_in(tmp_path)
    assert [place.name for place, _ in chunk.pieces] == list(names)


def of_another_version(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"algorithm": b"look-0"}), path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda path: pq.write_table(pq.read_table(path).drop_columns(["sha256"]), path),
            "has no column 'sha256'.*features=True",
        ),
        (
            lambda path: write_embedded(path, [], FileModel("m", "m|p|thumb", MODEL.dimension)),
            r"holds vectors of m\|p\|thumb, which must not be compared with those of m\|p\|original",
        ),
        (of_another_version, "holds features of another version"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cannot be read"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, damage: Any, reason: str) -> None:
    write_vectors(tmp_path, VECTORS, partitions=2)
    damage(tmp_path / "part-00001.parquet")
    with pytest.raises(DistributedError, match=rf"part-00001\.parquet {reason}"):
        chunks_in(tmp_path)


def test_a_folder_without_vectors_is_named(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(DistributedError, match=f"{tmp_path} holds no vectors"):
            chunks_in(tmp_path)
        write_embedded(tmp_path / "part-00000.parquet", [])


def test_a_file_that_is_damaged_meanwhile_is_named(tmp_path: Path) -> None:
    write_vectors(tmp_path, VECTORS, partitions=1)
    (chunk,) = chunks_in(tmp_path)
    (tmp_path / "part-00000.parquet").unlink()
    with pytest.raises(DistributedError, match=r"part-00000\.parquet cannot be read"):
        read_facts(chunk, 1.0, 1.0)


def failed(path: str, content: bytes, code: str) -> dict[str, Any]:
    return {**embedded_row(path, NOTHING, content), "error_code": code, "error": "It failed."}


def test_a_content_is_represented_by_a_row_with_a_picture_and_a_path_by_its_last_row(tmp_path: Path) -> None:
    rows = [
        failed("/failed", b"same", "INTERNAL"),
        embedded_row("/a", VECTORS[0], b"same"),
        failed("/text", b"text", "NOT_AN_IMAGE"),
        {**failed("/lost", b"", "UNREADABLE"), "sha256": None},
        embedded_row("/flat", VECTORS[0], b"flat", is_flat=True),
        embedded_row("/b", VECTORS[0], b"before"),
        embedded_row("/b", VECTORS[0], b"after"),
    ]
    write_embedded(tmp_path / "part-00000.parquet", rows)
    (chunk,) = chunks_in(tmp_path)
    facts, _ = read_facts(chunk, 0.0, 0.0)
    assert first_with_content(facts).tolist() == [1, 1, -1, -1, 4, -1, 6]
    assert facts["is_picture"].tolist() == [False, True, False, False, False, True, True]


def test_a_sample_is_drawn_by_content(tmp_path: Path) -> None:
    rows = [embedded_row(f"/{number}", vector, b"%d" % (number % 150)) for number, vector in enumerate(VECTORS)]
    write_embedded(tmp_path / "part-00000.parquet", rows)
    (chunk,) = chunks_in(tmp_path)
    facts, vectors = read_facts(chunk, 0.5, 0.2)
    for_cells, for_recall = drawn(facts, (0.5, 0.2))
    # The sample of a random draw of 150 has these sizes with a probability of more than 0.999.
    assert 2 * 50 < for_cells.sum() < 2 * 100
    assert 2 * 10 < for_recall.sum() < 2 * 50
    assert 0 < (for_cells & for_recall).sum() < for_recall.sum()
    for own in (for_cells, for_recall):
        np.testing.assert_array_equal(own[:150], own[150:])
    np.testing.assert_array_equal(vectors, VECTORS[for_cells | for_recall])


def test_of_a_content_that_failed_once_the_row_with_the_vector_counts() -> None:
    """The failed row comes first: one of the workers could not read its copy."""
    others = [embedded_row(f"/{name}.jpg", VECTORS[0], name.encode()) for name in ("same", "alike")]
    rows = [failed("/failed.jpg", b"same", "INTERNAL"), *others]
    thresholds = thresholds_for("m/trained@1", 0.9)
    rules = GroupRules(thresholds=thresholds, keep=DEFAULT_RULES, references=(), decisions=(), verify=False)
    table = table_of(rows, embedded_schema(MODEL, features=True))
    assert group_photos(table.slice(0, 0), rules).groups == ()
    (group,) = group_photos(table, rules).groups
    assert {member.path for member in group.members} == {"/failed.jpg", "/same.jpg", "/alike.jpg"}

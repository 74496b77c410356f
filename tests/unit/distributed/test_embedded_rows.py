"""What a search on a cluster reads: chunks of files, the contents in them, and the files that it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from clip_client._vectors.vector_file import FileModel
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.search import OFF, GroupRules
from clip_client.dedup.store.parquet_store import table_of
from clip_client.distributed import DistributedError
from clip_client.distributed.component_groups import group_photos
from clip_client.distributed.embedded_rows import (
    EmbeddedRows,
    drawn,
    embedded_schema,
    first_with_content,
    read_facts,
    vectors_in,
)
from clip_client.distributed.storage import Location
from tests.fixtures.embedded_rows import MODEL, embedded_row, write_embedded, write_vectors
from tests.fixtures.vectors import clusters

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from clip_client.distributed.embedded_rows import Chunk

VECTORS = clusters(seed=0, count=300, size=1, spread=0)
NOTHING = np.full_like(VECTORS[0], np.nan)


def chunks_in(folder: Path, most_rows: int = 1000) -> tuple[Chunk, ...]:
    return EmbeddedRows.of(Location.of(folder), most_rows).chunks


def test_chunks_hold_each_row_once_and_in_order(tmp_path: Path) -> None:
    write_vectors(tmp_path, VECTORS, partitions=2)  # 150 rows each, in row groups of 64, 64 and 22
    chunks = chunks_in(tmp_path, 100)
    assert [(chunk.first_row, chunk.rows) for chunk in chunks] == [(0, 64), (64, 86), (150, 64), (214, 86)]
    read = np.concatenate([vectors_in(chunk.read(["vector"])) for chunk in chunks])
    np.testing.assert_array_equal(read, VECTORS)


def test_runs_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ("part-00002.parquet", f"part-99999-{32 * '0'}.parquet", "part-100000.parquet")
    for name in sorted(names):
        write_embedded(tmp_path / name, [embedded_row("/a.jpg", VECTORS[0], b"a")])
    (chunk,) = chunks_in(tmp_path)
    assert [place.name for place, _ in chunk.pieces] == list(names)


def without_column(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["sha256"]), path)


def of_another_model(path: Path) -> None:
    write_embedded(path, [], FileModel("m", "m|p|thumb", MODEL.dimension))


def of_another_version(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"algorithm": b"look-0"}), path)


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (without_column, "has no column 'sha256'.*features=True"),
        (of_another_model, r"holds vectors of m\|p\|thumb, which must not be compared with those of m\|p\|original"),
        (of_another_version, "holds features of another version"),
        (damaged, "cannot be read"),
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


def facts_of(rows: list[dict[str, Any]], folder: Path) -> NDArray[Any]:
    write_embedded(folder / "part-00000.parquet", rows)
    (chunk,) = chunks_in(folder)
    return read_facts(chunk, 0.0, 0.0)[0]


def failed(path: str, content: bytes, code: str) -> dict[str, Any]:
    return {**embedded_row(path, NOTHING, content), "error_code": code, "error": "It failed."}


def test_a_content_is_represented_by_a_row_with_a_picture_and_a_path_by_its_last_row(tmp_path: Path) -> None:
    facts = facts_of(
        [
            failed("/failed", b"same", "INTERNAL"),
            embedded_row("/a", VECTORS[0], b"same"),
            failed("/text", b"text", "NOT_AN_IMAGE"),
            {**failed("/lost", b"", "UNREADABLE"), "sha256": None},
            embedded_row("/flat", VECTORS[0], b"flat", is_flat=True),
            embedded_row("/b", VECTORS[0], b"before"),
            embedded_row("/b", VECTORS[0], b"after"),
        ],
        tmp_path,
    )
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
    rules = GroupRules(thresholds=thresholds, hash_bits=-1, keep=DEFAULT_RULES, references=(), decisions=(), verify=OFF)
    table = table_of(rows, embedded_schema(MODEL, features=True))
    assert group_photos(table.slice(0, 0), rules).groups == ()
    (group,) = group_photos(table, rules).groups
    assert {member.path for member in group.members} == {"/failed.jpg", "/same.jpg", "/alike.jpg"}

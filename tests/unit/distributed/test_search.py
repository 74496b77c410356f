"""The steps of a search on a cluster, in this process: the groups of one machine, and what a stopped search keeps."""

import itertools
from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from clip_client.dedup.compare.neighbours import Evidence, hash_parts
from clip_client.dedup.compare.star_groups import CannotLink, star_groups
from clip_client.distributed import DistributedError, DuplicateSummary, duplicates
from clip_client.distributed.cell_join import cell_blocks, read_buckets
from clip_client.distributed.component_groups import join_while_small
from clip_client.distributed.storage import Location
from tests.fixtures.embedded_rows import write_vectors, written_in
from tests.fixtures.vectors import clusters

Groups = set[frozenset[int]]
Find = Callable[..., DuplicateSummary]

THRESHOLD: Final = 0.95


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Find:
    """``find_duplicates``, which calls here what it would call in tasks of Ray."""

    def in_tasks(function: Callable[..., Any], calls: Iterable[Any], *shared: Any) -> Generator[tuple[int, Any]]:
        yield from ((number, function(*call, *shared)) for number, call in enumerate(calls))

    monkeypatch.setattr(duplicates, "require", lambda *_: None)  # without Ray, which takes seconds to import
    monkeypatch.setattr(duplicates, "in_tasks", in_tasks)
    monkeypatch.setattr(duplicates, "cluster", nullcontext)
    return duplicates.find_duplicates


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float32]:
    """200 families of three similar vectors, one of 250, and 650 others."""
    together = [
        clusters(seed=0, count=200, size=3, spread=0.15),
        clusters(seed=1, count=1, size=250, spread=0.15),
        clusters(seed=2, count=650, size=1, spread=0),
    ]
    mixed: NDArray[np.float32] = np.random.default_rng(3).permutation(np.concatenate(together))
    return mixed


@pytest.fixture(scope="module")
def embedded(vectors: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedded")
    write_vectors(folder, vectors, partitions=4)
    return folder


@pytest.fixture(scope="module")
def groups(vectors: NDArray[np.float32]) -> Groups:
    rows = np.arange(len(vectors))
    evidence = Evidence(vectors, rows, np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.bool_))
    stars = star_groups(evidence, THRESHOLD, most_bits=-1, cannot_link=CannotLink())
    return {frozenset([keep, *members]) for keep, members in stars.items()}


def groups_in(output: Path) -> Groups:
    """The groups in the output, as numbers of photos; each photo is in one, and each group keeps one."""
    assert (output / "groups" / "_SUCCESS").exists()
    table = pq.read_table(output / "groups", columns=["group", "path", "kept"])
    assert len(set(table["path"].to_pylist())) == len(table)
    members: dict[int, set[int]] = {}
    for group, path in zip(table["group"].to_pylist(), table["path"].to_pylist(), strict=True):
        members.setdefault(group, set()).add(int(Path(path).stem))
    assert sum(table["kept"].to_pylist()) == len(members)
    return set(map(frozenset, members.values()))


def share_found(output: Path, groups: Groups) -> float:
    """The share of the pairs of photos in one group; those of the large scene would outweigh all others."""
    expected, found = (
        {pair for group in some if len(group) < 100 for pair in itertools.combinations(sorted(group), 2)}
        for some in (groups, groups_in(output))
    )
    return len(expected & found) / len(expected)


def stopping_at(step: str, number: int) -> Callable[[str, int, int | None], None]:
    def stop(what: str, done: int, total: int | None) -> None:
        if (what, done) == (step, number):
            raise InterruptedError

    return stop


def test_exhaustive_cells_give_the_groups_of_one_machine(
    find: Find, embedded: Path, groups: Groups, tmp_path: Path
) -> None:
    # One cell, in parts of 200 rows.
    summary = find(embedded, output=tmp_path, threshold=THRESHOLD, rows_at_once=400)
    assert groups_in(tmp_path) == groups
    assert (summary.recall.method, summary.groups) == ("exact", len(groups))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["candidates", "edges", "groups"]
    # The photos of these vectors do not exist.
    reasons = pq.read_table(tmp_path / "groups")["cannot_verify"].to_pylist()
    assert reasons == ["Its file cannot be read any more."] * len(reasons)
    assert summary.unverified == summary.grouped == len(reasons)


def test_cells_find_the_pairs_and_a_stopped_search_continues_at_the_finished_cells_and_groups(
    find: Find, embedded: Path, groups: Groups, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"output": tmp_path, "threshold": THRESHOLD, "exact_rows": 0, "rows_at_once": 500}
    with pytest.raises(InterruptedError):
        find(embedded, **options, on_progress=stopping_at("comparing", 3))
    compared = written_in(tmp_path / "edges")
    with pytest.raises(InterruptedError):
        find(embedded, **options, on_progress=stopping_at("grouping", 1))
    assert compared.items() < written_in(tmp_path / "edges").items()
    grouped = written_in(tmp_path / "groups")
    summary = find(embedded, **options)
    finished = written_in(tmp_path / "groups")
    assert {} != grouped.items() < finished.items()
    assert find(embedded, **options, on_progress=lambda what, *_: pytest.fail(what)) == summary  # at once
    assert written_in(tmp_path / "groups") == finished
    assert summary.grouped == pq.read_table(tmp_path / "groups").num_rows

    assert share_found(tmp_path, groups) >= 0.995
    assert summary.recall.method == "cells"
    assert summary.recall.recall >= 0.995
    assert summary.recall.pairs > 500
    assert f"recall {summary.recall.recall:.4f} (95 % interval" in str(summary)


def test_a_search_starts_again_if_the_files_were_divided_in_another_way(
    find: Find, embedded: Path, groups: Groups, tmp_path: Path
) -> None:
    def write(row_group_size: int) -> None:
        for path in embedded.glob("*.parquet"):
            pq.write_table(pq.read_table(path), tmp_path / "embedded" / path.name, row_group_size=row_group_size)

    (tmp_path / "embedded").mkdir()
    options: dict[str, Any] = {"output": tmp_path / "out", "threshold": THRESHOLD, "exact_rows": 0, "rows_at_once": 300}
    write(100)
    with pytest.raises(InterruptedError):
        find(tmp_path / "embedded", **options, on_progress=stopping_at("comparing", 1))
    write(250)
    find(tmp_path / "embedded", **options)
    assert share_found(tmp_path / "out", groups) >= 0.995


@pytest.mark.parametrize("most_rows", [20, 64, 1000])
def test_blocks_compare_each_pair_of_a_cell_and_stay_small(most_rows: int) -> None:
    sizes = np.random.default_rng(0).integers(0, most_rows // 2, (6, 20))
    sizes[:, 5] = most_rows // 2
    sizes[:, 7] = 0
    blocks = cell_blocks(sizes, most_rows)
    assert cell_blocks(np.array([[50]]), 20)[0].chunks == (0,)  # a file whose row groups are larger
    assert len({block.name for block in blocks}) == len(blocks)
    for block in blocks:
        assert sizes[list(block.chunks), block.first : block.end].sum() <= most_rows
    for cell in range(sizes.shape[1]):
        inside = [block.chunks for block in blocks if block.first <= cell < block.end]
        together = {pair for chunks in inside for pair in itertools.product(chunks, chunks)}
        filled = np.flatnonzero(sizes[:, cell]).tolist()
        assert together.issuperset(itertools.product(filled, filled))


@pytest.mark.parametrize("most_rows", [20, 200, 1000])
def test_hashes_that_differ_in_few_bits_are_compared(most_rows: int) -> None:
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, 200, dtype=np.uint64)
    flips = np.array([[0, 1, 63], [20, 21, 22], [15, 31, 47], [5, 5, 5]], dtype=np.uint64)
    near = np.concatenate([hashes[:100] ^ np.bitwise_xor.reduce(np.uint64(1) << flip) for flip in flips])
    hashes = np.concatenate([hashes, near])
    parts = list(hash_parts(hashes, 3, most_rows))
    assert (len(parts) == 1) == (most_rows == 1000)
    together = {pair for part in parts for pair in itertools.combinations(sorted(part.tolist()), 2)}
    assert together.issuperset((row % 100, 200 + row) for row in range(400))


def test_components_are_joined_as_long_as_a_worker_can_hold_them() -> None:
    alike = np.array([0, 0, 0, 0, 0, 5, 6, 7, 8, 9])  # five that are alike, and five others
    pairs = [(np.array([5, 0]), np.array([6, 7])), (np.array([7, 8]), np.array([5, 9]))]
    labels, left_out = join_while_small(alike, pairs, 2)
    assert labels.tolist() == [0, 0, 0, 0, 0, 5, 5, 0, 8, 8]
    assert left_out == 1
    labels, left_out = join_while_small(alike, pairs, 3)
    assert labels.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 8, 8]
    assert left_out == 0


def test_a_damaged_file_of_the_shuffle_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"nothing")
    with pytest.raises(DistributedError, match=r"a\.arrow cannot be read .* remove it and run again"):
        next(read_buckets([Location.of(tmp_path / "a.arrow")], 0, 1))

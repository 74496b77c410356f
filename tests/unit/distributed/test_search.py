"""The steps of a search on a cluster, in this process: the groups of one machine, and what a stopped search keeps."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.parquet as pq
import pytest

from clip_client.dedup.compare.star_groups import CannotLink, Evidence, star_groups
from clip_client.distributed import duplicates, find_duplicates
from tests.fixtures.embedded_rows import write_vectors, written_in
from tests.fixtures.vectors import clusters

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from numpy.typing import NDArray

    Groups = set[frozenset[int]]

pytest.importorskip("ray.data", reason="Ray is not installed (extra: ray)")

THRESHOLD: Final = 0.95


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call functions as ``in_tasks`` does in tasks of Ray."""

    def in_tasks(function: Callable[..., Any], calls: Iterable[Any], *shared: Any) -> Generator[tuple[int, Any]]:
        yield from ((number, function(*call, *shared)) for number, call in enumerate(calls))

    monkeypatch.setattr(duplicates, "in_tasks", in_tasks)
    monkeypatch.setattr(duplicates, "cluster", nullcontext)


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float32]:
    """200 families of three alike vectors, one of 250, and 650 others."""
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
    """The groups that one machine finds."""
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


def test_exhaustive_cells_give_the_groups_of_one_machine(embedded: Path, groups: Groups, tmp_path: Path) -> None:
    # One cell, in parts of 200 rows.
    summary = find_duplicates(embedded, output=tmp_path, threshold=THRESHOLD, rows_at_once=400)
    assert groups_in(tmp_path) == groups
    assert (summary.recall.method, summary.groups, summary.largest_cell) == ("exact", len(groups), 1500)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["candidates", "edges", "groups"]
    # The photos of these vectors do not exist.
    reasons = pq.read_table(tmp_path / "groups")["cannot_verify"].to_pylist()
    assert reasons == ["Its file cannot be read any more."] * len(reasons)
    assert summary.unverified == summary.grouped == len(reasons)


def test_cells_find_the_pairs_and_a_stopped_search_continues_at_the_finished_cells_and_groups(
    embedded: Path, groups: Groups, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"output": tmp_path, "threshold": THRESHOLD, "exact_rows": 0, "rows_at_once": 500}
    with pytest.raises(InterruptedError):
        find_duplicates(embedded, **options, on_progress=stopping_at("comparing", 3))
    compared = written_in(tmp_path / "edges")
    with pytest.raises(InterruptedError):
        find_duplicates(embedded, **options, on_progress=stopping_at("grouping", 1))
    assert compared.items() < written_in(tmp_path / "edges").items()
    grouped = written_in(tmp_path / "groups")
    summary = find_duplicates(embedded, **options)
    finished = written_in(tmp_path / "groups")
    assert {} != grouped.items() < finished.items()
    assert find_duplicates(embedded, **options, on_progress=lambda what, *_: pytest.fail(what)) == summary  # at once
    assert written_in(tmp_path / "groups") == finished
    assert summary.grouped == pq.read_table(tmp_path / "groups").num_rows

    assert share_found(tmp_path, groups) >= 0.995
    assert summary.recall.method == "cells"
    assert summary.recall.recall >= 0.995
    assert summary.recall.pairs > 500
    assert (summary.largest_cell >= 250, summary.skew > 1) == (True, True)
    assert f"recall {summary.recall.recall:.4f} (95 % interval" in str(summary)


def test_a_search_starts_again_if_the_files_were_divided_in_another_way(
    embedded: Path, groups: Groups, tmp_path: Path
) -> None:
    def write(row_group_size: int) -> None:
        for path in embedded.glob("*.parquet"):
            pq.write_table(pq.read_table(path), tmp_path / "embedded" / path.name, row_group_size=row_group_size)

    (tmp_path / "embedded").mkdir()
    options: dict[str, Any] = {"output": tmp_path / "out", "threshold": THRESHOLD, "exact_rows": 0, "rows_at_once": 300}
    write(100)
    with pytest.raises(InterruptedError):
        find_duplicates(tmp_path / "embedded", **options, on_progress=stopping_at("comparing", 1))
    write(250)
    find_duplicates(tmp_path / "embedded", **options)
    assert share_found(tmp_path / "out", groups) >= 0.995

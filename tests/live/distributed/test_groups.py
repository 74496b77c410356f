"""Grouping on a real Ray cluster: the same groups as on one machine, whatever is killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from clip_client import ClipClient
from clip_client.dedup import Store
from clip_client.dedup import find_duplicates as find_on_this_machine
from clip_client.dedup.compare.star_groups import CannotLink, Evidence, star_groups
from clip_client.dedup.store.decisions import DIFFERENT
from clip_client.dedup.types import EDITED, EXACT, RE_ENCODED, SAME_PIXELS
from clip_client.distributed import DistributedError, embed_partitions, find_duplicates, images_below
from clip_client.distributed.cluster import cluster, in_tasks
from tests.fixtures.embedded_rows import write_vectors
from tests.fixtures.images.scenes import resized, scene
from tests.fixtures.ray_cluster import RAY_WARNINGS, started
from tests.fixtures.vectors import clusters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from benchmarks.fixtures.server import Server
    from clip_client.dedup import DuplicateReport

pytestmark = [pytest.mark.filterwarnings(*RAY_WARNINGS)]

THRESHOLD: Final = 0.95


@pytest.fixture(scope="module", autouse=True)
def ray_on_this_machine() -> Iterator[None]:
    pytest.importorskip("ray.data", reason="Ray is not installed (extra: ray)")
    import ray

    with ExitStack() as stack:
        started(lambda: stack.enter_context(cluster()))
        assert len(ray.nodes()) == 1
        yield
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float32]:
    """400 families of three alike vectors, one of 500, and 1,300 others."""
    together = [
        clusters(seed=0, count=400, size=3, spread=0.15),
        clusters(seed=1, count=1, size=500, spread=0.15),
        clusters(seed=2, count=1300, size=1, spread=0),
    ]
    mixed: NDArray[np.float32] = np.random.default_rng(3).permutation(np.concatenate(together))
    return mixed


@pytest.fixture(scope="module")
def embedded(vectors: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedded")
    write_vectors(folder, vectors, partitions=4)
    return folder


@pytest.fixture(scope="module")
def groups(vectors: NDArray[np.float32]) -> set[frozenset[int]]:
    """The groups that one machine finds."""
    rows = np.arange(len(vectors))
    evidence = Evidence(vectors, rows, np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.bool_))
    stars = star_groups(evidence, THRESHOLD, most_bits=-1, cannot_link=CannotLink())
    return {frozenset([keep, *members]) for keep, members in stars.items()}


def groups_in(output: Path) -> set[frozenset[int]]:
    """The groups in the output, as numbers of photos; each photo is in one, and each group keeps one."""
    assert (output / "groups" / "_SUCCESS").exists()
    table = pq.read_table(output / "groups", columns=["group", "path", "kept"])
    assert len(set(table["path"].to_pylist())) == len(table)
    members: dict[int, set[int]] = {}
    kept = 0
    for group, path, is_kept in zip(*(column.to_pylist() for column in table.columns), strict=True):
        members.setdefault(group, set()).add(int(Path(path).stem))
        kept += is_kept
    assert kept == len(members)
    return set(map(frozenset, members.values()))


def pairs_in(groups: set[frozenset[int]]) -> set[tuple[int, int]]:
    """The pairs of photos in one group; those of the large scene would outweigh all others."""
    return {pair for group in groups if len(group) < 100 for pair in itertools.combinations(sorted(group), 2)}


@contextmanager
def killing_a_worker(task: str) -> Iterator[list[int]]:
    """Kill a process of this cluster in the middle of a task; yield a list that gets its id."""
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        while not killed and not ended.is_set():
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if process.cmdline()[:1] == [f"ray::{task}"]:
                        process.kill()
                        killed.append(process.pid)
                        break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def test_exhaustive_cells_give_the_groups_of_one_machine_though_a_worker_is_killed(
    embedded: Path, groups: set[frozenset[int]], tmp_path: Path
) -> None:
    # One cell, in parts of 400 rows: 28 tasks.
    with killing_a_worker("join_block") as killed:
        summary = find_duplicates(embedded, output=tmp_path, threshold=THRESHOLD, rows_at_once=800)
    assert len(killed) == 1
    assert groups_in(tmp_path) == groups
    assert (summary.recall.method, summary.groups, summary.largest_cell) == ("exact", len(groups), 3000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["candidates", "edges", "groups"]
    # The photos of these vectors do not exist.
    reasons = pq.read_table(tmp_path / "groups")["cannot_verify"].to_pylist()
    assert reasons == ["Its file cannot be read any more."] * len(reasons)
    assert summary.unverified == summary.grouped == len(reasons)


_DRIVER: Final = """
import json, os, signal, sys
from clip_client.distributed import find_duplicates
embedded, address, options = json.loads(sys.argv[1])
def kill(what, done, total):
    if (what, done) == ("comparing", 5):
        os.kill(os.getpid(), signal.SIGKILL)
find_duplicates(embedded, address=address, on_progress=kill, **options)
"""


def written_in(folder: Path) -> dict[str, int]:
    """Each Parquet file, and when it was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}


def test_cells_find_the_pairs_and_a_killed_driver_continues_at_the_finished_cells_and_groups(
    embedded: Path, groups: set[frozenset[int]], tmp_path: Path
) -> None:
    import ray

    class Stop(Exception):
        pass

    def stop(what: str, done: int, total: int | None) -> None:
        if (what, done) == ("grouping", 1):
            raise Stop

    options: dict[str, Any] = {"output": str(tmp_path), "threshold": THRESHOLD, "exact_rows": 0, "rows_at_once": 1000}
    arguments = json.dumps([str(embedded), ray.get_runtime_context().gcs_address, options])
    driver = subprocess.run([sys.executable, "-c", _DRIVER, arguments], capture_output=True, timeout=120, check=False)
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    compared = written_in(tmp_path / "edges")
    assert len(compared) >= 5
    with pytest.raises(Stop):
        find_duplicates(embedded, **options, on_progress=stop)
    assert compared.items() < written_in(tmp_path / "edges").items()
    grouped = written_in(tmp_path / "groups")
    summary = find_duplicates(embedded, **options)
    assert 0 < len(grouped) < len(written_in(tmp_path / "groups"))
    assert grouped.items() < written_in(tmp_path / "groups").items()
    assert summary.grouped == pq.read_table(tmp_path / "groups").num_rows
    finished = written_in(tmp_path / "groups")
    assert find_duplicates(embedded, **options, on_progress=lambda what, *_: pytest.fail(what)) == summary  # at once
    assert written_in(tmp_path / "groups") == finished

    expected, found = pairs_in(groups), pairs_in(groups_in(tmp_path))
    assert len(expected & found) >= 0.995 * len(expected)
    assert summary.recall.method == "cells"
    assert summary.recall.recall >= 0.995
    assert summary.recall.pairs > 1000
    assert summary.largest_cell >= 500
    assert 1 < summary.skew
    assert f"recall {summary.recall.recall:.4f} (95 % interval" in str(summary)


def test_a_search_starts_again_if_the_files_were_divided_in_another_way(
    embedded: Path, groups: set[frozenset[int]], tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    def stop(what: str, done: int, total: int | None) -> None:
        if (what, done) == ("comparing", 1):
            raise Stop

    def write(row_group_size: int) -> None:
        for path in embedded.glob("*.parquet"):
            pq.write_table(pq.read_table(path), tmp_path / "embedded" / path.name, row_group_size=row_group_size)

    (tmp_path / "embedded").mkdir()
    options: dict[str, Any] = {"output": tmp_path / "out", "threshold": THRESHOLD, "exact_rows": 0, "rows_at_once": 600}
    write(200)
    with pytest.raises(Stop):
        find_duplicates(tmp_path / "embedded", **options, on_progress=stop)
    write(500)
    find_duplicates(tmp_path / "embedded", **options)
    expected, found = pairs_in(groups), pairs_in(groups_in(tmp_path / "out"))
    assert len(expected & found) >= 0.995 * len(expected)


def test_photos_get_the_groups_proofs_and_decisions_of_one_machine(server: Server, tmp_path: Path) -> None:
    album = tmp_path / "album"
    album.mkdir()
    for number in range(2):
        picture = scene(number)
        picture.save(album / f"{number}.png")
        resized(picture, 0.6).save(album / f"{number} small.jpg", quality=85)
        ImageOps.mirror(picture).save(album / f"{number} mirrored.jpg", quality=90)
    scene(0).save(album / "other bytes.png", compress_level=1)
    shutil.copyfile(album / "0.png", album / "copy.png")
    (album / "text.jpg").write_text("This is no image.")
    for name in ("flat.png", "flat.bmp"):
        Image.new("RGB", (64, 64), "red").save(album / name)
    output = tmp_path / "groups"

    async def find_here(store: Store) -> DuplicateReport:
        async with ClipClient(server.grpc_url) as clip:
            return await find_on_this_machine(clip, album, store=store)

    def as_rows(report: DuplicateReport) -> set[tuple[object, ...]]:
        return {
            (group.keep, group.tier, member.path, member.tier, member.why, member.cannot_verify, member.similarity)
            for group in report.groups
            for member in group.members
        }

    with Store(tmp_path / "store") as store:
        embed_partitions(images_below(album), server.grpc_url, output=tmp_path / "vectors", features=True)
        for _ in range(2):
            summary = find_duplicates(tmp_path / "vectors", output=output, store=store)
            table = pq.read_table(output / "groups").to_pylist()
            kept = {row["group"]: row["path"] for row in table if row["kept"]}
            columns = ("group_tier", "path", "tier", "why", "cannot_verify", "similarity")
            found = {(kept[row["group"]], *(row[column] for column in columns)) for row in table}
            report = asyncio.run(find_here(store))
            assert found == as_rows(report)
            assert {row["tier"] for row in table} >= {EXACT, SAME_PIXELS, RE_ENCODED, EDITED}
            assert summary.groups == len(report.groups)
            assert summary.copies == sum(group.copies for group in report.groups)
            pair = [row for row in table if Path(row["path"]).name in ("1.png", "1 small.jpg")]
            is_together = len(pair) == 2 and pair[0]["group"] == pair[1]["group"]
            assert is_together == (not store.decisions.all())
            if is_together:
                store.decisions.add(DIFFERENT, [row["sha256"].hex() for row in pair])


def test_what_a_task_refuses_ends_the_search_with_the_name_of_the_file(embedded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "embedded"
    shutil.copytree(embedded, folder)
    path = folder / "part-00002.parquet"
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)  # the footer stays
    path.write_bytes(data)
    with pytest.raises(DistributedError, match=r"part-00002\.parquet cannot be read"):
        find_duplicates(folder, output=tmp_path / "output", threshold=THRESHOLD)


def test_a_task_that_kills_each_worker_ends_the_search() -> None:
    def die() -> None:
        signal.raise_signal(signal.SIGKILL)

    with pytest.raises(DistributedError, match="3 workers died with one task"):
        list(in_tasks(die, [()]))


def test_a_task_runs_alone_if_its_worker_has_died_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    wait = ray.wait
    waited_for: list[int] = []

    def watched(tasks: list[Any], **options: Any) -> Any:
        if any(tmp_path.glob("?2")):
            waited_for.append(len(tasks))
        return wait(tasks, **options)

    def run(name: str) -> str:
        before = len(list(tmp_path.glob(f"{name}*")))
        (tmp_path / f"{name}{before}").touch()
        if before < 2:
            signal.raise_signal(signal.SIGKILL)
        return name

    monkeypatch.setattr(ray, "wait", watched)
    assert dict(in_tasks(run, [("a",), ("b",)])) == {0: "a", 1: "b"}
    assert set(waited_for) == {1}


def test_the_next_task_waits_if_one_may_run(tmp_path: Path) -> None:
    def calls() -> Iterator[tuple[str]]:
        yield ("a",)
        assert (tmp_path / "a").exists()
        yield ("b",)

    def run(name: str) -> None:
        (tmp_path / name).touch()

    assert [number for number, _ in in_tasks(run, calls(), workers=1)] == [0, 1]

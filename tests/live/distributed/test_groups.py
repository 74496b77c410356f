"""Grouping on a real Ray cluster: the same groups as on one machine, whatever is killed."""

import asyncio
import itertools
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from benchmarks.fixtures.server import Server
from clip_client import ClipClient, VectorsError
from clip_client.cli.main import main
from clip_client.dedup import DuplicateReport, Store
from clip_client.dedup import find_duplicates as find_on_this_machine
from clip_client.dedup.store.decisions import DIFFERENT
from clip_client.dedup.types import EDITED, EXACT, RE_ENCODED, SAME_PIXELS
from clip_client.distributed import DistributedError, embed_partitions, find_duplicates, images_below
from clip_client.distributed.cluster import cluster, in_tasks
from tests.fixtures.embedded_rows import write_vectors, written_in
from tests.fixtures.images.scenes import resized, scene
from tests.fixtures.vectors import clusters
from tests.live.distributed.ray_cluster import RAY_WARNINGS, started

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings(*RAY_WARNINGS)]


@pytest.fixture(scope="module", autouse=True)
def ray_on_this_machine() -> Iterator[None]:
    pytest.importorskip("ray.data", reason="Ray is not installed (extra: ray)")
    import ray

    with ExitStack() as stack:
        started(lambda: stack.enter_context(cluster()))
        assert len(ray.nodes()) == 1
        yield
    assert not ray.is_initialized()


_DRIVER: Final = """
import json, os, signal, sys
from clip_client.distributed import find_duplicates
embedded, address, options = json.loads(sys.argv[1])
def kill(what, done, total):
    if (what, done) == ("comparing", 5):
        os.kill(os.getpid(), signal.SIGKILL)
find_duplicates(embedded, address=address, on_progress=kill, **options)
"""


def test_a_killed_driver_continues_at_the_finished_cells(tmp_path: Path) -> None:
    import ray

    vectors, output = clusters(seed=0, count=500, size=3, spread=0.02), tmp_path / "output"
    write_vectors(tmp_path / "embedded", np.random.default_rng(1).permutation(vectors), partitions=4)
    options: dict[str, Any] = {"output": str(output), "threshold": 0.9, "exact_rows": 0, "rows_at_once": 400}
    arguments = json.dumps([str(tmp_path / "embedded"), ray.get_runtime_context().gcs_address, options])
    driver = subprocess.run([sys.executable, "-c", _DRIVER, arguments], capture_output=True, timeout=120, check=False)
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    compared = written_in(output / "edges")
    assert len(compared) >= 5
    summary = find_duplicates(tmp_path / "embedded", **options)
    assert compared.items() < written_in(output / "edges").items()
    assert (summary.groups, summary.grouped) == (500, 1500)
    assert len(set(pq.read_table(output / "groups")["path"].to_pylist())) == 1500


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos with copies of all tiers, companions, and files that are not photos."""
    folder = tmp_path_factory.mktemp("photos") / "album"
    folder.mkdir()
    for number in range(2):
        picture = scene(number)
        picture.save(folder / f"{number}.png")
        resized(picture, 0.6).save(folder / f"{number} small.jpg", quality=85)
        ImageOps.grayscale(picture).save(folder / f"{number} grey.jpg", quality=90)
    scene(0).save(folder / "other bytes.png", compress_level=1)
    shutil.copyfile(folder / "0.png", folder / "copy.png")
    (folder / "0.xmp").write_text("This is a companion.")
    (folder / "text.jpg").write_text("This is no image.")
    (folder / "empty.jpg").touch()
    for name in ("flat.png", "flat.bmp"):
        Image.new("RGB", (64, 64), "red").save(folder / name)
    return folder


def test_dedup_on_ray_reports_what_the_local_engine_does(
    server: Server, album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(album.parent)
    store = tmp_path / "store"
    reports = []
    for engine in ("ray", "local"):
        report = tmp_path / f"{engine}.json"
        options = {"--url": server.grpc_url, "--json": str(report), "--store": str(store), "--engine": engine}
        assert main(["dedup", "album", "--quiet", *itertools.chain(*options.items())]) == 0
        reports.append(json.loads(report.read_text()))
    assert reports[0] == reports[1]
    assert {member["tier"] for group in reports[0]["groups"] for member in group["members"]} >= {RE_ENCODED, EDITED}
    failed = {file["path"]: file["code"] for file in reports[0]["failed"]}
    assert failed == {"album/empty.jpg": "EMPTY", "album/text.jpg": "NOT_AN_IMAGE"}
    assert not list((store / "cluster").rglob("part-*.parquet"))


def test_photos_get_the_groups_proofs_and_decisions_of_one_machine(server: Server, album: Path, tmp_path: Path) -> None:
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
            assert summary.copies == sum(one.verdict.is_copy for group in report.groups for one in group.members)
            pair = [row for row in table if Path(row["path"]).name in ("1.png", "1 small.jpg")]
            is_together = len(pair) == 2 and pair[0]["group"] == pair[1]["group"]
            assert is_together == (not store.decisions.all())
            if is_together:
                store.decisions.add(DIFFERENT, [row["sha256"].hex() for row in pair])


def test_what_a_task_refuses_and_what_it_kills_ends_the_job() -> None:
    def refuse() -> None:
        raise VectorsError("They are of another model.")

    def fail() -> None:
        raise ZeroDivisionError("by zero")

    def die() -> None:
        signal.raise_signal(signal.SIGKILL)

    with pytest.raises(VectorsError, match="another model"):
        list(in_tasks(refuse, [()]))
    with pytest.raises(DistributedError, match=r"^a task failed: .*by zero"):
        list(in_tasks(fail, [()]))
    with pytest.raises(DistributedError, match="3 workers died on one task"):
        list(in_tasks(die, [()]))
    assert list(in_tasks(die, [()], on_death=lambda number: f"{number} died")) == [(0, "0 died")]


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

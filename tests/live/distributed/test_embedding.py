"""Embedding on a real Ray cluster of two nodes, through real servers. What is killed loses and doubles nothing."""

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.fixtures.sample_photos import coarse_noise
from benchmarks.fixtures.server import QUIET, Server, serving
from clip_client import SyncClipClient, load_vectors
from clip_client.cli.main import main
from clip_client.distributed import DistributedError, embed_dataset, embed_partitions
from clip_client.distributed.cluster import in_tasks
from tests.fixtures.waiting import wait_until
from tests.live.distributed.ray_cluster import RAY_WARNINGS, Gate, add_node, gated_partition, two_nodes

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings(*RAY_WARNINGS)]

_PARTITIONS: Final = 6
_IMAGES: Final = 4  # images in each partition; the last is not an image


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, which this program is connected to; the last tests end one node."""
    with two_nodes() as running:
        yield running


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate that is open at the end of the test, whatever happens."""
    folder = tmp_path / "gate"
    folder.mkdir()
    gate = Gate(folder)
    yield gate
    gate.open()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("partitions")
    files = iter(coarse_noise(_PARTITIONS * (_IMAGES - 1)))
    found = []
    for number in range(_PARTITIONS):
        folder = root / f"folder-{number}"
        folder.mkdir()
        for image in range(_IMAGES - 1):
            (folder / f"{image}.jpg").write_bytes(next(files))
        (folder / "text.jpg").write_text("This is no image.")
        found.append(folder)
    return found


def assert_each_once(output: Path, folders: Sequence[Path]) -> None:
    """Check that the Parquet files hold each photo once, with a vector, and each text once, with an error code.

    What a killed worker was writing has another name, which no reader takes.
    """
    table = pq.read_table(output, columns=["path", "vector", "error_code"])
    expected = [str(path) for folder in folders for path in folder.iterdir()]
    assert Counter(table.column("path").to_pylist()) == Counter(expected)
    for path, vector, code in zip(*(column.to_pylist() for column in table.columns), strict=True):
        is_text = path.endswith("text.jpg")
        assert code == ("NOT_AN_IMAGE" if is_text else None)
        assert bool(np.isnan(vector).all()) == is_text


_DRIVER: Final = """
import pickle, sys
from clip_client.distributed import embed_partitions
partitions, url, output, address = pickle.loads(bytes.fromhex(sys.argv[1]))
embed_partitions(partitions, url, output=output, address=address, workers=1)
"""


def test_a_killed_driver_continues_with_what_is_not_finished(
    cluster: Any, server: Server, folders: list[Path], gate: Gate, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    partitions = [gated_partition(folder, replace(gate, free=2)) for folder in folders]
    arguments = pickle.dumps((partitions, server.grpc_url, str(output), cluster.address)).hex()
    log = tmp_path / "driver.log"

    def holds_a_third_partition() -> bool:
        assert driver.poll() is None, log.read_text()
        return len(list(output.glob("part-*.parquet"))) == 2 and bool(gate.workers())

    with log.open("wb") as said:
        driver = subprocess.Popen([sys.executable, "-c", _DRIVER, arguments], stderr=said)
    try:
        wait_until(holds_a_third_partition, "two partitions are finished and a third is in work")
    finally:
        driver.kill()
        driver.wait()
        files = [path.name for folder in (output, gate.folder) for path in folder.glob("*")]
        sys.stderr.write(f"{log.read_text()}\n{files}\n")  # shown if the test fails
    assert "DeprecationWarning" not in log.read_text()
    first = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.parquet")}
    (worker,) = gate.workers()
    wait_until(lambda: not psutil.pid_exists(worker), "Ray ends the worker of a driver that is gone")
    gate.open()

    summary = embed_partitions(partitions, server.grpc_url, output=output)
    assert (summary.partitions_before, summary.partitions) == (2, _PARTITIONS - 2)
    now = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.parquet")}
    assert first.items() <= now.items()
    assert_each_once(output, folders)


def test_the_command_continues_the_folder_of_either_engine_and_prints_nothing_else(
    server: Server, folders: list[Path], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    command = ["embed", "--url", server.grpc_url, "--output", str(output), "--quiet"]
    assert main([*command, str(folders[0])]) == 0
    # Ray starts on this machine, in a process of its own.
    line = [sys.executable, "-m", "clip_client", *command, *map(str, folders[:2]), "--engine", "ray"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_each_once(output, folders[:2])
    assert main([*command, *map(str, folders[:3])]) == 0
    assert_each_once(output, folders[:3])
    assert len(load_vectors(output).sources) == 3 * _IMAGES


def test_a_dataset_gets_the_vectors_of_the_local_client_with_one_cpu_that_is_free(
    cluster: Any, server: Server, folders: list[Path], tmp_path: Path
) -> None:
    import ray

    other = ray.remote(num_cpus=1)(Counter).remote()  # as Ray's own checkpoints hold one
    ray.get(other.total.remote())
    files = [path.read_bytes() for path in sorted(folders[0].iterdir())]
    pq.write_table(pa.table({"name": ["a", "b", "c", "text"], "bytes": files}), tmp_path / "images.parquet")
    images = ray.data.read_parquet(str(tmp_path))
    with pytest.raises(DistributedError, match=r"the dataset has no column 'jpg'; it has name, bytes"):
        embed_dataset(images, server.grpc_url, column="jpg")
    dataset = embed_dataset(images, server.grpc_url, features=True)
    rows = sorted(dataset.take_all(), key=lambda row: str(row["name"]))
    with SyncClipClient(server.grpc_url) as clip:
        batch = clip.embed(files)
    assert [row["error_code"] for row in rows] == [None, None, None, "NOT_AN_IMAGE"]
    np.testing.assert_array_equal(np.stack([row["vector"] for row in rows]), batch.vectors)
    assert [row["width"] for row in rows] == [256, 256, 256, 0]


def test_a_killed_node_and_a_killed_server_lose_and_double_nothing(
    cluster: Any, server: Server, tiny_repository: Path, folders: list[Path], gate: Gate, tmp_path: Path
) -> None:
    partitions = [gated_partition(folder, gate) for folder in folders]
    shown: list[int] = []
    (node,) = cluster.worker_nodes
    with serving(tiny_repository, *QUIET) as doomed, ThreadPoolExecutor(1) as thread:

        def break_things() -> None:
            try:
                wait_until(lambda: len(gate.workers()) == 2, "both workers are in the middle of a partition")
                cluster.remove_node(node, allow_graceful=False)
                own = psutil.Process(doomed.process.pid)
                for process in [own, *own.children(recursive=True)]:
                    # A stub of the killed server may be gone by itself.
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            finally:
                gate.open()

        breaking = thread.submit(break_things)
        summary = embed_partitions(
            partitions,
            [doomed.grpc_url, server.grpc_url],
            output=tmp_path / "output",
            workers=2,
            on_progress=lambda done, total: shown.append(done),
        )
        breaking.result()
    assert (summary.partitions, summary.images, summary.failed) == (_PARTITIONS, _PARTITIONS * _IMAGES, _PARTITIONS)
    assert shown[-1] == max(shown) == summary.images
    assert_each_once(tmp_path / "output", folders)


def test_a_job_ends_though_no_machine_is_left_like_the_one_that_was_lost(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would look for it for ever."""
    monkeypatch.setattr("clip_client.distributed.cluster._LOOK_S", 0.5)
    node = add_node(cluster, cpus=2)

    found: list[int] = []
    for number, _ in in_tasks(abs, ((number,) for number in range(8)), cpus=4):
        if not found:
            cluster.remove_node(node, allow_graceful=False)
        found.append(number)
    assert sorted(found) == list(range(8))

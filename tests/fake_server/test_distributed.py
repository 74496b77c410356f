"""A cluster's worker, called as Ray calls it: what it reads ahead, what is a row, and what ends the job."""

import errno
import json
import os
import re
import resource
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
from anyio import to_thread

from clip_client import ClientConfig
from clip_client._storage.vector_file import FileModel, FileVersion
from clip_client.cli.main import main
from clip_client.distributed import DistributedError, EmbeddingSummary, embed_partitions, embedding
from clip_client.distributed.cluster import cluster
from clip_client.distributed.embedded_rows import PartitionFolder
from clip_client.distributed.embedding import Outcome, embed_partition
from clip_client.distributed.sources import DamagedInput, Partition, SourceImage, image_files
from clip_client.distributed.storage import Location
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.commands import Run

MODEL = FileModel("fake/random:0@00000000", "fake/random:0@00000000|shortest-bicubic-224x224|original", 8)
NOTHING = np.empty(0, "S16")


def partition_of(*reads: Callable[[], bytes], size_bytes: int | None = None) -> Partition:
    """Return a partition called ``tar 7`` with one image for each function."""
    return Partition(name="tar 7", id="7", count=None, images=partial(images_of, reads, size_bytes))


def images_of(reads: tuple[Callable[[], bytes], ...], size_bytes: int | None) -> Iterator[SourceImage]:
    for number, read in enumerate(reads):
        file = FileVersion(path=f"/{number}", size_bytes=size_bytes)
        yield SourceImage(file=file, read=lambda read=read: (read(), None))  # type: ignore[misc]


def image() -> bytes:
    return b"image"


def missing() -> bytes:
    raise FileNotFoundError(errno.ENOENT, "No such file or directory")


def unreachable() -> bytes:
    raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation")


def files_in(output: Path) -> list[Path]:
    return [path for path in output.rglob("*") if path.is_file()]


async def results(
    server: FakeTriton,
    output: Path,
    partition: Partition,
    model: FileModel = MODEL,
    finished: Any = NOTHING,
    **more: Any,
) -> list[Outcome]:
    """Return what a worker says, in a thread as the servers of these tests have the event loop."""
    config = ClientConfig(urls=(server.url,), transfer="original", **more)
    folder = PartitionFolder(location=Location.of(output), model=model, features=False, finished=finished)
    return await to_thread.run_sync(lambda: list(embed_partition(partition, config, folder)))


async def embed(server: FakeTriton, output: Path, *reads: Callable[[], bytes], **settings: Any) -> Outcome:
    *_, outcome = await results(server, output, partition_of(*reads), **settings)
    return outcome


async def test_an_image_that_fails_is_a_row(server: FakeTriton, tmp_path: Path) -> None:
    outcome = await embed(server, tmp_path, image, missing, bytes)
    assert outcome == Outcome(images=3, failed=2, seen=3)
    table = pq.read_table(tmp_path)
    codes = dict(zip(table.column("path").to_pylist(), table.column("error_code").to_pylist(), strict=True))
    assert codes == {"/0": None, "/1": "UNREADABLE", "/2": "EMPTY"}


async def test_the_servers_limit_how_far_a_worker_reads_ahead(server: FakeTriton, tmp_path: Path) -> None:
    lead = []
    server.answer_always(Reply(delay_s=0.005))
    reads = 0

    def counting() -> bytes:
        nonlocal reads
        reads += 1
        lead.append(reads - server.images_embedded)
        return b"image"

    outcome = await embed(server, tmp_path, *(counting,) * 400, max_in_flight=4)
    assert (outcome.images, outcome.failed) == (400, 0)
    assert max(lead) <= 32 + 2 * 4 + 4  # read ahead, taken by the stream, and what answers are on their way


@pytest.mark.parametrize("end_of_key", [b"", b"\0"])
async def test_finished_images_are_not_embedded_again(end_of_key: bytes, server: FakeTriton, tmp_path: Path) -> None:
    versions = (FileVersion(path="/1", size_bytes=size) for size in count(1))
    done = next(version for version in versions if version.key.endswith(end_of_key))
    partition, finished = partition_of(*(image,) * 3, size_bytes=done.size_bytes), np.array([done.key], "S16")
    *_, outcome = await results(server, tmp_path, partition, finished=finished)
    assert (outcome.images, server.images_embedded) == (2, 2)
    assert sorted(pq.read_table(tmp_path).column("path").to_pylist()) == ["/0", "/2"]


async def test_a_partition_that_cannot_be_reached_at_all_ends_the_job(server: FakeTriton, tmp_path: Path) -> None:
    reason = "^tar 7: not one of its 2 images could be read; the first: .*AWS Error NETWORK_CONNECTION"
    with pytest.raises(DistributedError, match=reason):
        await embed(server, tmp_path, unreachable, unreachable)
    assert not files_in(tmp_path)
    # One that is gone says nothing about the bucket, and one that cannot be reached is a row beside others.
    assert await embed(server, tmp_path, missing) == Outcome(images=1, failed=1, seen=1)
    assert await embed(server, tmp_path, unreachable, image) == Outcome(images=2, failed=1, seen=2)
    assert await embed(server, tmp_path, unreachable, missing) == Outcome(images=2, failed=2, seen=2)


async def test_servers_that_stay_away_or_serve_another_model_end_the_job(server: FakeTriton, tmp_path: Path) -> None:
    reason = f"tar 7: the servers now serve {MODEL.vector_id}, and the job has vectors of other"
    with pytest.raises(DistributedError, match=re.escape(reason)):
        await embed(server, tmp_path, image, model=MODEL._replace(vector_id="other"))
    await server.stop()
    with pytest.raises(DistributedError, match=r"^tar 7: "):
        await embed(server, tmp_path, image, timeout_s=0.3)
    assert not files_in(tmp_path)


async def test_a_disk_without_room_ends_the_job_and_keeps_what_is_finished(server: FakeTriton, tmp_path: Path) -> None:
    await embed(server, tmp_path, image)
    finished = pq.read_table(tmp_path)
    reason = rf"^tar 7: {socket.gethostname()} cannot write {tmp_path}/part-00000-\w+\.parquet: File too large$"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # the limit that everyone may set, where filling a disk needs root
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        with pytest.raises(DistributedError, match=reason):
            await embed(server, tmp_path, image, image)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(files_in(tmp_path)) == 1
    assert pq.read_table(tmp_path).equals(finished)


async def test_a_file_over_the_limit_is_a_row_and_is_not_read(server: FakeTriton, tmp_path: Path) -> None:
    await results(server, tmp_path, partition_of(unreachable, size_bytes=4), max_image_bytes=3)
    assert pq.read_table(tmp_path).column("error_code").to_pylist() == ["TOO_LARGE"]


async def test_a_worker_believes_its_own_disk(server: FakeTriton, tmp_path: Path) -> None:
    """Another disk, or a later time: what the driver has examined must not be believed to have this vector."""
    path, output = tmp_path / "1.jpg", tmp_path / "out"
    path.write_bytes(b"image")
    (partition,) = image_files([path])
    path.write_bytes(b"another image")
    os.utime(path, ns=(1, 1))
    output.mkdir()
    await results(server, output, partition)
    (row,) = pq.read_table(output).to_pylist()
    assert (row["size_bytes"], row["mtime_ns"]) == (len(b"another image"), 1)
    path.unlink()
    with pytest.raises(DistributedError, match=r"not one of its 1 images could be read; the first: .*No such file"):
        await results(server, output, partition)


async def test_images_count_before_their_partition_is_finished(server: FakeTriton, tmp_path: Path) -> None:
    counts = await results(server, tmp_path, partition_of(*(image,) * 150))
    assert [(count.images, count.seen) for count in counts] == [(64, 64), (128, 128), (150, 150)]


async def test_a_worker_that_is_stopped_leaves_no_part_of_a_file(server: FakeTriton, tmp_path: Path) -> None:
    config = ClientConfig(urls=(server.url,), transfer="original")
    folder = PartitionFolder(location=Location.of(tmp_path), model=MODEL, features=False)
    partition = partition_of(*(image,) * 65)
    worker = cast("Generator[Outcome]", embed_partition(partition, config, folder))
    await to_thread.run_sync(next, worker)
    (part,) = files_in(tmp_path)
    assert part.name.endswith(".part")
    with pytest.raises(KeyboardInterrupt):  # as Ray cancels a task
        await to_thread.run_sync(worker.throw, KeyboardInterrupt())
    assert not files_in(tmp_path)


async def job(
    server: FakeTriton, output: Path, partitions: list[Partition], attempts: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[EmbeddingSummary, list[tuple[int, int | None]]]:
    """Embed ``partitions``, each as often as workers die after it; return the summary, and what was shown."""
    shown: list[tuple[int, int | None]] = []

    def in_tasks(function: Any, calls: Any, *shared: Any, on_death: Any, **_: Any) -> Iterator[tuple[int, Outcome]]:
        for number, (partition,) in enumerate(calls):
            for _attempt in range(attempts):
                outcomes = [on_death(number)] if partition.name == "deadly" else function(partition, *shared)
                yield from ((number, outcome) for outcome in outcomes)

    monkeypatch.setattr(embedding, "require", lambda *_: None)  # without Ray, which takes seconds to import
    monkeypatch.setattr(embedding, "in_tasks", in_tasks)
    monkeypatch.setattr(embedding, "cluster", nullcontext)
    embed = partial(embed_partitions, on_progress=lambda *counts: shown.append(counts))
    return await to_thread.run_sync(lambda: embed(partitions, server.url, output=output)), shown


async def test_a_partition_counts_once_if_its_worker_dies_when_it_has_finished(
    server: FakeTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, shown = await job(server, tmp_path, [partition_of(image, image)], 2, monkeypatch)
    assert (summary.partitions, summary.images, shown[-1]) == (1, 2, (2, None))


async def test_partitions_that_cannot_be_finished_are_named_when_all_others_are(
    server: FakeTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(error: Exception) -> Iterator[SourceImage]:
        yield from images_of((image,), None)
        raise error

    partitions = [
        Partition(name="deadly", id="1", count=None, images=partial(images_of, (image,), None)),
        Partition(name="tar 2", id="2", count=None, images=partial(broken, DamagedInput("tar 2 cannot be read"))),
        Partition(name="tar 3", id="3", count=None, images=partial(broken, ZeroDivisionError("by zero"))),
        partition_of(image),
    ]
    reason = (
        r"^deadly: 3 workers died .* nothing else ran; .*; tar 2 cannot be read; tar 3: ZeroDivisionError: by zero; "
    )
    with pytest.raises(DistributedError, match=f"{reason}all other partitions are finished"):
        await job(server, tmp_path, partitions, 1, monkeypatch)
    assert len(files_in(tmp_path)) == 1
    assert pq.read_table(tmp_path).num_rows == 1


def test_what_ray_prints_is_not_in_the_output(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def embed(_: list[Partition], **settings: Any) -> EmbeddingSummary:
        sys.stdout.write("(raylet) A worker died.")  # as a thread of Ray does
        return EmbeddingSummary(output="out", images=3, failed=1, partitions=1, partitions_before=0)

    monkeypatch.setattr("clip_client.distributed.embed_partitions", embed)
    (tmp_path / "a.jpg").touch()
    options = ("--engine", "ray", "--url", "127.0.0.1:1", "--output", tmp_path / "out", "--json", "-")
    assert json.loads(run(main, "embed", tmp_path, *options).out)["written"] == 2


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (None, "Ray cannot be started on this machine: The node timed out"),
        ("127.0.0.1:1", "there is no Ray cluster at"),
    ],
)
def test_an_unusable_cluster_is_named(address: str | None, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.data", reason="Ray is not installed (extra: ray)")

    def init(**_: Any) -> None:
        raise Exception("The node timed out.")  # as Ray does

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(DistributedError, match=f"^{reason}"), cluster(address):
        raise AssertionError("there is no cluster")

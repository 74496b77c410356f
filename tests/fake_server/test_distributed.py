"""A cluster's worker, called as Ray calls it: what it reads ahead, what is a row, and what ends the job."""

from __future__ import annotations

import errno
import pickle
import resource
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from clip_client import ClientConfig
from clip_client._vectors.vector_file import FileModel, FileVersion
from clip_client.distributed.partition_folder import PartitionFolder
from clip_client.distributed.sources import SourceImage, image_files
from clip_client.distributed.storage import Location
from clip_client.distributed.workers import Outcome, PartitionWorker
from clip_client.testing import FakeTriton, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MODEL = FileModel("fake/random:0@00000000", "fake/random:0@00000000|shortest-bicubic-224x224|original", 8)
NOTHING = np.empty(0, "S16")


@dataclass(frozen=True)
class Images:
    """A partition called ``tar 7`` with one image for each function."""

    reads: tuple[Callable[[], bytes], ...]
    name: str = "tar 7"
    id: str = "7"
    count: int | None = None

    def images(self) -> Iterator[SourceImage]:
        for number, read in enumerate(self.reads):
            yield SourceImage(file=FileVersion(path=f"/{number}"), read=read)


def image() -> bytes:
    return b"image"


def missing() -> bytes:
    raise FileNotFoundError(errno.ENOENT, "No such file or directory")


def unreachable() -> bytes:
    raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation")


def files_in(output: Path) -> list[Path]:
    return [path for path in output.rglob("*") if path.is_file()]


def worker(
    server: FakeTriton, output: Path, model: FileModel = MODEL, finished: Any = NOTHING, **settings: Any
) -> PartitionWorker:
    config = ClientConfig(urls=(server.url,), transfer="original", **settings)
    folder = PartitionFolder(location=Location.of(output), model=model, features=False)
    return PartitionWorker(config, folder, 0, finished)


async def embed(server: FakeTriton, output: Path, *reads: Callable[[], bytes], **given: Any) -> Outcome:
    (outcome,) = [row async for row in worker(server, output, **given)({"partition": [pickle.dumps(Images(reads))]})]
    return Outcome(**{name: values[0] for name, values in outcome.items()})


async def test_an_image_that_fails_is_a_row(tmp_path: Path) -> None:
    async with FakeTriton() as server:
        outcome = await embed(server, tmp_path, image, missing, bytes)
    assert outcome == Outcome(partition="tar 7", images=3, failed=2)
    table = pq.read_table(tmp_path)
    codes = dict(zip(table.column("path").to_pylist(), table.column("error_code").to_pylist(), strict=True))
    assert codes == {"/0": None, "/1": "UNREADABLE", "/2": "EMPTY"}


async def test_the_servers_limit_how_far_a_worker_reads_ahead(tmp_path: Path) -> None:
    lead = []

    async with FakeTriton() as server:
        server.answer_always(Reply(delay_s=0.005))
        reads = 0

        def counting() -> bytes:
            nonlocal reads
            reads += 1
            lead.append(reads - server.images_embedded)
            return b"image"

        outcome = await worker(server, tmp_path, max_in_flight=4).embed(Images((counting,) * 400))
    assert (outcome.images, outcome.failed) == (400, 0)
    assert max(lead) <= 32 + 2 * 4 + 4  # read ahead, taken by the stream, and what answers are on their way


async def test_images_that_are_finished_are_not_embedded_again(tmp_path: Path) -> None:
    finished = np.array([FileVersion(path="/1").key], "S16")
    async with FakeTriton() as server:
        outcome = await embed(server, tmp_path, image, image, image, finished=finished)
        assert (outcome.images, server.images_embedded) == (2, 2)
    assert sorted(pq.read_table(tmp_path).column("path").to_pylist()) == ["/0", "/2"]


async def test_a_partition_that_cannot_be_reached_at_all_ends_the_job(tmp_path: Path) -> None:
    async with FakeTriton() as server:
        outcome = await embed(server, tmp_path, unreachable, unreachable)
        assert outcome.error.startswith("tar 7: not one of its 2 images could be read; the first: ")
        assert "AWS Error NETWORK_CONNECTION" in outcome.error
        assert not files_in(tmp_path)
        # One that is gone says nothing about the bucket, and one that cannot be reached is a row beside others.
        assert await embed(server, tmp_path, missing) == Outcome(partition="tar 7", images=1, failed=1)
        assert await embed(server, tmp_path, unreachable, image) == Outcome(partition="tar 7", images=2, failed=1)


async def test_a_disk_that_only_the_driver_has_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"image")
    (partition,) = image_files([tmp_path / "1.jpg"])
    (tmp_path / "1.jpg").unlink()
    async with FakeTriton() as server:
        with pytest.raises(OSError, match=r"not one of its 1 images could be read; the first: .*No such file"):
            await worker(server, tmp_path).embed(partition)


async def test_servers_that_stay_away_end_the_job(tmp_path: Path) -> None:
    server = FakeTriton()
    await server.start()
    await server.stop()
    outcome = await embed(server, tmp_path, image, timeout_s=0.3)
    assert outcome.error.startswith("tar 7: ")
    assert not files_in(tmp_path)


async def test_another_model_than_the_jobs_ends_it(tmp_path: Path) -> None:
    async with FakeTriton() as server:
        outcome = await embed(server, tmp_path, image, model=MODEL._replace(vector_id="other"))
    assert outcome.error == f"tar 7: the servers now serve {MODEL.vector_id}, and the job has vectors of other"
    assert not files_in(tmp_path)


@contextmanager
def room_for(most_bytes: int) -> Iterator[None]:
    """Refuse to write more into any file: the limit that everyone may set, where filling a disk needs root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_without_room_ends_the_job_and_keeps_what_is_finished(tmp_path: Path) -> None:
    async with FakeTriton() as server:
        await embed(server, tmp_path, image)
        finished = pq.read_table(tmp_path)
        with room_for(100):
            outcome = await embed(server, tmp_path, image, image)
    assert outcome.error == f"tar 7: {socket.gethostname()} cannot write into {tmp_path}: File too large"
    assert len(files_in(tmp_path)) == 1
    assert pq.read_table(tmp_path).equals(finished)


async def test_a_file_over_the_limit_is_a_row_and_is_not_read(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Large(Images):
        def images(self) -> Iterator[SourceImage]:
            yield SourceImage(file=FileVersion(path="/0", size_bytes=4), read=unreachable)

    async with FakeTriton() as server:
        await worker(server, tmp_path, max_image_bytes=3).embed(Large(()))
    assert pq.read_table(tmp_path).column("error_code").to_pylist() == ["TOO_LARGE"]

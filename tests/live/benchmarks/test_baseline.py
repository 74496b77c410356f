"""The plain service beside the ensemble."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.fixtures.sample_photos import write_thumbnails
from benchmarks.fixtures.server import TINY_CLIP, Server, free_port
from benchmarks.load.adapters import Target, form
from benchmarks.peers.services import plain_service
from clip_client import ClipClient
from preprocess_ensemble.contract import ImageStatus
from tests.paths import ROOT

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with plain_service(str(TINY_CLIP), "random:0") as service:
        yield service.url


@pytest.fixture
def files(tmp_path: Path) -> list[bytes]:
    write_thumbnails(tmp_path)
    return [path.read_bytes() for path in sorted(tmp_path.iterdir())]


async def test_vectors_and_errors_are_those_of_the_ensemble(plain: str, server: Server, files: list[bytes]) -> None:
    images = [*files[:6], b"no image", files[0][:2000], b""]
    async with form(Target(url=plain, files=images, repository=server.repository)) as embed:
        ours = await embed(list(range(6)))
        for row in (6, 7, 8):
            with pytest.raises(RuntimeError, match="an image failed"):
                await embed([row])
    async with httpx.AsyncClient(timeout=60) as http:
        answer = (await http.post(f"{plain}/embed", files=[("images", image) for image in images])).json()
    async with ClipClient(server.grpc_url, transfer="original") as triton:
        theirs = await triton.embed(images)
    assert (ours * theirs.vectors[:6]).sum(axis=1).min() >= 0.999999
    assert [row for row, result in enumerate(answer["results"]) if result["embedding"] is None] == [6, 7, 8]
    assert {row: ImageStatus(answer["results"][row]["status"]).name for row in (6, 7, 8)} == {
        row: error.code for row, error in theirs.errors.items()
    }


def test_the_health_check_of_its_image_finds_it(plain: str) -> None:
    dockerfile = (ROOT / "containers" / "Dockerfile").read_text(encoding="utf-8")
    (check,) = re.findall(r"^    CMD (\[.*8002.*\])$", dockerfile, re.M)
    _, *rest = json.loads(check)
    for port, code in ((plain.rpartition(":")[2], 0), (str(free_port()), 1)):
        command = [sys.executable, *(part.replace("8002", port) for part in rest)]
        assert subprocess.run(command, capture_output=True, check=False).returncode == code


async def test_requests_that_wait_share_a_run_up_to_the_limit() -> None:
    from benchmarks.peers.baseline.service import Batcher  # it imports PyTorch

    runs: list[list[int]] = []
    started, all_wait = threading.Event(), threading.Event()

    def work(items: list[int]) -> list[int]:
        started.set()
        all_wait.wait(30)
        runs.append(items)
        return [10 * item for item in items]

    batches = Batcher(work, max_items=4)
    first = asyncio.create_task(batches.submit([0, 0]))
    await asyncio.to_thread(started.wait, 30)
    others = [asyncio.create_task(batches.submit([n, n])) for n in range(1, 6)]
    await asyncio.sleep(0)  # all have asked
    all_wait.set()
    answers = await asyncio.gather(first, *others)
    assert answers == [[10 * n, 10 * n] for n in range(6)]
    assert runs == [[0, 0], [1, 1, 2, 2], [3, 3, 4, 4], [5, 5]]

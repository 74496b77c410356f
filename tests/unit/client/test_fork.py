"""A process made by fork: what it cannot use says so, at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from clip_client.testing import FakeTriton
from tests.fixtures.fakes import served

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no fork here")

CHILD = """
import asyncio, os, signal, sys
from clip_client import ClipClient, ClipError, ForkedProcess, SyncClipClient
from clip_client.testing import FakeTriton
from tests.fixtures.fakes import InMemoryClient

url = sys.argv[1]

def in_child(*works):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        signal.alarm(20)
        for work in works:
            try:
                print("good:", work())
            except ForkedProcess as error:
                print("refused:", error)
        sys.stdout.flush()  # the caller may end this process at once
        return True
    _, status = os.waitpid(child, 0)
    print("child ended with", status, flush=True)
    return False

async def embed():
    async with ClipClient(url) as clip:
        return len(await clip.embed(b"a"))

async def embed_in_memory():
    async with InMemoryClient({"localhost": FakeTriton()}) as clip:
        return len(await clip.embed(b"a"))

def embed_blocking():
    with SyncClipClient(url) as clip:
        return len(clip.embed(b"a"))
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(FakeTriton()) as fake:
        yield fake.url


REFUSED = "refused: This client was opened in process "
BLOCKING = """
with SyncClipClient(url) as clip:
    items = clip.embed_stream([b"a", b"b"])
    next(items)
    in_child(lambda: clip.embed(b"a"), clip.stats, clip.health, lambda: next(items), lambda: repr(clip))
"""
ASYNCHRONOUS = """
def use_in_child(clip):
    in_child(lambda: asyncio.run(clip.embed(b"a")))
    sys.stdout.flush()
    os._exit(0)  # the parent, too

async def fork():
    async with ClipClient(url) as clip:
        await clip.embed(b"a")
        asyncio.get_running_loop().call_soon(use_in_child, clip)
        await asyncio.sleep(60)
asyncio.run(fork())
"""
AFTER_GRPC = "embed_blocking()\nin_child({}, lambda: asyncio.run(embed_in_memory()))"
REFUSED_AFTER_GRPC = ["refused: gRPC was used in process ", "good: 1"]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        # Every method refuses, and leaving the block ends the child, as it ends the parent.
        (BLOCKING, [*4 * [REFUSED], "good: <SyncClipClient"]),
        (ASYNCHRONOUS, [REFUSED]),
        (AFTER_GRPC.format("lambda: asyncio.run(embed())"), REFUSED_AFTER_GRPC),
        (AFTER_GRPC.format("embed_blocking"), REFUSED_AFTER_GRPC),
        ("with SyncClipClient(url):\n    in_child(embed_blocking) and os._exit(0)", ["good: 1"]),
    ],
    ids=["open before", "open before, async", "new, after gRPC, async", "new, after gRPC", "new, before gRPC"],
)
def test_a_client_in_a_forked_process(code: str, says: list[str], url: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CHILD + code, url]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    expected = [*says, "child ended with 0"]
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=True)] == expected
    assert all("'spawn'" in line for line in lines if line.startswith("refused"))

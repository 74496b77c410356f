"""A process made by fork: what it cannot use says so, at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import start_blocking_portal

from clip_client.testing import FakeTriton

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """The URL of a fake in an event loop of its own."""
    with start_blocking_portal() as portal:
        fake = portal.call(FakeTriton)
        with portal.wrap_async_context_manager(fake):
            yield fake.url


def run(code: str, url: str) -> list[str]:
    """Run the code in a process of its own, which forks; return what it and its child print."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CHILD + textwrap.dedent(code), url]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()


def test_a_client_that_was_open_before_the_fork(url: str) -> None:
    """Blocking: every method refuses, and leaving the block ends the child, as it ends the parent."""
    lines = run(
        """
        with SyncClipClient(url) as clip:
            items = clip.embed_stream([b"a", b"b"])
            next(items)
            in_child(lambda: clip.embed(b"a"), clip.stats, clip.health, lambda: next(items), lambda: repr(clip))
        """,
        url,
    )
    assert len(lines) == 6
    for line in lines[:4]:
        assert line.startswith("refused: This client was opened in process ")
        assert "'spawn'" in line
    assert lines[4].startswith("good: <SyncClipClient")
    assert lines[5] == "child ended with 0"


def test_an_asynchronous_client_that_was_open_before_the_fork(url: str) -> None:
    lines = run(
        """
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
        """,
        url,
    )
    assert lines[0].startswith("refused: This client was opened in process ")
    assert lines[1] == "child ended with 0"


@pytest.mark.parametrize("client", ["lambda: asyncio.run(embed())", "embed_blocking"])
def test_a_new_client_after_the_parent_has_used_grpc(client: str, url: str) -> None:
    lines = run(f"embed_blocking()\nin_child({client}, lambda: asyncio.run(embed_in_memory()))", url)
    assert lines[0].startswith("refused: gRPC was used in process ")
    assert lines[1:] == ["good: 1", "child ended with 0"]


def test_a_new_client_where_the_parent_has_not_used_grpc(url: str) -> None:
    assert run("with SyncClipClient(url):\n    in_child(embed_blocking) and os._exit(0)", url) == [
        "good: 1",
        "child ended with 0",
    ]

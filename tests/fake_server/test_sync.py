"""The blocking client: same results, from threads, beside a running loop."""

import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal

from clip_client import ClientConfig, SyncClipClient, Unavailable
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import NEVER, images, served
from tests.fixtures.waiting import wait_until


@pytest.fixture
def server(fake: FakeTriton) -> Iterator[FakeTriton]:
    with served(fake) as running:
        yield running


def threads() -> set[threading.Thread]:
    """Return the threads that run an event loop for blocking code."""
    return {thread for thread in threading.enumerate() if "portal" in thread.name.lower()}


def test_embed_and_the_rest_of_the_surface(server: FakeTriton) -> None:
    with SyncClipClient(server.url) as clip:
        batch = clip.embed([b"a", b"b"])
        assert (batch.vectors[1] == server.vector(b"b")).all()
        assert clip.model().dimension == 8
        assert clip.embed_text(["a", "word " * 78]).truncated == (1,)
        for item in clip.embed_text_stream(f"text {number}" for number in range(100)):
            if item.index == 5:
                break
        assert [item.index for item in clip.embed_stream(iter(images(100)))] == list(range(100))
        assert clip.classify(b"a", ["cat"]).probabilities.tolist() == [[1.0]]
        assert clip.vector_id == batch.vector_id
        assert clip.health().ok
        assert clip.stats().images_embedded >= 2
        assert repr(clip).startswith("<SyncClipClient grpc://localhost")


def test_open_and_close_without_a_with_block(server: FakeTriton) -> None:
    clip = SyncClipClient(server.url)
    clip.close()
    assert "[new]" in repr(clip)
    assert clip.open() is clip.open()
    assert clip.embed(b"a").errors == {}
    assert "[open]" in repr(clip)
    clip.close()
    clip.close()
    assert "[closed]" in repr(clip)
    with pytest.raises(RuntimeError, match=r"SyncClipClient\(\.\.\.\)\.open\(\)"):
        clip.embed(b"a")
    with pytest.raises(RuntimeError, match="make a new one"):
        clip.open()


def test_threads_may_open_one_client_at_once_and_share_it(server: FakeTriton) -> None:
    clip, begin, before = SyncClipClient(server.url), threading.Barrier(8), threads()

    def use(number: int) -> bool:
        begin.wait()
        own = images(12, first=12 * number)
        return all((clip.open().embed(image).vectors[0] == server.vector(image)).all() for image in own)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))
    clip.close()
    assert server.handshakes == 1
    assert threads() == before


def test_a_process_ends_although_a_client_is_open(server: FakeTriton) -> None:
    code = f"import clip_client; print(clip_client.SyncClipClient({server.url!r}).open().embed(b'a'))"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("EmbeddingBatch(1 x 8 float32")


def test_a_client_that_cannot_be_opened_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Too many open files")

    before = threads()
    config = ClientConfig(urls=("grpcs://localhost",), ca_certificate="/no/such.pem")
    with pytest.raises(ValueError, match="ca_certificate"):
        SyncClipClient(config=config).open()
    monkeypatch.setattr(anyio, "run", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        SyncClipClient("localhost:1").open()
    assert threads() == before


async def test_in_the_thread_of_a_running_loop_errors_are_the_same() -> None:
    """A notebook does this: it calls blocking code while this thread's loop is running."""
    before = threads()
    with SyncClipClient("localhost:1") as clip:
        with pytest.raises(Unavailable, match="No server answers"):
            clip.embed(b"a")
        assert len(threads() - before) == 1
    assert threads() == before


@pytest.mark.parametrize("call", [SyncClipClient.embed, SyncClipClient.embed_stream])
def test_closing_ends_a_call_whose_source_blocks(server: FakeTriton, call: Callable[..., Any]) -> None:
    is_asked, go_on = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        is_asked.set()
        go_on.wait()
        yield b"a"

    with ThreadPoolExecutor(1) as pool:
        with SyncClipClient(server.url) as clip:
            blocked = pool.submit(lambda: list(call(clip, source())))
            is_asked.wait()
        with pytest.raises(Unavailable, match="closed"):
            blocked.result(timeout=20)
        go_on.set()


INTERRUPTED = pytest.mark.parametrize("call", [SyncClipClient.embed, SyncClipClient.embed_stream])


@pytest.mark.skipif(sys.platform == "win32", reason="no signal to one thread")
@INTERRUPTED
def test_an_interrupt_ends_the_call(server: FakeTriton, call: Callable[..., Any]) -> None:
    def interrupt() -> None:
        wait_until(lambda: server.requests, "the request has arrived")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    server.answer_always(NEVER)
    with SyncClipClient(server.url) as clip, ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            list(call(clip, [b"a"]))
        # The thread that embeds has stopped, too.
        wait_until(lambda: not server.in_flight, "nothing works on it")
        server.answer_always(Reply())
        assert clip.embed([b"b"]).errors == {}


@INTERRUPTED
def test_an_interrupt_ends_a_call_before_it_starts(
    server: FakeTriton, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = BlockingPortal.start_task_soon
    is_interrupted, has_ended = threading.Event(), threading.Event()

    def interrupted(portal: BlockingPortal, work: Callable[[], Awaitable[object]]) -> None:
        async def later() -> None:
            await anyio.to_thread.run_sync(is_interrupted.wait)
            try:
                await work()
            finally:
                has_ended.set()

        monkeypatch.undo()
        start(portal, later)
        raise KeyboardInterrupt

    with SyncClipClient(server.url) as clip:
        clip.model()
        monkeypatch.setattr(BlockingPortal, "start_task_soon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(call(clip, [b"a"]))
        is_interrupted.set()
        has_ended.wait()
        assert clip.embed([b"b"]).errors == {}
        assert [request.images for request in server.requests] == [(b"b",)]


def test_a_stream_that_outlives_its_client(server: FakeTriton) -> None:
    with SyncClipClient(server.url) as clip:
        items, others = (clip.embed_stream([b"a", b"b"]) for _ in range(2))
        assert next(items).index == next(others).index == 0
    others.close()
    with pytest.raises(RuntimeError, match="not open"):
        next(items)

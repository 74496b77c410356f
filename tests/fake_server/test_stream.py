"""``embed_stream``: each image once, in order if requested, in bounded memory."""

import asyncio
import gc
import threading
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import grpc
import numpy as np
import pytest

from clip_client import ClientConfig, ClipClient, ClipError, EmbeddedItem
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import InMemoryClient, asynchronous, images, now, scripted
from tests.fixtures.simulated_time import connected, simulated

KINDS = pytest.mark.parametrize("kind", [iter, asynchronous], ids=["thread", "async"])


async def collect(stream: AsyncIterator[EmbeddedItem]) -> list[Any]:
    """Return all items; the vector of each is there, or its error."""
    with anyio.fail_after(20):
        items = [item async for item in stream]
    assert all((item.vector is None) is (item.error is not None) for item in items)
    return items


@pytest.mark.parametrize("ordered", [True, False])
async def test_each_image_exactly_once_through_outages(server: FakeTriton, clip: ClipClient, ordered: bool) -> None:
    server.answer_always(Reply(delay_s=0.002))
    items: list[Any] = []
    async for item in clip.embed_stream(iter(images(1500)), ordered=ordered):
        items.append(item)
        if len(items) in (300, 700, 1100):
            await server.stop()
            await server.start()
    indices = [item.index for item in items]
    assert Counter(indices) == Counter(range(1500))
    assert not ordered or indices == sorted(indices)
    assert clip.stats().requests_retried
    for item in items:
        assert item.error is None
        assert item.source == b"%d" % item.index
        assert (item.vector == server.vector(b"%d" % item.index)).all()


@pytest.mark.parametrize(("ordered", "indices"), [(True, [0, 1, 2, 3]), (False, [2, 3, 0, 1])])
@simulated
async def test_answers_overtake_each_other_and_order_is_kept_if_asked(ordered: bool, indices: list[int]) -> None:
    async with connected(scripted(Reply(delay_s=1), Reply(delay_s=1), max_batch_size=1)) as clip:
        assert [item.index async for item in clip.embed_stream(images(4), ordered=ordered)] == indices
        assert now() == pytest.approx(1)


async def test_a_long_stream_takes_no_more_memory() -> None:
    vector = np.full(512, 512**-0.5, dtype=np.float32)
    async with InMemoryClient({"localhost": FakeTriton(dimension=512, vector=lambda _: vector)}) as clip:
        peaks = []
        tracemalloc.start()
        try:
            for count in (1000, 4000):
                async for _ in clip.embed_stream(iter(images(count))):
                    pass
                gc.collect()
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
        finally:
            tracemalloc.stop()
    # The later images would take 6 MB if their vectors stayed, and 2 MB if only their items did.
    assert peaks[1] < peaks[0] + 1e6


@pytest.mark.parametrize("source", [list, iter])
async def test_errors_of_images_are_items(near: ClipClient, source: Callable[..., Any]) -> None:
    """Also of a buffer that was released."""
    released = memoryview(b"gone")
    released.release()
    files: list[Any] = [b"a", b"", "/no/such/file", released, b"b"]
    items = await collect(near.embed_stream(source(files)))
    assert [item.error and item.error.code for item in items] == [None, "EMPTY", "UNREADABLE", "UNREADABLE", None]


@pytest.mark.parametrize("kind", [iter, asynchronous, list], ids=["thread", "async", "list"])
async def test_the_producer_is_never_more_than_max_in_flight_ahead(near: ClipClient, kind: Callable[..., Any]) -> None:
    produced = consumed = 0

    def blocking() -> Iterator[bytes]:
        nonlocal produced
        for image in images(100):
            produced += 1
            yield image

    source = images(100) if kind is list else kind(blocking())
    async for _ in near.embed_stream(source, max_in_flight=10):
        consumed += 1
        # A slow consumer, which gives the producer time to run ahead.
        for _ in range(3):
            await asyncio.sleep(0.0005)
        assert produced <= consumed + 10
        assert near.stats().images_waiting + near.stats().images_in_flight <= 10
    assert consumed == 100


async def test_a_generator_that_blocks_holds_up_neither_loop_nor_images_nor_other_threads(near: ClipClient) -> None:
    release = threading.Event()

    def blocking() -> Iterator[bytes]:
        yield b"first"
        assert release.wait(60)
        yield b"second"

    anyio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with aclosing(near.embed_stream(blocking())) as items:
        # It arrives while the generator is blocked: the client does not wait for a full batch.
        assert (await anext(items)).source == b"first"
        with anyio.fail_after(10):
            assert await anyio.to_thread.run_sync(lambda: "there is a thread") == "there is a thread"
        release.set()
        assert (await anext(items)).source == b"second"
        with pytest.raises(StopAsyncIteration):
            await anext(items)


async def test_a_burst_wakes_the_loop_once(near: ClipClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up for each image of a generator would take longer than the image itself."""
    go_on, done = threading.Event(), threading.Event()

    def burst() -> Iterator[bytes]:
        yield b"first"
        go_on.wait(10)
        yield from images(50)
        done.set()

    loop = asyncio.get_running_loop()
    wake, woken = loop.call_soon_threadsafe, 0

    def count(*arguments: Any, **options: Any) -> asyncio.Handle:
        nonlocal woken
        woken += 1
        return wake(*arguments, **options)

    async with aclosing(near.embed_stream(burst())) as items:
        await anext(items)
        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        go_on.set()
        assert done.wait(10)  # nothing else runs in the loop meanwhile
        monkeypatch.undo()
        assert woken <= 2, "the burst, and perhaps the end"
        assert len(await collect(items)) == 50


@pytest.mark.parametrize("as_paths", [True, False])
async def test_images_wait_for_memory_and_not_only_for_slots(fake: FakeTriton, as_paths: bool, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(1000))
    config = ClientConfig(transfer="original", max_request_bytes=1000)
    fake.answer_always(Reply(delay_s=0.001))
    async with InMemoryClient({"localhost": fake}, config=config) as clip:
        held = 0
        async for _ in clip.embed_stream([path if as_paths else bytes(1000)] * 100):
            held = max(held, clip.stats().images_waiting + clip.stats().images_in_flight)
    # Eight requests, and what other threads were reading when they were full.
    assert held <= (8 + 16 if as_paths else 8)


@KINDS
@pytest.mark.parametrize("buffer", ["released", "used again"])
async def test_a_source_may_use_its_buffer_again(near: ClipClient, kind: Callable[..., Any], buffer: str) -> None:
    def buffers() -> Iterator[memoryview | bytearray]:
        used = bytearray(4)
        for number in range(300):
            if buffer == "released":
                with memoryview(b"%04d" % number) as view:
                    yield view
            else:
                used[:] = b"%04d" % number
                yield used

    items = await collect(near.embed_stream(kind(buffers())))
    assert [item.source for item in items] == [b"%04d" % number for number in range(300)]
    vector = FakeTriton().vector
    assert all((item.vector == vector(b"%04d" % item.index)).all() for item in items)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), asyncio.CancelledError()])
async def test_an_unexpected_error_while_encoding_ends_the_stream(
    near: ClipClient, error: BaseException, reported: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that are not image errors, too: else the stream would wait indefinitely for that image's result."""

    async def fail(*_: object, **__: object) -> bytes:
        raise error

    monkeypatch.setattr(anyio.to_thread, "run_sync", fail)
    with pytest.raises(ClipError, match=f"image 1 .*{type(error).__name__}"):
        await collect(near.embed_stream([b"good", __file__]))
    assert reported == ([] if isinstance(error, asyncio.CancelledError) else [error])


async def test_a_source_that_gets_no_thread_ends_the_stream(near: ClipClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a limit on threads may cause this."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    await near.model()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await collect(near.embed_stream(iter(images(3))))


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
@KINDS
async def test_an_error_of_the_source_is_raised_after_its_images(
    near: ClipClient, kind: Callable[..., Any], error: type[BaseException]
) -> None:
    """Also the CancelledError of something that the source waited for."""

    def broken() -> Iterator[bytes]:
        yield from images(5)
        raise error("of the user")

    stream = near.embed_stream(kind(broken()))
    assert [(await anext(stream)).index for _ in range(5)] == list(range(5))
    with pytest.raises(error, match="of the user"):
        await asyncio.wait_for(anext(stream), 20)


async def test_a_failure_of_the_service_is_raised_after_earlier_results(fake: FakeTriton, near: ClipClient) -> None:
    fake.script(Reply())
    fake.answer_always(Reply(status=grpc.StatusCode.INTERNAL, details="boom"))
    stream = near.embed_stream(images(100))
    first = await anext(stream)
    good = len(fake.requests[0].images)
    assert [first.index] + [(await anext(stream)).index for _ in range(good - 1)] == list(range(good))
    with pytest.raises(ClipError, match="failed on this request"):
        await anext(stream)


async def test_wrong_arguments(near: ClipClient) -> None:
    for limit in (0, 1.5, True):
        with pytest.raises(ValueError, match="max_in_flight"):
            await collect(near.embed_stream([], max_in_flight=limit))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout_s"):
        await near.embed([], timeout_s=0)
    with pytest.raises(RuntimeError, match="async with"):
        await collect(ClipClient("localhost:1").embed_stream([]))

"""``embed_stream``: each image once, in order if requested, in bounded memory."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import grpc
import pytest

from clip_client import ClientConfig, ClipClient, ClipError, EmbeddedItem
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import Relay, asynchronous, images, now
from tests.fixtures.simulated_time import play
from tests.fixtures.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path


async def collect(stream: AsyncIterator[EmbeddedItem]) -> list[Any]:
    return [item async for item in stream]


def codes(items: list[Any]) -> list[str | None]:
    assert all((item.vector is None) is (item.error is not None) for item in items)
    return [item.error and item.error.code for item in items]


@pytest.mark.parametrize("ordered", [True, False])
async def test_each_image_exactly_once_through_cut_connections(server: FakeTriton, ordered: bool) -> None:
    async with Relay(server.port) as relay, ClipClient(relay.url) as clip:
        server.answer_always(Reply(delay_s=0.002))
        items: list[Any] = []
        async for item in clip.embed_stream(iter(images(2000)), ordered=ordered):
            items.append(item)
            if len(items) in (300, 800, 1300):
                relay.cut()
    indices = [item.index for item in items]
    assert Counter(indices) == Counter(range(2000))
    assert not ordered or indices == sorted(indices)
    assert codes(items) == [None] * 2000
    for item in items:
        assert item.source == b"%d" % item.index
        assert (item.vector == server.vector(b"%d" % item.index)).all()


class HeldBack(FakeTriton):
    """Answers the first two images only after ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__(max_batch_size=1)
        self.go_on = asyncio.Event()

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        if any(raw[4:] in (b"0", b"1") for raw in request.raw_input_contents):  # behind the length of the image
            await self.go_on.wait()
        return await super().ModelInfer(request, context)


async def test_answers_overtake_each_other_and_order_is_kept_if_asked() -> None:
    async with HeldBack() as server, ClipClient(server.url) as clip:
        collecting = asyncio.create_task(collect(clip.embed_stream(iter(images(6)))))
        await until(lambda: server.images_embedded == 4)  # 2 to 5 overtake 0 and 1
        server.go_on.set()
        assert [item.index for item in await collecting] == list(range(6))
        server.go_on.clear()
        arrived: list[int] = []
        async for item in clip.embed_stream(iter(images(6)), ordered=False):
            arrived.append(item.index)
            if len(arrived) == 4:
                server.go_on.set()
        assert (set(arrived[:4]), set(arrived[4:])) == ({2, 3, 4, 5}, {0, 1})


async def test_errors_of_images_are_items(clip: ClipClient) -> None:
    """Also of a buffer that was released."""
    released = memoryview(b"gone")
    released.release()
    files: list[Any] = [b"a", b"", "/no/such/file", released, b"b"]
    with anyio.fail_after(20):
        for source in (files, iter(files)):
            items = await collect(clip.embed_stream(source))
            assert codes(items) == [None, "EMPTY", "UNREADABLE", "UNREADABLE", None]


@pytest.mark.parametrize("kind", [iter, asynchronous, list], ids=["thread", "async", "list"])
async def test_the_producer_is_never_more_than_max_in_flight_ahead(clip: ClipClient, kind: Callable[..., Any]) -> None:
    produced = 0

    def blocking() -> Iterator[bytes]:
        nonlocal produced
        for image in images(200):
            produced += 1
            yield image

    source = images(200) if kind is list else kind(blocking())
    consumed = 0
    async for _ in clip.embed_stream(source, max_in_flight=10):
        consumed += 1
        # A slow consumer, which gives the producer time to run ahead.
        for _ in range(3):
            await asyncio.sleep(0.0005)
        assert produced <= consumed + 10
        assert clip.stats().images_waiting + clip.stats().images_in_flight <= 10
    assert consumed == 200


async def test_a_generator_that_blocks_holds_up_neither_the_loop_nor_its_images_nor_other_threads(
    clip: ClipClient,
) -> None:
    release = threading.Event()

    def blocking() -> Iterator[bytes]:
        yield b"first"
        assert release.wait(60)
        yield b"second"

    anyio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with aclosing(clip.embed_stream(blocking())) as items:
        # It arrives while the generator is blocked: the client does not wait for a full batch.
        assert (await anext(items)).source == b"first"
        with anyio.fail_after(10):
            assert await anyio.to_thread.run_sync(lambda: "there is a thread") == "there is a thread"
        release.set()
        assert (await anext(items)).source == b"second"
        with pytest.raises(StopAsyncIteration):
            await anext(items)


async def test_a_burst_wakes_the_loop_once(clip: ClipClient, monkeypatch: pytest.MonkeyPatch) -> None:
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

    async with aclosing(clip.embed_stream(burst())) as items:
        await anext(items)
        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        go_on.set()
        assert done.wait(10)  # nothing else runs in the loop meanwhile
        monkeypatch.undo()
        assert woken <= 2, "the burst, and perhaps the end"
        assert len(await collect(items)) == 50


@pytest.mark.parametrize("as_paths", [True, False])
async def test_images_wait_for_memory_and_not_only_for_slots(
    server: FakeTriton, as_paths: bool, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(1000))
    config = ClientConfig(transfer="original", max_request_bytes=1000)
    server.answer_always(Reply(delay_s=0.001))
    async with ClipClient(server.url, config=config) as clip:
        held = 0
        async for _ in clip.embed_stream([path if as_paths else bytes(1000)] * 100):
            held = max(held, clip.stats().images_waiting + clip.stats().images_in_flight)
    # Eight requests, and what other threads were reading when they were full.
    assert held <= (8 + 16 if as_paths else 8)


@pytest.mark.parametrize("kind", [iter, asynchronous], ids=["thread", "async"])
@pytest.mark.parametrize("buffer", ["released", "used again"])
async def test_a_source_may_use_its_buffer_again(
    server: FakeTriton, clip: ClipClient, kind: Callable[..., Any], buffer: str
) -> None:
    def buffers() -> Iterator[memoryview | bytearray]:
        used = bytearray(4)
        for number in range(300):
            if buffer == "released":
                with memoryview(b"%04d" % number) as view:
                    yield view
            else:
                used[:] = b"%04d" % number
                yield used

    with anyio.fail_after(20):
        items = await collect(clip.embed_stream(kind(buffers())))
    assert [item.source for item in items] == [b"%04d" % number for number in range(300)]
    assert all((item.vector == server.vector(b"%04d" % item.index)).all() for item in items)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), asyncio.CancelledError()])
async def test_an_unexpected_error_while_encoding_ends_the_stream(
    clip: ClipClient, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that are not image errors, too: else the stream would wait indefinitely for that image's result."""

    async def fail(*_: object, **__: object) -> bytes:
        raise error

    monkeypatch.setattr(anyio.to_thread, "run_sync", fail)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    with anyio.fail_after(10), pytest.raises(ClipError, match=f"image 1 .*{type(error).__name__}"):
        await collect(clip.embed_stream([b"good", __file__]))
    assert reported == ([] if isinstance(error, asyncio.CancelledError) else [error])


async def test_a_source_that_gets_no_thread_ends_the_stream(clip: ClipClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a limit on threads."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    await clip.model()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with anyio.fail_after(10), pytest.raises(RuntimeError, match="can't start new thread"):
        await collect(clip.embed_stream(iter(images(3))))


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
@pytest.mark.parametrize("kind", [iter, asynchronous], ids=["thread", "async"])
async def test_an_error_of_the_source_is_raised_after_its_images(
    clip: ClipClient, kind: Callable[..., Any], error: type[BaseException]
) -> None:
    """Also the CancelledError of something that the source waited for."""

    def broken() -> Iterator[bytes]:
        yield from images(5)
        raise error("of the user")

    stream = clip.embed_stream(kind(broken()))
    assert [(await anext(stream)).index for _ in range(5)] == list(range(5))
    with pytest.raises(error, match="of the user"):
        await asyncio.wait_for(anext(stream), 20)


async def test_a_failure_of_the_service_is_raised_after_the_results_before_it() -> None:
    async with FakeTriton(max_batch_size=4) as server, ClipClient(server.url) as clip:
        server.script(Reply())
        server.answer_always(Reply(status=grpc.StatusCode.INTERNAL, details="boom"))
        stream = clip.embed_stream(images(100))
        first = await anext(stream)
        good = len(server.requests[0].images)
        assert [first.index] + [(await anext(stream)).index for _ in range(good - 1)] == list(range(good))
        with pytest.raises(ClipError, match="failed on this request"):
            await anext(stream)


def test_without_a_deadline_each_image_has_the_clients_time() -> None:
    """Twelve requests one after the other take longer than ``timeout_s`` in total."""
    server = FakeTriton()
    server.answer_always(Reply(delay_s=0.1))

    async def test(clip: ClipClient) -> None:
        assert len(await collect(clip.embed_stream(images(12), max_in_flight=1))) == 12
        assert now() > 1.0

    play(test, server, timeout_s=1.0)


async def test_wrong_arguments(clip: ClipClient) -> None:
    for limit in (0, 1.5, True):
        with pytest.raises(ValueError, match="max_in_flight"):
            await collect(clip.embed_stream([], max_in_flight=limit))  # type: ignore[arg-type]
    for seconds in (0, -1, float("inf"), float("nan"), 1e12, True):
        with pytest.raises(ValueError, match="timeout_s"):
            await clip.embed([], timeout_s=seconds)
    with pytest.raises(RuntimeError, match="async with"):
        await collect(ClipClient("localhost:1").embed_stream([]))


def test_a_client_belongs_to_one_event_loop() -> None:
    clip = ClipClient("localhost:1")
    asyncio.run(clip.__aenter__())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(clip.embed([]))

"""A stream or a call that is left, cancelled or closed leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import grpc
import pytest

from clip_client import ClientConfig, ClipClient, ClipError, ProtocolMismatch, Unavailable
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import LOST, NEVER, InMemoryClient, Stalled, images, paced, scripted
from tests.fixtures.waiting import until


def other_tasks() -> set[str]:
    names = (task.get_name() for task in asyncio.all_tasks() if not task.done())
    return {name for name in names if name.startswith("clip_client")}


async def test_a_scope_of_anyio_that_ends_leaves_nothing_behind() -> None:
    class Stuck(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            reached.set()
            go_on.wait(20)
            return b""

    reached, go_on = threading.Event(), threading.Event()
    async with Stalled(ended=1) as server:
        with anyio.CancelScope() as scope:
            async with ClipClient(server.url) as clip, anyio.create_task_group() as group:
                group.start_soon(clip.embed, (Stuck() for _ in itertools.count()))
                await until(reached.is_set)
                # The answer of another model makes the client repeat the handshake, which the scope cancels.
                server.script(Reply(fingerprint=(9, 9)))
                with pytest.raises(ProtocolMismatch):
                    await clip.embed(b"a")
                group.start_soon(clip.model)
                await until(lambda: server.handshakes == 2)
                scope.cancel()
        go_on.set()
        # anyio cancels again at each await, including those that clean up.
        assert other_tasks() == set()


class Recorded:
    """Images from an iterator of each kind, whose closing takes a while, is counted, and may fail."""

    def __init__(self, count: int = 10_000, error: Exception | None = None) -> None:
        self.images = iter(images(count))
        self.error = error
        self.closed = 0

    def __iter__(self) -> Recorded:
        return self

    def __next__(self) -> bytes:
        return next(self.images)

    def close(self) -> None:
        time.sleep(0.1)
        self.closed += 1
        if self.error is not None:
            raise self.error

    def generator(self) -> Iterator[bytes]:
        try:
            yield from self.images
        finally:
            self.close()

    async def asynchronous(self) -> AsyncIterator[bytes]:
        try:
            for image in self.images:
                yield image
        finally:
            await asyncio.sleep(0.1)
            self.close()


KINDS = pytest.mark.parametrize(
    "kind", [iter, Recorded.generator, Recorded.asynchronous], ids=["object", "generator", "async"]
)


@KINDS
@pytest.mark.parametrize("how", ["end", "break", "cancel", "failure"])
async def test_a_source_is_closed_when_its_stream_ends(
    fake: FakeTriton, near: ClipClient, kind: Callable[..., Any], how: str
) -> None:
    """The source is closed before the call returns, not when the garbage is collected or the loop ends."""
    source = Recorded(3) if how == "end" else Recorded()
    await near.model()
    # anyio cancels again at each await, including those that clean up.
    with anyio.CancelScope() as scope, contextlib.suppress(ClipError):
        async with aclosing(near.embed_stream(kind(source))) as items:
            async for _ in items:
                if how == "failure":
                    fake.answer_always(Reply(status=grpc.StatusCode.INTERNAL))
                elif how == "cancel":
                    scope.cancel()
                elif how == "break":
                    break
    assert source.closed == 1
    assert other_tasks() == set()
    # And the client still works.
    fake.answer_always(Reply())
    assert (await near.embed(b"y")).errors == {}
    await until(lambda: not near.stats().images_in_flight)


@KINDS
async def test_a_source_that_fails_to_close_is_reported(
    near: ClipClient, kind: Callable[..., Any], reported: list[Any]
) -> None:
    """An error of closing the source does not hide the reason for leaving the stream."""
    error = ZeroDivisionError("of the user")

    async def leave() -> None:
        async with aclosing(near.embed_stream(kind(Recorded(error=error)))) as items:
            async for _ in items:
                raise KeyError

    with pytest.raises(KeyError):
        await leave()
    assert reported == [error]


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_source_that_is_left_while_it_makes_an_image(near: ClipClient, blocks: bool) -> None:
    """The source is closed before its stream ends, or when it returns if it blocks."""
    reached, left, go_on, closed = (threading.Event() for _ in range(4))

    def source() -> Iterator[bytes]:
        try:
            yield b"0"
            reached.set()
            left.wait()
            go_on.wait(20 if blocks else 0.05)
            yield b"1"
        finally:
            time.sleep(0.2)
            closed.set()

    async with aclosing(near.embed_stream(source())) as items:
        await anext(items)
        await until(reached.is_set)
        left.set()
        await items.aclose()
        assert closed.is_set() != blocks
        go_on.set()
        await until(closed.is_set)


@pytest.mark.parametrize("reply", [LOST, NEVER], ids=["in back-off", "in flight"])
async def test_closing_a_client_with_many_images_closes_its_connections(reply: Reply, reported: list[Any]) -> None:
    """Each image that fails frees memory for the next, which fails at once as well."""
    server = scripted(then=reply, max_batch_size=1)
    config = ClientConfig(transfer="original", max_request_bytes=80)
    async with InMemoryClient({"localhost": server}, config=config) as clip:
        call = asyncio.create_task(clip.embed([bytes(8)] * 5000))
        await until(lambda: server.requests)
        await until(lambda: clip.stats().images_in_flight == (0 if reply is LOST else 16))
    with pytest.raises(Unavailable, match="closed"):
        await call
    assert [channel.closed for channel in clip.transports.channels["localhost"]] == [True]
    assert reported == []


async def test_cancelling_embed_cancels_its_request_on_the_server(server: FakeTriton) -> None:
    # The request's own deadline would end it on the server, too, so it is far beyond what this test waits for.
    async with ClipClient(server.url, timeout_s=3600) as clip:
        server.script(NEVER)
        task = asyncio.create_task(clip.embed(b"a"))
        await until(lambda: server.in_flight)
        assert other_tasks() == set(), "the call sends its only request itself"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(until(lambda: not server.in_flight), 20)
        assert other_tasks() == set()
        assert clip.stats().images_in_flight == 0


@pytest.mark.parametrize("taken", [1, 2], ids=["with a result at hand", "while its source waits"])
async def test_closing_a_client_ends_its_streams(fake: FakeTriton, taken: int) -> None:
    async with InMemoryClient({"localhost": fake}) as clip:
        items = clip.embed_stream(paced([b"a", b"b"], 0, ends=False), ordered=False)
        for _ in range(taken):
            await anext(items)
        rest = asyncio.create_task(anext(items)) if taken == 2 else None
        await until(lambda: fake.images_embedded == 2)
    with pytest.raises(Unavailable, match="closed"):
        await asyncio.wait_for(rest or anext(items), 20)
    assert other_tasks() == set()


async def test_a_client_that_is_closed_just_after_its_handshake(fake: FakeTriton) -> None:
    async with InMemoryClient({"localhost": fake}) as clip:
        call = asyncio.create_task(clip.embed(paced([], ends=False)))
        while "model=" not in repr(clip):  # noqa: ASYNC110 - at that moment, before the call goes on
            await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="closed"):
        await asyncio.wait_for(call, 20)

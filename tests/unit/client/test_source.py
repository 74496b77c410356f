"""Taking images from an iterable: how many ahead, in which thread, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from clip_client._pipeline.source import open_source
from tests.fixtures.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


def nothing() -> None:
    """Do nothing about an arrival."""


def names(count: int) -> Iterator[bytes]:
    return (b"%d" % number for number in range(count))


@contextmanager
def blocked() -> Iterator[Iterator[bytes]]:
    """An iterable that blocks in its thread until the end of the context."""
    release = threading.Event()

    def block() -> Iterator[bytes]:
        yield b"first"
        release.wait(60)

    try:
        yield block()
    finally:
        release.set()


def test_a_list_is_taken_up_to_max_ahead() -> None:
    source = open_source(list(names(5)), max_ahead=3, on_arrival=nothing)
    assert source.take() == list(names(3))
    assert source.take() == []
    source.delivered()
    assert source.take() == [b"3"]
    assert not source.exhausted
    source.delivered()
    source.delivered()
    assert source.take() == [b"4"]
    assert source.exhausted


async def test_a_blocking_generator_does_not_occupy_a_shared_thread() -> None:
    limiter = anyio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    arrived = asyncio.Event()
    with blocked() as images:
        source = open_source(images, max_ahead=3, on_arrival=arrived.set)
        with anyio.fail_after(10):
            await arrived.wait()
            assert await anyio.to_thread.run_sync(lambda: "there is one") == "there is one"
        await source.aclose()


async def test_closing_does_not_wait_for_a_generator_that_blocks() -> None:
    arrived = asyncio.Event()
    with blocked() as images:
        source = open_source(images, max_ahead=3, on_arrival=arrived.set)
        with anyio.fail_after(10):
            await arrived.wait()
            await source.aclose()
        assert source.take() == []


async def test_a_burst_is_announced_once() -> None:
    go_on, done = threading.Event(), threading.Event()
    arrivals = 0

    def count() -> None:
        nonlocal arrivals
        arrivals += 1

    def burst() -> Iterator[bytes]:
        yield b"first"
        go_on.wait(10)
        yield from names(50)
        done.set()

    source = open_source(burst(), max_ahead=100, on_arrival=count)
    await until(lambda: arrivals)
    go_on.set()
    assert done.wait(10)  # nothing else runs in the loop meanwhile
    taken: list[object] = []

    def all_taken() -> bool:
        taken.extend(source.take())
        return source.exhausted

    await until(all_taken)
    assert taken == [b"first", *names(50)]
    await asyncio.sleep(0.01)  # whatever else was announced arrives now
    assert arrivals <= 3, "the first, the burst, and perhaps the end"
    await source.aclose()


async def test_an_async_iterator_that_is_closed_announces_nothing_more() -> None:
    announced = 0

    def count() -> None:
        nonlocal announced
        announced += 1

    async def images() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    source = open_source(images(), max_ahead=3, on_arrival=count)
    await until(lambda: announced)
    await source.aclose()
    assert (announced, source.error, source.take()) == (1, None, [])

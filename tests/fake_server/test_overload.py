"""More offered than a server can do: it keeps working for callers who still wait, and recovers when the load falls."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import pytest

from clip_client import ClipClient, DeadlineExceeded, Overloaded
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.networks import InMemoryClient
from tests.fixtures.simulated_time import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

CAPACITY = 200.0
"""Images per second of the fake server, which serves one request at a time, even for clients that have left."""
TIMEOUT_S = 1.0


def test_four_clients_at_many_times_the_capacity() -> None:
    """In simulated time, so that neither the server's nor the callers' speed depends on this machine."""
    simulate(_four_clients_at_many_times_the_capacity())


async def _four_clients_at_many_times_the_capacity() -> None:
    server = FakeTriton(seconds_per_image=1 / CAPACITY)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        clients = [await stack.enter_async_context(InMemoryClient({"localhost": server})) for _ in range(4)]
        await asyncio.gather(*(clip.model() for clip in clients))
        good = shed = late = 0

        async def one(clip: ClipClient) -> None:
            nonlocal good, shed, late
            try:
                await clip.embed(b"x", timeout_s=TIMEOUT_S)
            except Overloaded:
                shed += 1
            except DeadlineExceeded:
                late += 1
            else:
                good += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(80):
                for clip in clients:
                    for _ in range(12):
                        tasks.start_soon(one, clip)
                await asyncio.sleep(0.04)
        # Nearly all of the server's work was for callers that still waited.
        assert good + shed + late == 80 * 4 * 12
        assert good >= 0.8 * server.images_worked_on
        assert shed > 0
        assert max(server.limit for clip in clients for server in clip.stats().servers) < 200

        # After the load, the next image is embedded within its time, by every client.
        for clip in clients:
            assert (await clip.embed(b"y", timeout_s=TIMEOUT_S)).errors == {}


async def _one_call(clip: ClipClient) -> None:
    await clip.embed(b"a", timeout_s=5)


async def _one_stream(clip: ClipClient) -> None:
    async for _ in clip.embed_stream([b"a"]):
        pass


@pytest.mark.parametrize("work", [_one_call, _one_stream])
def test_a_deadline_that_passes_is_a_sign_of_load(work: Callable[[ClipClient], Coroutine[Any, Any, None]]) -> None:
    """Both the call's own deadline and the image's, which is sent with the request."""

    async def run() -> None:
        server = FakeTriton()
        server.answer_always(Reply(delay_s=float("inf")))
        async with InMemoryClient({"localhost": server}, timeout_s=5) as clip:
            await clip.model()
            assert clip.stats().servers[0].limit == 16
            with pytest.raises(DeadlineExceeded):
                await work(clip)
            await asyncio.sleep(0.1)
            assert clip.stats().servers[0].limit == 8
            assert clip.stats().servers[0].images_in_flight == 0

    simulate(run())

"""Ten times what a real server can do, for five seconds, from two clients: nothing is lost, and all recover."""

import asyncio
import itertools
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import psutil
import pytest

from benchmarks.fixtures.null_repository import write_null_repository
from benchmarks.fixtures.server import serving
from benchmarks.load.loops import open_loop
from clip_client import ClipClient, DeadlineExceeded, Overloaded
from tests.fixtures.waiting import wait_until
from tests.live.processes import health

pytestmark = pytest.mark.long

CAPACITY: Final = 40.0
LOUD_S: Final = 5.0
RECOVERY_S: Final = 120.0
"""Long enough for the slowest machine; here it takes about three seconds."""
IMAGE: Final = os.urandom(10_000)
"""The size of a thumbnail; a null model does not read it."""


async def offer(client: ClipClient, rate: float, seconds: float) -> list[tuple[str, float, float]]:
    """Start ``rate`` calls a second, and wait for the last; return outcome, start and end of each in seconds."""
    start = time.monotonic()
    calls = []

    async def call(due_s: float) -> None:
        outcome = "good"
        try:
            await client.embed(IMAGE, timeout_s=2)
        except (Overloaded, DeadlineExceeded) as error:  # any other ends the test
            outcome = "Overloaded" if isinstance(error, Overloaded) else "DeadlineExceeded"
        calls.append((outcome, due_s, time.monotonic() - start))

    await open_loop(call, itertools.repeat(1 / rate), seconds=seconds, limit=sys.maxsize)
    return calls


async def served_again(client: ClipClient) -> None:
    """Offer a tenth of what the server can do until each call of a second is answered."""
    deadline = time.monotonic() + RECOVERY_S
    while {outcome for outcome, _, _ in await offer(client, 0.1 * CAPACITY, seconds=1)} != {"good"}:
        assert time.monotonic() < deadline, "the client does not recover"


async def test_more_than_the_server_can_do(tmp_path: Path) -> None:
    repository = write_null_repository(tmp_path / "models", seconds_per_image=1 / CAPACITY)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(serving(repository, health=True))
        processes = psutil.Process(server.process.pid).children(recursive=True)
        clients = [await stack.enter_async_context(ClipClient(server.grpc_url, transfer="original")) for _ in range(2)]
        noise = [asyncio.create_task(offer(client, 5 * CAPACITY, LOUD_S)) for client in clients]
        await asyncio.sleep(LOUD_S)  # calls of the noise are still in flight when it ends
        await asyncio.gather(*map(served_again, clients))
        loud = [call for task in noise for call in await task]
        assert "Overloaded" in {outcome for outcome, _, _ in loud}
        # Without a limit of the clients next to nothing comes back in time. tests/fake_server/test_deadlines.py tests
        # in simulated time how much does with it, and the recovery.
        assert sum(outcome == "good" and ended <= LOUD_S for outcome, _, ended in loud) > 0.1 * CAPACITY * LOUD_S
        # What the supervisor found amid the noise is true until it looks again.
        await asyncio.to_thread(wait_until, lambda: health(server)[1]["status"] == "ready", "the server recovers")
        assert psutil.Process(server.process.pid).children(recursive=True) == processes

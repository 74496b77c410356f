"""A client in a process of its own that offers load; see ``harness.worker``."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.load.loops import open_loop
from clip_client import ClipClient, DeadlineExceeded, Overloaded

IMAGE: Final = os.urandom(10_000)
"""The size of a thumbnail; a null model does not read it."""
TIMEOUT_S: Final = 2.0


async def offer(call: Callable[[], Awaitable[str]], rate: float, seconds: float) -> dict[str, Any]:
    """Start ``rate`` calls a second for ``seconds`` and wait for the last; return their outcomes.

    ``good_per_second`` counts the good answers by the second in which the call started. ``good_rate`` counts only those
    that arrived before the end of ``seconds``.
    """
    loop = asyncio.get_running_loop()
    calls: list[tuple[str, float, float]] = []
    """Outcome, start and duration in seconds."""

    async def counted(due_s: float) -> None:
        began = loop.time()
        calls.append((await call(), due_s, loop.time() - began))

    await open_loop(counted, itertools.repeat(1 / rate), seconds=seconds, limit=sys.maxsize)
    good = [(began_s, took_s) for outcome, began_s, took_s in calls if outcome == "good"]
    started = Counter(int(began_s) for began_s, _ in good)
    return {
        "seconds": seconds,
        "offered_rate": len(calls) / seconds,
        "good_rate": sum(began_s + took_s <= seconds for began_s, took_s in good) / seconds,
        "outcomes": dict(Counter(outcome for outcome, _, _ in calls)),
        "good_per_second": [started[second] for second in range(math.ceil(seconds))],
    }


@asynccontextmanager
async def client(url: str) -> AsyncIterator[tuple[Any, Callable[[Any], Awaitable[dict[str, Any]]]]]:
    """Connect; an order is a list of [rate, seconds], open loops of ``rate`` calls a second.

    Each loop starts on time, even if calls of the previous one are in flight.
    """
    async with ClipClient(url, transfer="original") as clip:

        async def call() -> str:
            try:
                await clip.embed(IMAGE, timeout_s=TIMEOUT_S)
            except (Overloaded, DeadlineExceeded) as error:
                return type(error).__name__
            return "good"

        async def carry_out(phases: Sequence[tuple[float, float]]) -> dict[str, Any]:
            running = []
            for rate, seconds in phases:
                running.append(asyncio.create_task(offer(call, rate, seconds)))
                await asyncio.sleep(seconds)
            return {"phases": [await phase for phase in running]}

        yield (await clip.model()).id, carry_out

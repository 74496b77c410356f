"""One client process that offers load: ``python -m tests.live.benchmarks.offered_load URL``; see ``harness.worker``.

Orders are ``{"phases": [[rate, seconds], ...]}``: an open loop, which starts ``rate`` calls a second whether or not
earlier ones were answered.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from benchmarks.harness.worker import serve_orders
from benchmarks.load.loops import open_loop
from clip_client import ClipClient, DeadlineExceeded, Overloaded

IMAGE: Final = os.urandom(10_000)
"""The size of a thumbnail; a null model does not read it."""
TIMEOUT_S: Final = 2.0


async def offer(call: Callable[[], Awaitable[str]], rate: float, seconds: float) -> dict[str, Any]:
    """Start ``rate`` calls a second for ``seconds`` and wait for the last; return their outcomes as JSON.

    ``good_per_second`` counts the good answers by the
    second in which the call started. ``good_rate`` counts only those that arrived before the end of ``seconds``.
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


async def phases(clip: ClipClient, wanted: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """One open loop after the other; each starts on time, even if calls of the previous one are in flight."""

    async def call() -> str:
        try:
            await clip.embed(IMAGE, timeout_s=TIMEOUT_S)
        except (Overloaded, DeadlineExceeded) as error:
            return type(error).__name__
        return "good"

    running = []
    for rate, seconds in wanted:
        running.append(asyncio.create_task(offer(call, rate, seconds)))
        await asyncio.sleep(seconds)
    return {"phases": [await phase for phase in running]}


async def main(url: str) -> None:
    """Answer orders until the input ends."""
    async with ClipClient(url, transfer="original") as clip:

        async def carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
            return await phases(clip, order["phases"])

        await clip.model()
        await serve_orders({}, carry_out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    asyncio.run(main(parser.parse_args().url))

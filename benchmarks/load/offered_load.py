"""One client process that offers load: ``python -m benchmarks.load.offered_load URL``; see ``harness.worker``.

Orders are ``{"callers": n, "seconds": s}``, a closed loop; ``{"phases": [[rate, seconds], ...]}``, an open loop, which
starts ``rate`` calls a second whether or not earlier ones were answered; and with ``"unlimited": true`` the open loop
of plain tritonclient, which has neither a limit nor a deadline.
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

import numpy as np
import tritonclient.grpc.aio as tritonclient
from tritonclient.utils import InferenceServerException

from benchmarks.harness.rounds import percentiles
from benchmarks.harness.worker import serve_orders
from benchmarks.load.loops import closed_loop, open_loop
from clip_client import ClipClient, DeadlineExceeded, Overloaded

IMAGE: Final = os.urandom(10_000)
"""The size of a thumbnail; a null model does not read it."""
TIMEOUT_S: Final = 2.0


async def offer(call: Callable[[], Awaitable[str]], rate: float, seconds: float) -> dict[str, Any]:
    """Start ``rate`` calls a second for ``seconds`` and wait for the last; return their outcomes as JSON.

    ``latest_ms`` is the most by which a call exceeded its deadline. ``good_per_second`` counts the good answers by the
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
        "wanted_rate": rate,
        "offered_rate": len(calls) / seconds,
        "good_rate": sum(began_s + took_s <= seconds for began_s, took_s in good) / seconds,
        "outcomes": dict(Counter(outcome for outcome, _, _ in calls)),
        "latest_ms": max([0.0, *(1e3 * (took_s - TIMEOUT_S) for _, _, took_s in calls)]),
        "latency_ms": percentiles([1e3 * took_s for _, took_s in good]) if good else None,
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
    reports = [await phase for phase in running]
    (server,) = clip.stats().servers
    return {"phases": reports, "limit": server.limit, "latency_s": server.latency_s}


async def unlimited(url: str, rate: float, seconds: float) -> dict[str, Any]:
    """Send without waiting for answers; a second after the end, close the connection, whatever is missing."""
    image = tritonclient.InferInput("image", [1, 1], "BYTES")
    image.set_data_from_numpy(np.array([[IMAGE]], dtype=object))

    async with tritonclient.InferenceServerClient(url) as client:

        async def call() -> str:
            try:
                await client.infer("clip_image", [image])
            except InferenceServerException as error:
                return str(error.status())
            return "good"

        load = asyncio.create_task(offer(call, rate, seconds))
        await asyncio.wait({load}, timeout=seconds + 1)
        if load.done():
            return load.result()
        load.cancel()
        await asyncio.wait({load})
        return {"wanted_rate": rate, "hung_up": True}


async def main(url: str) -> None:
    """Answer orders until the input ends."""
    async with ClipClient(url, transfer="original") as clip:

        async def carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
            if "callers" in order:
                load = closed_loop(lambda _: clip.embed(IMAGE), callers=order["callers"], seconds=order["seconds"])
                return {"rate": (await load).rate}
            if order.get("unlimited"):
                return await unlimited(url, *order["phases"][0])
            return await phases(clip, order["phases"])

        await clip.model()
        await serve_orders({}, carry_out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    asyncio.run(main(parser.parse_args().url))

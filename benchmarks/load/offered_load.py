"""One client process that offers load: ``python -m benchmarks.load.offered_load URL``; see ``harness.worker``.

Orders are ``{"callers": n, "seconds": s}``, a closed loop; ``{"phases": [[rate, seconds], ...]}``, an open loop, which
starts ``rate`` calls a second whether or not earlier ones were answered; and with ``"unlimited": true`` the open loop
of plain tritonclient, which has neither a limit nor a deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
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


class Phase:
    """The outcomes of the calls that started in one part of an open loop."""

    def __init__(self, rate: float, seconds: float) -> None:
        self.rate, self.seconds = rate, seconds
        self.outcomes: Counter[str] = Counter()
        self.latencies_ms: list[float] = []
        self.latest_ms = 0.0
        """The most by which a call exceeded its deadline."""
        self.good_in_time = 0
        """Good answers that arrived before the end of the phase: only these count as goodput of its seconds."""
        self.good_per_second = [0] * int(seconds)
        """By the second in which the call started."""

    def add(self, outcome: str, began_s: float, took_s: float) -> None:
        """Count one call that started ``began_s`` after the phase."""
        self.outcomes[outcome] += 1
        self.latest_ms = max(self.latest_ms, 1e3 * (took_s - TIMEOUT_S))
        if outcome == "good":
            self.latencies_ms.append(1e3 * took_s)
            self.good_in_time += began_s + took_s <= self.seconds
            self.good_per_second[min(int(began_s), len(self.good_per_second) - 1)] += 1

    def report(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "seconds": self.seconds,
            "wanted_rate": self.rate,
            "offered_rate": sum(self.outcomes.values()) / self.seconds,
            "good_rate": self.good_in_time / self.seconds,
            "outcomes": dict(self.outcomes),
            "latest_ms": self.latest_ms,
            "latency_ms": percentiles(self.latencies_ms) if self.latencies_ms else None,
            "good_per_second": self.good_per_second,
        }


async def offer(call: Callable[[], Awaitable[str]], rate: float, seconds: float) -> Phase:
    """Start ``rate`` calls a second for ``seconds``, then wait for the last of them."""
    loop = asyncio.get_running_loop()
    phase = Phase(rate, seconds)

    async def counted(due_s: float) -> None:
        began = loop.time()
        phase.add(await call(), due_s, loop.time() - began)

    await open_loop(counted, itertools.repeat(1 / rate), seconds=seconds, limit=sys.maxsize)
    return phase


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
    reports = [(await phase).report() for phase in running]
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
            return load.result().report()
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

"""The load on a server, from a process of its own: ``python -m benchmarks load TARGET --photos DIR --url U``.

A worker (see ``harness.Worker``) whose orders are ``{"seconds": s, "concurrency": n}``, a closed loop in which n
callers each send one request after another, or ``{"seconds": s, "rate": r}``, an open loop in which requests start at
random moments, r a second on average, whether or not earlier ones have come back. In an open loop a latency counts from
the moment at which the request *should* have started, so a generator that falls behind does not flatter the server.

In a closed loop the latencies are those of a server that is already full: each caller's first request meets a queue
that is still filling, and a server that needs longer for one turn of all callers than the loop lasts would be judged by
nothing else. The rate counts all requests.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.harness.rounds import percentiles
from benchmarks.load.adapters import TARGETS

if TYPE_CHECKING:
    from benchmarks.load.adapters import Embed

OPEN_LOOP_LIMIT: Final = 4096
"""Requests under way at most in an open loop; beyond them a request is counted as dropped, not sent."""
LEAST_TURNS: Final = 2
"""Requests of each caller of a closed loop at least, however long they take: one fills the queue, one counts."""


async def closed_loop(embed: Embed, images: int, *, seconds: float, concurrency: int, rows: int) -> dict[str, Any]:
    """``concurrency`` callers, each with one request of ``rows`` images at a time, twice each at least."""
    latencies_ms: list[float] = []
    first_ms: list[float] = []
    start = time.perf_counter()
    deadline = start + seconds
    turns = itertools.count()

    async def caller() -> None:
        for turn in itertools.count():
            then = time.perf_counter()
            if then >= deadline and turn >= LEAST_TURNS:
                return
            await embed(_rows(next(turns), rows, images))
            (latencies_ms if turn else first_ms).append(1e3 * (time.perf_counter() - then))

    await asyncio.gather(*(caller() for _ in range(concurrency)))
    seconds = time.perf_counter() - start
    summary = _summary(latencies_ms, rows * (len(first_ms) + len(latencies_ms)), seconds)
    # Of all requests, as a server's own counters are: what is compared with these must not leave any out.
    return {**summary, "mean_ms": statistics.fmean([*first_ms, *latencies_ms])}


async def open_loop(
    embed: Embed, images: int, *, seconds: float, rate: float, rows: int, seed: int = 1
) -> dict[str, Any]:
    """Requests at random moments, ``rate`` images a second on average, from a generator with this ``seed``."""
    moments = random.Random(seed)
    latencies_ms: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    dropped = 0
    start = time.perf_counter()
    due = start

    async def request(turn: int, planned: float) -> None:
        await embed(_rows(turn, rows, images))
        latencies_ms.append(1e3 * (time.perf_counter() - planned))

    for turn in itertools.count():
        due += moments.expovariate(rate / rows)
        if due > start + seconds:
            break
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if len(tasks) >= OPEN_LOOP_LIMIT:
            dropped += 1
            continue
        task = asyncio.create_task(request(turn, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    summary = _summary(latencies_ms, rows * len(latencies_ms), time.perf_counter() - start)
    return {**summary, "offered": rate, "dropped": dropped}


def _rows(turn: int, rows: int, images: int) -> list[int]:
    return [(turn * rows + offset) % images for offset in range(rows)]


def _summary(latencies_ms: list[float], images: int, seconds: float) -> dict[str, Any]:
    return {"images": images, "rate": images / seconds, "latency_ms": percentiles(latencies_ms)}


async def work(target: str, url: str, files: list[bytes], repository: Path, *, rows: int, concurrency: int) -> None:
    """Answer each order; warm up and send all vectors first."""
    async with TARGETS[target](url, files, repository) as embed:
        vectors = [await embed(list(chunk)) for chunk in _chunks(len(files), rows)]
        print(json.dumps({"ready": True, "vectors": np.concatenate(vectors).tolist()}), flush=True)
        # The pipe is read on a thread: connections must be served between orders, too.
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            count = order.get("rows", rows)
            if "rate" in order:
                moments = {"rate": order["rate"], "seed": order.get("seed", 1)}
                result = await open_loop(embed, len(files), seconds=order["seconds"], rows=count, **moments)
            else:
                callers = order.get("concurrency", concurrency)
                result = await closed_loop(embed, len(files), seconds=order["seconds"], concurrency=callers, rows=count)
            print(json.dumps(result), flush=True)


def _chunks(count: int, rows: int) -> list[range]:
    return [range(first, min(first + rows, count)) for first in range(0, count, rows)]


def main() -> None:
    """Run one load generator as a worker."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--photos", type=Path, required=True, help="folder of JPEG files")
    parser.add_argument("--url", required=True)
    parser.add_argument(
        "--repository", type=Path, default=Path("triton_models"), help="whose preprocessing a client needs"
    )
    parser.add_argument("--concurrency", type=int, default=1, help="of a closed loop, unless an order says otherwise")
    parser.add_argument("--rows", type=int, default=1, help="images to a request, unless an order says otherwise")
    arguments = parser.parse_args()
    files = [path.read_bytes() for path in sorted(arguments.photos.iterdir())]
    asyncio.run(
        work(
            arguments.target,
            arguments.url,
            files,
            arguments.repository,
            rows=arguments.rows,
            concurrency=arguments.concurrency,
        )
    )


if __name__ == "__main__":
    main()

"""Load on a server from a process of its own: ``python -m benchmarks.load.worker ADAPTER --photos DIR --url U``.

A worker (see ``harness.worker``). Its orders are ``{"seconds": s, "concurrency": n}``, a closed loop of n callers, and
``{"seconds": s, "rate": r}``, an open loop of r images a second on average. See ``loops`` for both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.load.adapters import ADAPTERS
from benchmarks.load.loops import closed_loop, open_loop, poisson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.load.adapters import Embed


async def work(adapter: str, url: str, files: list[bytes], repository: Path, *, rows: int, concurrency: int) -> None:
    """Answer each order; warm up and send all vectors first."""
    async with ADAPTERS[adapter](url, files, repository) as embed:
        count = len(files)
        vectors = [await embed(list(range(first, min(first + rows, count)))) for first in range(0, count, rows)]
        print(json.dumps({"ready": True, "vectors": np.concatenate(vectors).tolist()}), flush=True)
        # Another thread reads the pipe, because connections need the event loop between orders too.
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = {"rows": rows, "concurrency": concurrency, **json.loads(line)}
            print(json.dumps(await carry_out(embed, count, order)), flush=True)


async def carry_out(embed: Embed, count: int, order: Mapping[str, Any]) -> dict[str, Any]:
    """Send ``order["rows"]`` of the ``count`` images in each request, as the order says."""
    rows, seconds = order["rows"], order["seconds"]
    turns = itertools.count()

    async def call(_: float) -> None:
        first = next(turns) * rows
        await embed([(first + row) % count for row in range(rows)])

    if "rate" in order:
        gaps = poisson(order["rate"] / rows, order.get("seed", 1))
        answers = await open_loop(call, gaps, seconds=seconds)
        return {**answers.summary(rows), "offered": order["rate"], "dropped": answers.dropped}
    cpu = time.process_time()
    answers = await closed_loop(
        call, callers=order["concurrency"], seconds=seconds, warm_up_s=order.get("warm_up_s", 0.0)
    )
    summary = answers.summary(rows)
    return {**summary, "cpu_us_per_image": 1e6 * (time.process_time() - cpu) / summary["images"]}


def main() -> None:
    """Run one load generator as a worker."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("adapter", choices=ADAPTERS)
    parser.add_argument("--photos", type=Path, required=True, help="folder of JPEG files")
    parser.add_argument("--url", required=True)
    parser.add_argument(
        "--repository", type=Path, default=Path("triton_models"), help="whose preprocessing a client needs"
    )
    parser.add_argument("--concurrency", type=int, default=1, help="of a closed loop, unless an order says otherwise")
    parser.add_argument("--rows", type=int, default=1, help="images to a request, unless an order says otherwise")
    arguments = parser.parse_args()
    files = [path.read_bytes() for path in sorted(arguments.photos.iterdir())]
    sizes = {"rows": arguments.rows, "concurrency": arguments.concurrency}
    asyncio.run(work(arguments.adapter, arguments.url, files, arguments.repository, **sizes))


if __name__ == "__main__":
    main()

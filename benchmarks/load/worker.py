"""Load on a server from a process of its own: ``python -m benchmarks.load.worker ADAPTER --photos DIR --url U``.

A worker (see ``harness.worker``). Its orders are ``{"seconds": s, "concurrency": n}``, a closed loop of n callers, and
``{"seconds": s, "rate": r}``, an open loop of r images a second on average. ``rows`` is the number of images in a
request (default: 1), or in a batch of a model in this process. See ``loops`` for both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.experiment import MODEL, REPOSITORY
from benchmarks.harness.worker import serve_orders
from benchmarks.load.adapters import ADAPTERS, Embed
from benchmarks.load.loops import closed_loop, open_loop, poisson
from benchmarks.peers.in_process import Target


async def work(adapter: str, target: Target) -> None:
    """Answer each order; warm up and send all vectors first."""
    count = len(target.files)
    async with ADAPTERS[adapter](target) as embed:
        vectors = np.concatenate([await embed([number]) for number in range(count)])
        await serve_orders({"vectors": vectors.tolist()}, lambda order: carry_out(embed, count, order))


async def carry_out(embed: Embed, count: int, order: Mapping[str, Any]) -> dict[str, Any]:
    """Send the ``count`` images in turn, as the order says."""
    rows, seconds = order.get("rows", 1), order["seconds"]
    starts = itertools.count(step=rows)

    async def call(_: float) -> None:
        first = next(starts)
        await embed([(first + row) % count for row in range(rows)])

    if "rate" in order:
        gaps = poisson(order["rate"] / rows, order.get("seed", 1))
        answers = await open_loop(call, gaps, seconds=seconds)
        return {**answers.summary(rows), "offered": order["rate"], "dropped": answers.dropped}
    answers = await closed_loop(call, callers=order.get("concurrency", 1), seconds=seconds)
    return answers.summary(rows)


def main() -> None:
    """Run one load generator as a worker."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("adapter", choices=ADAPTERS)
    parser.add_argument("--photos", type=Path, required=True, help="folder of JPEG files, or of texts")
    parser.add_argument("--url", default="")
    for shared in (REPOSITORY, MODEL):
        shared(parser)
    arguments = parser.parse_args()
    files = [path.read_bytes() for path in sorted(arguments.photos.iterdir())]
    target = Target(url=arguments.url, files=files, repository=arguments.repository, model=arguments.model)
    asyncio.run(work(arguments.adapter, target))


if __name__ == "__main__":
    main()

"""Load on a service, or a model itself, from a process of its own.

Orders are ``{"seconds": s, "concurrency": n}``, a closed loop of n callers, and ``{"seconds": s, "rate": r}``, an open
loop of r images a second on average. ``rows`` is the number of images in a request (default: 1), or in a batch of a
model in this process. See ``loops`` for both.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.worker import Worker
from benchmarks.load.loops import closed_loop, open_loop, poisson
from benchmarks.peers.in_process import Target

if TYPE_CHECKING:
    from benchmarks.harness.experiment import Run
    from benchmarks.load.adapters import Adapter


def start_load(run: Run, adapter: Adapter, url: str = "", *, name: str = "load") -> Worker:
    """Start a load that sends the run's photos to ``url``, or embeds them; it is ready with the vectors of all."""
    model = getattr(run.options, "model", None)
    target = Target(url=url, files=run.files, repository=run.options.repository, model=model)
    return run.stack.enter_context(Worker(name, load, adapter, target))


@asynccontextmanager
async def load(
    adapter: Adapter, target: Target
) -> AsyncIterator[tuple[Any, Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]]]:
    """Warm up, and give the vectors of all files and what carries out an order; runs in the worker."""
    count = len(target.files)
    async with adapter(target) as embed:

        async def carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
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

        yield np.concatenate([await embed([number]) for number in range(count)]), carry_out

"""Load on a service, or a model itself, from a process of its own, with the counters of a Triton.

Orders are ``{"seconds": s, "concurrency": n}``, a closed loop of n callers, and ``{"seconds": s, "rate": r}``, an open
loop of r images a second on average. ``rows`` is the number of images in a request (default: 1), or in a batch of a
model in this process. See ``loops`` for both.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.meters import gpu_meter
from benchmarks.harness.worker import Worker
from benchmarks.load.adapters import Target, grpc_connection
from benchmarks.load.loops import closed_loop, open_loop, poisson

if TYPE_CHECKING:
    from benchmarks.harness.experiment import Run
    from benchmarks.load.adapters import Adapter
    from clip_client._transports.triton_statistics import ModelStatistics


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


def statistics(url: str) -> Mapping[str, ModelStatistics]:
    """Model name -> counters of the Triton at this gRPC address."""

    async def ask() -> Mapping[str, ModelStatistics]:
        connection = grpc_connection(url)
        try:
            return await connection.statistics(timeout_s=30)
        finally:
            await connection.close()

    return asyncio.run(ask())


def measured(workers: Sequence[Worker], url: str, order: Mapping[str, Any]) -> dict[str, Any]:
    """Let the workers carry out ``order`` together; return their answer and what every model of the server counted.

    Several workers share the ``concurrency`` of a closed loop. With an NVIDIA card the answer also has its power,
    utilisation and memory (``gpu``).
    """
    before = statistics(url)
    with gpu_meter() as gpu:
        answer = workers[0].ask(order) if len(workers) == 1 else _together(workers, order)
    grown = {name: after.since(before.get(name)) for name, after in statistics(url).items()}
    models = {name: one.to_mapping() for name, one in grown.items() if one.requests}
    if joules := gpu.pop("joules", None):
        gpu["images_per_joule"] = answer["images"] / joules
    return {**answer, "models": models, "gpu": gpu}


def _together(workers: Sequence[Worker], order: Mapping[str, Any]) -> dict[str, Any]:
    """One closed loop by several processes; its latencies are those of the process that waited longest."""
    concurrency = order["concurrency"]
    shares = [concurrency // len(workers) + (number < concurrency % len(workers)) for number in range(len(workers))]
    active = [(worker, share) for worker, share in zip(workers, shares, strict=True) if share]
    with ThreadPoolExecutor(len(active)) as threads:
        start = time.perf_counter()
        answers = list(threads.map(lambda one: one[0].ask({**order, "concurrency": one[1]}), active))
        seconds = time.perf_counter() - start
    images = sum(answer["images"] for answer in answers)
    slowest = max(answers, key=lambda answer: float(answer["latency_ms"]["p50"]))
    return {**slowest, "images": images, "rate": images / seconds}

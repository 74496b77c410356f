"""Load on a service, or a model itself, from a process that measures on request, with the counters of a Triton.

Orders are ``{"seconds": s, "concurrency": n}``, a closed loop of n callers, and ``{"seconds": s, "rate": r}``, an open
loop of r images a second on average. ``rows`` is the number of images in a request (default: 1), or in a batch of a
model in this process. See ``loops`` for both.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.meters import SPAWN, gpu_meter
from benchmarks.load.adapters import Adapter, Embed, Target
from benchmarks.load.loops import closed_loop, open_loop, poisson
from benchmarks.load.triton_statistics import growth, statistics

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from typing import Self

    from benchmarks.harness.experiment import Run


class WorkerFailed(RuntimeError):
    """A worker process ended before it gave its result."""


class Worker:
    """A load in a process of its own. The constructor does not wait, so several workers start in parallel."""

    def __init__(self, name: str, adapter: Adapter, target: Target) -> None:
        self.name = name
        self._pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_work, args=(theirs, adapter, target), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def process_id(self) -> int:
        """Id of the process that measures."""
        assert self._process.pid is not None
        return self._process.pid

    @cached_property
    def ready(self) -> Any:
        """The vectors of all files, (N, D), which come when it is warm; this waits for them."""
        return self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.join()

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send one order and return its answer."""
        assert self.ready is not None
        self._pipe.send(order)
        answer: dict[str, Any] = self._receive()
        return answer

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise WorkerFailed(f"{self.name}: ended with exit code {self._process.exitcode}") from None


def _work(pipe: Connection, adapter: Adapter, target: Target) -> None:
    asyncio.run(_answer_orders(pipe, adapter, target))


async def _answer_orders(pipe: Connection, adapter: Adapter, target: Target) -> None:
    """Warm up, send the vectors of all files, and carry out one order after the other."""
    count = len(target.files)
    async with adapter(target) as embed:
        pipe.send(np.concatenate([await embed([number]) for number in range(count)]))
        while True:
            # Another thread reads the pipe, because connections need the event loop between orders too.
            order = await asyncio.to_thread(pipe.recv)
            pipe.send(await _carry_out(order, embed, count))


async def _carry_out(order: Mapping[str, Any], embed: Embed, count: int) -> dict[str, Any]:
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


def start_load(run: Run, adapter: Adapter, url: str = "", *, name: str = "load") -> Worker:
    """Start a load that sends the run's photos to ``url``, or embeds them; it is ready with the vectors of all."""
    model = getattr(run.options, "model", None)
    target = Target(url=url, files=run.files, repository=run.options.repository, model=model)
    return run.stack.enter_context(Worker(name, adapter, target))


def measured(workers: Sequence[Worker], url: str, order: Mapping[str, Any]) -> dict[str, Any]:
    """Let the workers carry out ``order`` together; return their answer and what every model of the server counted.

    Without a server ``url`` is empty. Several workers share the ``concurrency`` of a closed loop. With an NVIDIA card
    the answer also has its power, utilisation and memory (``gpu``).
    """
    counters = partial(statistics, url) if url else dict
    before = counters()
    with gpu_meter() as gpu:
        answer = workers[0].ask(order) if len(workers) == 1 else _together(workers, order)
    grown = {name: growth(before[name], after) for name, after in counters().items()}
    models = {name: one for name, one in grown.items() if one["requests"]}
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

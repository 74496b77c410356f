"""The server's own counters for a measurement, in addition to what its callers saw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.harness.meters import GpuMeter
from benchmarks.load.adapters import grpc_connection

if TYPE_CHECKING:
    from benchmarks.harness.worker import Worker
    from clip_client._transports.triton_statistics import ModelStatistics


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
    with GpuMeter.running() as meter:
        answer = workers[0].ask(order) if len(workers) == 1 else _together(workers, order)
    models = {}
    for name, after in statistics(url).items():
        grown = after.since(before.get(name))
        if grown.requests:
            models[name] = grown.to_mapping()
    return {**answer, "models": models, "gpu": meter.report(answer["images"])}


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

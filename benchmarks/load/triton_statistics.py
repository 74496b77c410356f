"""What a server's own counters say about a measurement, beside what its callers saw."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from clip_client._config import ClientConfig
from clip_client._transports.grpc import transport_factory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.harness.worker import Worker
    from clip_client._transports.triton_statistics import ModelStatistics


def statistics(url: str) -> dict[str, ModelStatistics]:
    """Model name -> counters of the Triton at this gRPC address."""

    async def ask() -> dict[str, ModelStatistics]:
        config = ClientConfig(urls=(url,))
        transport = transport_factory(config)(config.endpoints[0], None)
        try:
            return await transport.statistics(timeout_s=30)
        finally:
            await transport.close()

    return asyncio.run(ask())


def measured(worker: Worker, url: str, order: Mapping[str, Any]) -> dict[str, Any]:
    """Let the worker carry out ``order``; its answer, with what every model of the server counted meanwhile."""
    before = statistics(url)
    answer = worker.ask(order)
    models = {}
    for name, after in statistics(url).items():
        grown = after.since(before.get(name))
        if grown.requests:
            models[name] = {**grown.to_mapping(), "mean_ms": grown.mean_ms(), "share_batched": grown.share_batched}
    return {**answer, "models": models}

"""What ``GET /metrics`` shows."""

from __future__ import annotations

import os
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from clip_client.gateway.settings import MULTIPROCESS_VARIABLE

REQUESTS: Final = Counter("clip_gateway_requests", "Requests, by dialect and HTTP status", ("dialect", "status"))
SECONDS: Final = Histogram("clip_gateway_seconds", "Time of a request with its body, by dialect", ("dialect",))
ITEMS: Final = Counter("clip_gateway_items", "Images and texts, by outcome: ok, or the code of an error", ("outcome",))
HELD_BYTES: Final = Gauge(
    "clip_gateway_held_bytes", "Bytes of the bodies of requests that are being answered", multiprocess_mode="livesum"
)


def exposition() -> bytes:
    """Return the metrics in Prometheus's text format, summed over the worker processes."""
    registry = REGISTRY
    if MULTIPROCESS_VARIABLE in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)

"""OpenTelemetry spans around requests, if the program uses OpenTelemetry.

A program that traces has already imported the API package, so this module only looks whether it is loaded. Without an
SDK a span costs a microsecond and is dropped. No image, text, file name or token becomes an attribute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clip_client._endpoint import Endpoint
    from clip_client._model import Tower

Metadata = tuple[tuple[str, str], ...]


@contextmanager
def request_span(endpoint: Endpoint, *, tower: Tower, rows: int, request_id: str) -> Iterator[Metadata]:
    """Open a client span for one request; yield the headers that let the server's spans join it.

    If several calls share the request, the span joins the trace of the call whose image or text triggered it.

    An exception ends the span with its class and its message, which are this package's own.
    """
    if "opentelemetry.trace" not in sys.modules:
        yield ()
        return
    from opentelemetry import propagate, trace

    attributes: dict[str, str | int] = {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "server.address": endpoint.host,
        "server.port": endpoint.port,
        f"clip.{tower.value}s": rows,
        "clip.request_id": request_id,
    }
    tracer = trace.get_tracer("clip_client")
    with tracer.start_as_current_span("clip_client.infer", kind=trace.SpanKind.CLIENT, attributes=attributes):
        headers: dict[str, str] = {}
        propagate.inject(headers)
        yield tuple(headers.items())

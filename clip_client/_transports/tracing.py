"""OpenTelemetry spans around requests, where a program uses OpenTelemetry; nothing where it does not.

The API package is all that is looked for, and only among what is loaded already: a program that traces has loaded it.
Without an SDK behind it a span costs a microsecond and goes nowhere. No image, no name of a file and no token becomes
an attribute.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clip_client._endpoint import Endpoint

Metadata = tuple[tuple[str, str], ...]


@contextmanager
def request_span(endpoint: Endpoint, *, rows: int, request_id: str) -> Iterator[Metadata]:
    """A client span for one request; gives the headers that let the server's spans join it.

    Rows of several calls may travel together; the span then joins the trace of the call whose row had them sent.

    An exception ends the span with its class and its sentence, both of this package's own making.
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
        "clip.images": rows,
        "clip.request_id": request_id,
    }
    tracer = trace.get_tracer("clip_client")
    with tracer.start_as_current_span("clip_client.infer", kind=trace.SpanKind.CLIENT, attributes=attributes):
        headers: dict[str, str] = {}
        propagate.inject(headers)
        yield tuple(headers.items())

"""The health port: ``GET /healthz`` is 200 while images can be embedded, else 503; ``/metrics`` is for Prometheus."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any, Final

from preprocess_ensemble.errors import ReportedError

_REQUEST_S: Final = 5.0
_REQUEST_BYTES: Final = 8192

_MOST_CONNECTIONS: Final = 64
"""A probe takes milliseconds; more would use up the supervisor's file descriptors."""

_METRICS: Final = """\
# TYPE clip_serve_healthy gauge
clip_serve_healthy {healthy}
# TYPE clip_serve_restarts_total counter
clip_serve_restarts_total {restarts}"""


class Status(Enum):
    STARTING = "starting"  # the first start is not complete
    READY = "ready"
    OVERLOADED = "overloaded"  # the canary waits, but requests are being finished or computed
    DEGRADED = "degraded"  # the canary is right, but a full batch fails
    STUCK = "stuck"  # the canary waits, and nothing is being done
    FAILING = "failing"
    RESTARTING = "restarting"
    STOPPING = "stopping"


HEALTHY: Final = frozenset({Status.READY, Status.OVERLOADED})


def serve_health(
    hosts: Sequence[str], port: int, report: Callable[[], tuple[bool, Mapping[str, Any]]]
) -> AbstractAsyncContextManager[None]:
    """Answer on ``port`` with what ``report`` returns: whether it is healthy, and JSON. Raises ``ReportedError``."""
    return _serving(hosts, port, partial(_respond, report))


def serve_metrics(hosts: Sequence[str], port: int, url: Callable[[], str]) -> AbstractAsyncContextManager[None]:
    """Like :func:`serve_health`, but answer with what ``url`` names at the time of the request."""

    def read() -> bytes:
        try:
            with urllib.request.urlopen(url(), timeout=_REQUEST_S) as response:
                return _answer("200 OK", str(response.headers["Content-Type"]), response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: no server has been started
            return _answer("503 Service Unavailable", "text/plain", f"Triton does not answer: {error}\n".encode())

    return _serving(hosts, port, lambda _: asyncio.to_thread(read))


@asynccontextmanager
async def _serving(
    hosts: Sequence[str], port: int, respond: Callable[[bytes], Awaitable[bytes]]
) -> AsyncIterator[None]:
    connections: dict[asyncio.StreamWriter, None] = {}  # oldest first

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= _MOST_CONNECTIONS:
            (oldest := next(iter(connections))).transport.abort()
            del connections[oldest]
        connections[writer] = None
        with suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_S)
            writer.write(await respond(head))
            await asyncio.wait_for(writer.drain(), _REQUEST_S)
        connections.pop(writer, None)
        writer.close()

    try:
        server = await asyncio.start_server(answer, hosts, port, limit=_REQUEST_BYTES)
    except OSError as error:
        raise ReportedError(
            f"Port {port} cannot be opened ({os.strerror(error.errno or 0)}): stop the program that uses it, or choose "
            "another port."
        ) from None
    async with server:
        try:
            yield
        finally:
            for writer in connections:
                writer.transport.abort()


async def _respond(report: Callable[[], tuple[bool, Mapping[str, Any]]], head: bytes) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    healthy, found = report()
    status, kind = "200 OK", "application/json"
    if path not in (b"/healthz", b"/metrics"):
        status, text = "404 Not Found", json.dumps({"message": "use /healthz or /metrics"})
    elif method not in (b"GET", b"HEAD"):
        status, text = "405 Method Not Allowed", json.dumps({"message": "use GET"})
    elif path == b"/metrics":
        kind, text = "text/plain; version=0.0.4", _METRICS.format(healthy=int(healthy), restarts=found["restarts"])
    else:
        status, text = "200 OK" if healthy else "503 Service Unavailable", json.dumps(found)
    return _answer(status, kind, f"{text}\n".encode(), only_head=method == b"HEAD")


def _answer(status: str, kind: str, body: bytes, *, only_head: bool = False) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Cache-Control: no-store", f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "Connection: close", "", "")).encode() + (b"" if only_head else body)

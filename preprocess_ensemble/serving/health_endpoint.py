"""The health port. ``GET /healthz`` returns 200 while images can be embedded, otherwise 503, each with JSON details.

``GET /metrics`` returns the same for Prometheus, always with 200: ``clip_serve_healthy`` is 1 while images can be
embedded, else 0, and ``clip_serve_restarts_total`` counts the restarts of tritonserver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

_REQUEST_S: Final = 5.0
_REQUEST_BYTES: Final = 8192

_MOST_CONNECTIONS: Final = 64
"""Open at the same time. A probe needs one for a few milliseconds. More open connections would use up the file
descriptors that this program needs to supervise the server."""


_METRICS: Final = """\
# TYPE clip_serve_healthy gauge
clip_serve_healthy {healthy}
# TYPE clip_serve_restarts_total counter
clip_serve_restarts_total {restarts}
"""


@asynccontextmanager
async def serve_health(
    host: str, port: int, report: Callable[[], tuple[bool, Mapping[str, Any]]]
) -> AsyncIterator[None]:
    """Answer on ``host:port`` inside the block with what ``report`` returns: whether it is healthy, and the JSON.

    If too many connections are open, the oldest one is closed. Raises ``OSError`` if the port cannot be opened.
    """
    connections: dict[asyncio.StreamWriter, None] = {}  # oldest first

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= _MOST_CONNECTIONS:
            oldest = next(iter(connections))
            del connections[oldest]
            oldest.transport.abort()
        connections[writer] = None
        with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_S)
            writer.write(_response(head, report))
            await asyncio.wait_for(writer.drain(), _REQUEST_S)
        connections.pop(writer, None)
        writer.close()

    async with await asyncio.start_server(answer, host, port, limit=_REQUEST_BYTES):
        try:
            yield
        finally:
            for writer in connections:
                writer.transport.abort()


def _response(head: bytes, report: Callable[[], tuple[bool, Mapping[str, Any]]]) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    healthy, found = report()
    kind = "application/json"
    if path not in (b"/healthz", b"/metrics"):
        status, text = "404 Not Found", json.dumps({"message": "use /healthz or /metrics"}) + "\n"
    elif method not in (b"GET", b"HEAD"):
        status, text = "405 Method Not Allowed", json.dumps({"message": "use GET"}) + "\n"
    elif path == b"/metrics":
        status, kind = "200 OK", "text/plain; version=0.0.4"
        text = _METRICS.format(healthy=int(healthy), restarts=found["restarts"])
    else:
        status, text = "200 OK" if healthy else "503 Service Unavailable", json.dumps(found) + "\n"
    lines = (f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Cache-Control: no-store", f"Content-Length: {len(text)}")
    head_text = "\r\n".join((*lines, "Connection: close", "", ""))  # json.dumps writes ASCII only
    return (head_text + ("" if method == b"HEAD" else text)).encode()

"""``GET /healthz``: 200 while images are embedded, else 503, and in both cases JSON that says what was found."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

__all__ = ("serve_health",)

_REQUEST_S: Final = 5.0
_REQUEST_BYTES: Final = 8192


@asynccontextmanager
async def serve_health(
    host: str, port: int, report: Callable[[], tuple[bool, Mapping[str, Any]]]
) -> AsyncIterator[None]:
    """Answer ``GET /healthz`` on ``host:port`` inside the block with what ``report`` returns: healthy, and the JSON.

    Raises ``OSError`` if the port cannot be opened.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_S)
            writer.write(_response(head, report))
            await asyncio.wait_for(writer.drain(), _REQUEST_S)
        writer.close()

    async with await asyncio.start_server(answer, host, port, limit=_REQUEST_BYTES):
        yield


def _response(head: bytes, report: Callable[[], tuple[bool, Mapping[str, Any]]]) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    body: Mapping[str, Any]
    if path != b"/healthz":
        status, body = "404 Not Found", {"message": "ask for /healthz"}
    elif method not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", {"message": "use GET"}
    else:
        healthy, body = report()
        status = "200 OK" if healthy else "503 Service Unavailable"
    payload = json.dumps(body).encode() + b"\n"
    lines = (
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        "Cache-Control: no-store",
        f"Content-Length: {len(payload)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + (b"" if method == b"HEAD" else payload)

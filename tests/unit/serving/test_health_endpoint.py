"""The answers of the health port, and the connections that it closes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from clip_client.serving import health_endpoint
from clip_client.serving.health_endpoint import serve_health, serve_metrics
from tests.fixtures.simulated_time import simulate

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
READY = {"status": "ready", "model": "m@1", "restarts": 3}


class Endpoint:
    def __init__(self, port: int) -> None:
        self.healthy = True
        self.port = port

    def serving(self) -> AbstractAsyncContextManager[None]:
        return serve_health(["127.0.0.1"], self.port, lambda: (self.healthy, READY))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, request: bytes = GET) -> tuple[bytes, bytes]:
        """Everything that comes back until the connection is closed: the head and the rest."""
        reader, writer = await self.connect()
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return head, body


@pytest.fixture
async def endpoint(unused_tcp_port: int) -> AsyncIterator[Endpoint]:
    async with (endpoint := Endpoint(unused_tcp_port)).serving():
        yield endpoint


async def test_metrics_of_the_other_family_are_those_of_triton(
    endpoint: Endpoint, unused_tcp_port_factory: Callable[[], int]
) -> None:
    for source, status in ((endpoint.port, b"200 OK"), (unused_tcp_port_factory(), b"503 Service Unavailable")):
        port, url = unused_tcp_port_factory(), f"http://127.0.0.1:{source}/metrics"
        async with serve_metrics(["127.0.0.1"], port, partial(str, url)):
            head, body = await Endpoint(port).ask()
        assert head.startswith(b"HTTP/1.1 " + status)
        assert (b"clip_serve_healthy" in body) == (source == endpoint.port)


@pytest.mark.parametrize(
    ("request_line", "healthy", "status", "body"),
    [
        (b"GET /healthz", True, b"200 OK", json.dumps(READY)),
        (b"GET /healthz?probe=1", False, b"503 Service Unavailable", json.dumps(READY)),
        (b"GET /metrics", True, b"200 OK", "clip_serve_healthy 1 clip_serve_restarts_total 3"),
        (b"GET /metrics", False, b"200 OK", "clip_serve_healthy 0 clip_serve_restarts_total 3"),
        (b"POST /healthz", True, b"405 Method Not Allowed", '{"message": "use GET"}'),
        (b"DELETE /metrics", True, b"405 Method Not Allowed", '{"message": "use GET"}'),
        (b"POST /other", True, b"404 Not Found", '{"message": "use /healthz or /metrics"}'),
    ],
)
async def test_what_it_says(request_line: bytes, healthy: bool, status: bytes, body: str, endpoint: Endpoint) -> None:
    endpoint.healthy = healthy
    head, answer = await endpoint.ask(request_line + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    kind = b"text/plain; version=0.0.4" if body.startswith("clip") else b"application/json"
    assert head.startswith(b"HTTP/1.1 " + status + b"\r\nContent-Type: " + kind + b"\r\n")
    assert b"Cache-Control: no-store" in head
    assert " ".join(line for line in answer.decode().splitlines() if line[0] != "#") == body


async def test_head_has_the_head_of_get_and_nothing_else(endpoint: Endpoint) -> None:
    expected, _ = await endpoint.ask()
    assert await endpoint.ask(GET.replace(b"GET", b"HEAD")) == (expected, b"")


async def test_a_request_of_many_kilobytes_is_disconnected(endpoint: Endpoint) -> None:
    defects: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.append(context))
    try:
        assert await endpoint.ask(GET[:-2] + b"X: " + b"x" * 20_000 + b"\r\n\r\n") == (b"", b"")
    except ConnectionResetError:
        pass  # what it had not read yet is lost
    assert (await endpoint.ask())[0].startswith(b"HTTP/1.1 200 ")
    assert defects == []


async def test_it_answers_beside_silent_connections(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_endpoint, "_REQUEST_S", 600.0)
    silent = [await endpoint.connect() for _ in range(100)]
    assert (await endpoint.ask())[0].startswith(b"HTTP/1.1 200 ")
    # The oldest make room; the others keep their time.
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await silent[0][0].readexactly(1)
    assert not silent[-1][0].at_eof()
    for _, writer in silent:
        writer.close()


async def test_answered_requests_close_no_waiting_connection(endpoint: Endpoint) -> None:
    reader, writer = await endpoint.connect()
    writer.write(GET[:10])
    for _ in range(100):
        await endpoint.ask()
    writer.write(GET[10:])
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


def test_a_silent_connection_is_closed_after_five_seconds(unused_tcp_port: int) -> None:
    async def run() -> None:
        async with (endpoint := Endpoint(unused_tcp_port)).serving():
            assert await endpoint.ask(b"") == (b"", b"")
            assert asyncio.get_running_loop().time() == pytest.approx(5, abs=0.1)

    simulate(run())

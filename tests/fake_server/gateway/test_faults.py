"""What callers are told when Triton fails, and what becomes of callers that are slow or leave."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest

from clip_client.testing import PNG_1X1, FakeTriton, Reply
from tests.fixtures.gateways import client_of, data_uri, gateway
from tests.fixtures.waiting import until

if TYPE_CHECKING:
    import httpx

BODY = {"model": "clip", "input": data_uri(PNG_1X1)}
SLOW_CLIENTS = int(os.environ.get("GATEWAY_SLOW_CLIENTS", "60"))
EMBEDDING: tuple[dict[str, Any], ...] = (
    {"url": "/v1/embeddings", "json": BODY},
    {"url": "/embeddings", "json": BODY},
    {"url": "/embeddings_image", "json": BODY},
    {"url": "/embed", "files": {"images": ("a.png", PNG_1X1)}},
    {
        "url": "/predict",
        "files": {"image": ("blob", PNG_1X1), "entries": (None, '{"clip":{"visual":{"modelName":"fake__random:0"}}}')},
    },
)


async def answered(http: httpx.AsyncClient, request: dict[str, Any]) -> httpx.Response:
    """Send it until a busy machine answers within the gateway's short time."""
    while (answer := await http.post(**request)).status_code == 503:
        pass
    return answer


async def test_a_triton_that_is_gone_is_a_503_until_it_is_back(triton: FakeTriton) -> None:
    async with gateway(triton.url, timeout_s=1) as url, client_of(url) as http:
        assert (await answered(http, EMBEDDING[0])).status_code == 200
        await triton.stop()
        for answer in await asyncio.gather(*(http.post(**request) for request in EMBEDDING)):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
        health = await http.get("/health")
        assert (health.status_code, health.headers["retry-after"]) == (503, "5")
        await triton.start()
        for request in EMBEDDING:
            assert (await answered(http, request)).status_code == 200


async def test_a_triton_that_was_never_there_is_a_503(unused_port: int) -> None:
    async with gateway(f"localhost:{unused_port}", timeout_s=1) as url, client_of(url) as http:
        for request in EMBEDDING:
            assert (await http.post(**request)).status_code == 503
        assert (await http.get("/ping")).status_code == 503


@pytest.fixture
async def unused_port() -> int:
    server = FakeTriton()
    async with server:
        return server.port


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Reply(status=grpc.StatusCode.UNAVAILABLE, details="Exceeds maximum queue size"), 503),
        (Reply(status=grpc.StatusCode.INTERNAL, details="Stub process 'clip_preprocess' is not healthy."), 503),
        (Reply(status=grpc.StatusCode.UNAUTHENTICATED, details="no"), 502),
        (Reply(delay_s=float("inf")), 503),
        (Reply(fingerprint=(1, 1)), 503),
        (Reply(status=grpc.StatusCode.INTERNAL, details="Traceback: /srv/secret.py"), 500),
    ],
)
async def test_each_failure_has_its_status(triton: FakeTriton, reply: Reply, status: int) -> None:
    triton.answer_always(reply)
    async with gateway(triton.url, timeout_s=0.5 if status == 503 else 30) as url, client_of(url) as http:
        answer = await http.post(**EMBEDDING[0])
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["type"] == "server_error"
        assert ("retry-after" in answer.headers) is (status == 503)
        assert "secret" not in answer.text


async def test_health_checks_share_a_canary(http: httpx.AsyncClient, triton: FakeTriton) -> None:
    answers = await asyncio.gather(*(http.get("/health") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert triton.requests_received <= 2  # one for each tower


async def test_triton_does_not_work_for_a_caller_that_has_left(http: httpx.AsyncClient, triton: FakeTriton) -> None:
    triton.answer_always(Reply(delay_s=float("inf")))
    for request in EMBEDDING:
        call = asyncio.create_task(http.post(**request))
        await until(lambda: triton.in_flight == 1)
        call.cancel()
        await until(lambda: triton.in_flight == 0)


async def test_slow_and_vanished_callers_leave_memory_flat(triton: FakeTriton) -> None:
    """Half of them stop in the middle of a body, half leave while Triton works."""
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
    body = json.dumps({"input": data_uri(os.urandom(100_000))}).encode()

    async def caller(port: int, number: int) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head % len(body) + body[: len(body) // 2 if number % 2 else len(body)])
        await writer.drain()
        return writer

    async with gateway(triton.url) as url, client_of(url) as http:
        port = http.base_url.port or 0

        async def crowd() -> int:
            triton.answer_always(Reply(delay_s=float("inf")))
            callers = [await caller(port, number) for number in range(SLOW_CLIENTS)]
            await until(lambda: triton.in_flight)
            for writer in callers:
                writer.transport.abort()
            await until(lambda: not triton.in_flight)
            triton.answer_always(Reply())
            assert (await http.post(**EMBEDDING[0])).status_code == 200
            assert "clip_gateway_held_bytes 0.0" in (await http.get("/metrics")).text
            return psutil.Process().memory_info().rss

        await crowd()
        before = await crowd()
        after = await crowd()
        assert after - before < 2**20 * max(8, SLOW_CLIENTS * len(body) // 2**20 // 4)

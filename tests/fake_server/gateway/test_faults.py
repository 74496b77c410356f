"""Answers to callers when Triton fails, and to callers that are slow or leave."""

import asyncio
import gc
import json
import os
import re
import socket
import tracemalloc
from typing import Any

import grpc
import httpx
import pytest

from clip_client.testing import PNG_1X1, FakeTriton, Reply
from tests.fixtures.gateways import data_uri, gateway
from tests.fixtures.waiting import until

BODY = {"model": "clip", "input": data_uri(PNG_1X1)}
SLOW_CLIENTS = int(os.environ.get("GATEWAY_SLOW_CLIENTS", "60"))
EMBEDDING: tuple[dict[str, Any], ...] = (
    {"url": "/v1/embeddings", "json": BODY},
    {"url": "/embeddings", "json": BODY},
    {"url": "/embeddings_image", "json": BODY},
    {"url": "/embed", "files": {"images": ("a.png", PNG_1X1)}},
)


async def test_a_missing_triton_is_a_503_until_it_is_back(triton: FakeTriton, caplog: pytest.LogCaptureFixture) -> None:
    await triton.stop()
    async with gateway(triton.url, timeout_s=1) as http:
        for _ in range(2):  # it was never there, and it has gone
            for answer in await asyncio.gather(*(http.post(**request) for request in EMBEDDING), http.get("/healthz")):
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
                assert triton.url in answer.text
            await triton.start()
            for request in EMBEDDING:
                while (answer := await http.post(**request)).status_code == 503:
                    pass  # a busy machine does not answer within the short time
                assert answer.status_code == 200
            await triton.stop()
    lines = [one.getMessage() for one in caplog.records if one.name == "clip_client.gateway"]
    assert lines[1::2] == ["model clip: Triton answers again."] * (len(lines) // 2)
    assert 4 <= len(lines) < 2 * len(EMBEDDING), "a busy machine may miss one answer"


async def test_the_log_names_the_model_or_the_server_that_is_missing_before_the_first_request(
    triton: FakeTriton, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "clip_client.gateway")

    async def first_line() -> str:
        caplog.clear()
        async with gateway(triton.url, timeout_s=1):
            await until(lambda: any(one.name == "clip_client.gateway" for one in caplog.records))
        return next(one.getMessage() for one in caplog.records if one.name == "clip_client.gateway")

    assert await first_line() == f"ready: model clip is fake/random:0@00000000, at {triton.url}"
    await triton.stop()
    assert re.match(f"model clip: .*{triton.url}", await first_line())


async def test_a_change_of_model_is_noticed_and_costs_no_request(triton: FakeTriton, http: httpx.AsyncClient) -> None:
    old = (await http.post("/v1/embeddings", json={**BODY, "model": "fake/random:0"})).json()["model"]
    triton.fingerprint, triton.model = (1, 2), "other"
    new = await http.post("/v1/embeddings", json=BODY)
    assert (new.status_code, new.json()["model"] == old) == (200, False)
    assert (await http.post("/v1/embeddings", json={**BODY, "model": "fake/random:0"})).status_code == 404
    triton.fingerprint, triton.model = (3, 4), "third"
    assert (await http.post("/v1/embeddings", json={**BODY, "model": "other/random:0"})).status_code == 404
    triton.fingerprint, triton.model = (5, 6), "fourth"
    assert (await http.get("/healthz")).json()["model"].startswith("fourth/random:0@"), "a probe names it, too"


async def test_a_model_that_is_not_ready_fails_its_own_requests_only(triton: FakeTriton) -> None:
    async with gateway(triton.url, models=("absent", "clip")) as http:
        for model, status in (("fake/random:0@00000000", 200), ("absent", 503), ("of/neither", 503)):
            assert (await http.post("/v1/embeddings", json={**BODY, "model": model})).status_code == status
        assert [one["id"] for one in (await http.get("/v1/models")).json()["data"]] == ["clip"]


async def items_refused(http: httpx.AsyncClient) -> float:
    metrics = (await http.get("/metrics")).text
    return sum(map(float, re.findall(r'^clip_gateway_items_total{outcome="(?!ok")\w+"} (.+)$', metrics, re.M)))


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
    async with gateway(triton.url, timeout_s=0.5 if status == 503 else 30) as http:
        before = await items_refused(http)
        answer = await http.post(**EMBEDDING[0])
        assert await items_refused(http) == before + 1
        assert "longer timeout_s" not in answer.text, "callers of the gateway set no time"
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "server_error"), answer.text
        assert ("retry-after" in answer.headers) is (status == 503)
        assert "secret" not in answer.text


async def test_health_checks_share_a_canary(http: httpx.AsyncClient, triton: FakeTriton) -> None:
    triton.script(Reply(delay_s=0.2))
    hasty = asyncio.create_task(http.get("/health"))
    await until(lambda: triton.in_flight)
    hasty.cancel()  # as the probes of an orchestrator, whose time limit is one second; the check goes on
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
    assert triton.requests_received == len(EMBEDDING), "none was sent again"


async def connected(http: httpx.AsyncClient, sends: bytes) -> socket.socket:
    """A caller that sends this, and never reads."""
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.setblocking(False)
    await asyncio.get_running_loop().sock_connect(caller, ("127.0.0.1", http.base_url.port))
    await asyncio.get_running_loop().sock_sendall(caller, sends)
    return caller


async def test_slow_and_vanished_callers_leave_memory_flat(triton: FakeTriton) -> None:
    """Half of them stop in the middle of a body, half leave while Triton works.

    Counts what Python holds: how much of the freed memory an allocator gives back is chance.
    """
    body = json.dumps({"input": data_uri(os.urandom(100_000))}).encode()

    async with gateway(triton.url) as http:

        async def crowd() -> int:
            triton.answer_always(Reply(delay_s=float("inf")))
            whole = b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            callers = [await connected(http, whole[: len(whole) // (1 + n % 2)]) for n in range(SLOW_CLIENTS)]
            await until(lambda: triton.in_flight)
            for caller in callers:
                caller.close()
            await until(lambda: not triton.in_flight)
            triton.answer_always(Reply())
            assert (await http.post(**EMBEDDING[0])).status_code == 200
            triton.requests.clear()  # which keep the images
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        await crowd()
        tracemalloc.start()
        try:
            before = await crowd()
            after = await crowd()
        finally:
            tracemalloc.stop()
        assert after - before < len(body)

"""Limits, the token, the pages about the gateway itself, and its command."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import openai
import pytest
import trustme

from benchmarks.fixtures.server import free_port
from clip_client.gateway.command import main
from clip_client.testing import PNG_1X1, FakeTriton, Reply
from tests.fixtures.gateways import client_of, data_uri, gateway
from tests.fixtures.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "clip", "input": data_uri(PNG_1X1)}


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(triton: FakeTriton) -> None:
    async with gateway(triton.url, max_body_bytes=1000) as url, client_of(url) as http:
        announced = await http.post("/v1/embeddings", content=b"x" * 1001)
        chunked = await http.post("/v1/embeddings", content=_chunks(b"x" * 500, 3))
        for answer in (announced, chunked):
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert (await http.post("/v1/embeddings", json=BODY)).status_code == 200


async def _chunks(chunk: bytes, count: int):  # type: ignore[no-untyped-def]
    for _ in range(count):
        yield chunk


async def test_requests_over_the_memory_of_the_process_are_shed(triton: FakeTriton) -> None:
    triton.script(Reply(delay_s=float("inf")))
    async with gateway(triton.url, max_held_bytes=500) as url, client_of(url) as http:
        held = asyncio.create_task(http.post("/v1/embeddings", json={**BODY, "user": "x" * 300}))
        await until(lambda: triton.in_flight)
        shed = await http.post("/v1/embeddings", json={**BODY, "user": "x" * 300})
        assert (shed.status_code, shed.headers["retry-after"]) == (503, "5")
        held.cancel()
        await until(lambda: not triton.in_flight)
        # What was held is free again.
        assert (await http.post("/v1/embeddings", json={**BODY, "user": "x" * 300})).status_code == 200


async def test_the_token_guards_all_but_the_probes(triton: FakeTriton) -> None:
    async with gateway(triton.url, token="secret") as url, client_of(url) as http:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
            answer = await http.post("/v1/embeddings", json=BODY, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.get("/metrics")).status_code == 401
        for probe in ("/health", "/healthz", "/ping"):
            assert (await http.get(probe)).status_code == 200
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client:
            assert (await client.embeddings.create(**BODY)).data  # type: ignore[arg-type]


async def test_the_openapi_document_names_every_address(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    page = (await http.get("/")).text
    assert document["paths"]["/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    for path in document["paths"]:
        assert f" {path}</code>" in page
        assert (await http.request("OPTIONS", path)).status_code == 405, path


async def test_metrics_count_requests_and_items(http: httpx.AsyncClient) -> None:
    async def count(line: str) -> float:
        lines = (await http.get("/metrics")).text.splitlines()
        return sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(line))

    requests, items = (
        'clip_gateway_requests_total{dialect="openai",status="200"}',
        'clip_gateway_items_total{outcome="ok"}',
    )
    before = [await count(requests), await count(items)]
    await http.post("/v1/embeddings", json={"input": [data_uri(PNG_1X1)] * 3})
    assert [await count(requests), await count(items)] == [before[0] + 1, before[1] + 3]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ssl-certfile", "a.pem"], "belong together"),
        (["--url", "ftp://a"], "ftp"),
        (["--max-items", "0"], "--max-items"),
        (["--timeout-s", "-1"], "--timeout-s"),
        (["--immich-upstream", "immich"], "--immich-upstream"),
        (["--token-file", "/nowhere/token"], "/nowhere/token"),
        (["--url", "grpc://far.example:8001", "--client-token-file", sys.executable + "/token"], "token"),
    ],
)
def test_misuse_is_one_sentence(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


async def test_the_command_serves_tls_with_several_processes(triton: FakeTriton, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key, token = tmp_path / "certificate.pem", tmp_path / "key.pem", tmp_path / "token"
    certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    key.write_bytes(issued.private_key_pem.bytes())
    token.write_text("secret\n")
    port = free_port()
    command = [sys.executable, "-m", "clip_client.gateway.command", "--url", triton.url, "--port", str(port)]
    command += ["--workers", "2", "--token-file", str(token)]
    command += ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: ASYNC220
        try:
            async with client_of(f"https://localhost:{port}", verify=context) as http:

                async def answers() -> bool:
                    try:
                        return (await http.get("/health")).status_code == 200
                    except httpx.TransportError:
                        return False

                while not await answers():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                http.headers["authorization"] = "Bearer secret"
                for _ in range(10):
                    assert (await http.post("/v1/embeddings", json=BODY)).status_code == 200
                metrics = (await http.get("/metrics")).text
                assert 'clip_gateway_requests_total{dialect="openai",status="200"} 10.0' in metrics
        finally:
            process.terminate()
    assert process.returncode == 0

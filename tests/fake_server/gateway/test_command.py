"""The command, and the pages about the gateway itself."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trustme

from benchmarks.fixtures.server import free_port
from clip_client.gateway.command import main
from clip_client.testing import PNG_1X1
from tests.fixtures.gateways import data_uri

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.testing import FakeTriton


async def test_the_openapi_document_names_every_address(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    page = (await http.get("/")).text
    required = set()
    for path, operations in document["paths"].items():
        assert f" {path}</code>" in page
        assert (await http.request("OPTIONS", path)).status_code == 405, path
        for content in operations.get("post", {}).get("requestBody", {}).get("content", {}).values():
            required.add((path.rpartition("/")[2], *content["schema"]["required"]))
    addresses = ("embeddings", "input"), ("embeddings_image", "input"), ("embed", "images"), ("base64", "images")
    assert required == {*addresses, ("predict", "entries")}


async def test_metrics_count_requests_and_items(http: httpx.AsyncClient) -> None:
    async def counts() -> list[float]:
        lines = (await http.get("/metrics")).text.splitlines()
        names = ('clip_gateway_requests_total{dialect="openai",status="200"}', 'clip_gateway_items_total{outcome="ok"}')
        return [sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(name)) for name in names]

    requests, items = await counts()
    await http.post("/v1/embeddings", json={"input": [data_uri(PNG_1X1)] * 3})
    assert await counts() == [requests + 1, items + 3]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ssl-certfile", "a.pem"], "belong together"),
        (["--url", "ftp://a"], "ftp"),
        (["--max-items", "0"], "--max-items"),
        (["--timeout-s", "-1"], "--timeout-s"),
        (["--max-held-bytes", "much"], "--max-held-bytes"),
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
    options: dict[str, Any] = {"verify": context, "trust_env": False, "timeout": 60}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: ASYNC220
        try:
            async with httpx.AsyncClient(base_url=f"https://localhost:{port}", **options) as http:

                async def answers() -> bool:
                    try:
                        return (await http.get("/health")).status_code == 200
                    except httpx.TransportError:
                        return False

                while not await answers():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                http.headers["authorization"] = "Bearer secret"
                body = {"model": "clip", "input": data_uri(PNG_1X1)}
                for _ in range(10):
                    assert (await http.post("/v1/embeddings", json=body)).status_code == 200
                metrics = (await http.get("/metrics")).text
                assert 'clip_gateway_requests_total{dialect="openai",status="200"} 10.0' in metrics
        finally:
            process.terminate()
    assert process.returncode == 0

"""The command, and the pages about the gateway itself."""

import asyncio
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
import uvicorn

from benchmarks.fixtures.server import free_port
from clip_client.gateway.command import main
from clip_client.testing import PNG_1X1, FakeTriton
from tests.fixtures.commands import Run
from tests.fixtures.gateways import data_uri
from tests.unit.serving.authority import Authority


async def test_the_openapi_document_names_every_address(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    required = set()
    for path, operations in document["paths"].items():
        assert (await http.request("OPTIONS", path)).status_code == 405, path
        for content in operations.get("post", {}).get("requestBody", {}).get("content", {}).values():
            required.add((path.rpartition("/")[2], *content["schema"]["required"]))
    inputs = {("embeddings", "input"), ("embeddings_image", "input"), ("embed", "images"), ("base64", "images")}
    assert required == inputs


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
        (["--timeout-s", "-1"], "--timeout-s"),
        (["--callers-token-file", os.devnull], "see --callers-token-file"),
        (["--url", "grpc://far.example:8001", "--token-file", __file__], "in one line"),
        (["--url", "grpcs://a", "--tls-ca", __file__], "is not a PEM certificate"),
        (["--url=grpcs://a", f"--tls-certificate={__file__}", f"--tls-key={__file__}"], "see --tls-certificate and"),
        (["--ssl-certfile", "/nowhere.pem", "--ssl-keyfile", "/nowhere.pem", "--workers", "2"], "see --ssl-certfile"),
        (["--ssl-certfile", __file__, "--ssl-keyfile", __file__], "are not a PEM certificate"),
        # Each worker would read it.
        (["--workers", "2", "--callers-token-file", "{pipe}"], "is a pipe"),
    ],
)
def test_misuse_is_one_sentence(arguments: list[str], says: str, tmp_path: Path, run: Run) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    assert says in run(main, *(one.format(pipe=pipe) for one in arguments), code=2).err


def test_one_process_reads_certificates_through_a_pipe(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **_: apps.append(app))
    authority = Authority(tmp_path, "authority").file.read_bytes()
    reader, writer = os.pipe()
    os.write(writer, authority)
    os.close(writer)
    try:
        run(main, "--port", free_port(), "--url=grpcs://a", f"--tls-ca=/dev/fd/{reader}")
    finally:
        os.close(reader)
    assert apps[0].args[0].ca_certificate == authority


@pytest.mark.parametrize("in_file", [True, False])
def test_only_callers_on_this_machine_use_the_token_for_triton_without_one_of_their_own(
    in_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (token := tmp_path / "token").write_text("secret\n")
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: None)
    monkeypatch.setenv("CLIP_TOKEN", "" if in_file else "secret")
    options = ["--port", free_port(), *(["--token-file", token] if in_file else [])]
    run(main, *options)
    options += ["--host", "0.0.0.0"]
    assert "they must send with --callers-token-file, or" in run(main, *options, code=2).err
    run(main, *options, "--callers-token-file", token)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_used_port_is_one_sentence(workers: str, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = run(main, "--port", port, "--workers", workers, code=1).err
    assert said == (
        f"clip-gateway: port {port} on 127.0.0.1 cannot be used (Address already in use): "
        "stop the program that uses it, or choose another with --port or --host\n"
    )


def test_a_missing_model_is_one_sentence(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> str:
        return run(main, "--port", free_port(), "--url", f"local:{tmp_path}", code=1).err

    assert refused() == (
        f"clip-gateway: There is no model in {tmp_path}: run `clip-export --repository {tmp_path}`, or name another "
        "repository by local:DIR or CLIP_REPOSITORY.\n"
    )
    (version := tmp_path / "other_encoder" / "1").mkdir(parents=True)
    (version / "model.json").touch()
    assert "There is no model named 'clip' in " in refused()
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: None)
    run(main, "--port", free_port(), "--url", f"local:{tmp_path}", "--model", "other")


def test_an_impossible_host_is_one_sentence_and_an_empty_one_every_address(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = []
    monkeypatch.setattr(uvicorn, "run", lambda *_, host, **__: hosts.append(host))
    (sentence,) = run(main, "--host", "a..b", "--port", free_port(), code=1).err.splitlines()
    assert "on a..b cannot be used" in sentence
    run(main, "--host", "", "--port", free_port())
    assert hosts == [""]


@pytest.mark.parametrize(("timeout_s", "longest_s"), [("0.5", 5), ("30", 30)])
def test_a_stop_waits_for_requests_and_health_checks(
    timeout_s: str, longest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left after that time, uvicorn answers with 500. A health check takes up to five seconds."""
    waits = []
    monkeypatch.setattr(
        uvicorn, "run", lambda *_, timeout_graceful_shutdown, **__: waits.append(timeout_graceful_shutdown)
    )
    assert main(["--port", str(free_port()), "--timeout-s", timeout_s]) == 0
    assert waits[0] > longest_s


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_the_command_speaks_tls_with_tokens_on_both_sides(tmp_path: Path, workers: str) -> None:
    (tmp_path / "callers").write_text("of callers\n")
    (tmp_path / "token").write_text("for Triton\n")
    authority, port, log = Authority(tmp_path, "authority"), free_port(), tmp_path / "log"
    own, mine, tritons = (authority.issue(name) for name in ("localhost", "gateway.internal", "triton.internal"))
    triton = FakeTriton(has_text=True, token="for Triton")
    triton.use_tls(
        certificate=tritons.certificate.read_bytes(),
        key=tritons.key.read_bytes(),
        client_ca=authority.file.read_bytes(),
    )
    url, context = f"https://localhost:{port}", ssl.create_default_context(cafile=authority.file)
    async with triton, httpx.AsyncClient(base_url=url, verify=context, trust_env=False, timeout=60) as http:
        options: dict[str, object] = {
            **{"--url": triton.url, "--port": port, "--workers": workers},
            **{"--tls-ca": authority.file, "--tls-certificate": mine.certificate, "--tls-key": mine.key},
            **{"--tls-name": "triton.internal", "--token-file": tmp_path / "token"},
            **{"--callers-token-file": tmp_path / "callers"},
            **{"--ssl-certfile": own.certificate, "--ssl-keyfile": own.key},
        }
        command = [sys.executable, "-m", "clip_client.gateway.command", *(f"{a}={b}" for a, b in options.items())]
        with log.open("wb") as file, subprocess.Popen(command, stderr=file) as process:  # noqa: ASYNC220

            async def answers() -> bool:
                with suppress(httpx.TransportError):
                    return (await http.get("/health")).status_code == 200
                return False

            try:
                while not await answers():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                http.headers["authorization"] = "Bearer of callers"
                body = {"model": "clip", "input": data_uri(PNG_1X1)}
                for _ in range(10):
                    assert (await http.post("/v1/embeddings", json=body)).status_code == 200
                metrics = (await http.get("/metrics")).text
                assert 'clip_gateway_requests_total{dialect="openai",status="200"} 10.0' in metrics
                gateway = psutil.Process(process.pid)
                for one in (gateway, *gateway.children(recursive=True)):
                    assert not re.search("of callers|for Triton", repr(one.environ()))
                assert f"ready: model clip is fake/random:0@00000000, at {triton.url}\n" in log.read_text()
            finally:
                await http.aclose()  # while this waits for the process, no one here could answer its TLS
                process.terminate()
    assert process.returncode in (0, -signal.SIGTERM)

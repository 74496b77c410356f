"""Several servers and the way to them: shared work, failing over, one model, names, ``auto:`` and proxies."""

import asyncio
import socket
from typing import Any, Final

import pytest
import trustme

from clip_client import (
    ClientConfig,
    ClipClient,
    ClipError,
    ModelNotReady,
    Overloaded,
    ProtocolMismatch,
    Unauthorized,
    Unavailable,
)
from clip_client._transports.grpc import channel_options
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import InMemoryClient, OfTheFuture, Stalled, images, listening, now, scripted
from tests.fixtures.simulated_time import simulated

NAME = "clip.example.org"


def client_of(*servers: FakeTriton) -> InMemoryClient:
    hosts = {f"server{number}": server for number, server in enumerate(servers)}
    return InMemoryClient(hosts, config=ClientConfig(urls=tuple(hosts)))


async def test_all_servers_work() -> None:
    servers = [scripted(then=Reply(delay_s=0.01)) for _ in range(3)]
    async with client_of(*servers) as clip:
        assert (await clip.embed(images(600))).errors == {}
        counts = [server.images_embedded for server in servers]
        assert sum(counts) == 600
        assert min(counts) > 60
        assert len(clip.stats().servers) == 3
        report = await clip.health()
        assert report.ok
        assert {step.server for step in report.steps} == {f"grpc://server{number}:8001" for number in range(3)}


async def test_a_server_that_stops_is_avoided_and_used_again_after_its_restart() -> None:
    async with FakeTriton() as good, FakeTriton() as fickle, ClipClient([good.url, fickle.url]) as clip:
        await clip.embed(images(100))
        assert fickle.images_embedded
        await fickle.stop()
        assert (await clip.embed(images(300))).errors == {}
        assert any(server.is_down for server in clip.stats().servers)
        assert clip.stats().requests_retried < 20
        await fickle.start()
        before = fickle.images_embedded
        while fickle.images_embedded == before:
            await clip.embed(images(64))
        assert not any(server.is_down for server in clip.stats().servers)


async def test_a_server_that_is_down_from_the_start_does_not_count() -> None:
    async with FakeTriton() as server, ClipClient(["localhost:1", server.url]) as clip:
        assert (await clip.embed([b"a"] * 50)).errors == {}
    async with ClipClient(["localhost:1", "localhost:2"]) as clip:
        with pytest.raises(Unavailable, match="No server answers at grpc://localhost:1"):
            await clip.embed(b"a")


@simulated
async def test_a_server_that_hangs_in_the_handshake_does_not_count() -> None:
    async with client_of(Stalled(), FakeTriton()) as clip:
        assert (await clip.embed(b"a", timeout_s=5)).errors == {}
        assert now() == pytest.approx(1)


async def test_no_request_is_larger_than_each_server_takes() -> None:
    servers = [FakeTriton(max_batch_size=32), FakeTriton(max_batch_size=4)]
    async with client_of(*servers) as clip:
        assert (await clip.model()).max_batch_size == 4
        assert (await clip.embed(images(100))).errors == {}
    assert max(len(request.images) for server in servers for request in server.requests) == 4


@pytest.mark.parametrize(
    ("second", "kind", "says"),
    [
        (FakeTriton(model="other", fingerprint=(5, 6)), ProtocolMismatch, "serves fake/.* serves other/"),
        (OfTheFuture(), ProtocolMismatch, "contract 2"),
        (FakeTriton(token="another"), Unauthorized, "refused"),
    ],
    ids=["another model", "another contract", "another token"],
)
async def test_a_server_that_does_not_fit_is_no_reserve(second: FakeTriton, kind: type[ClipError], says: str) -> None:
    async with client_of(FakeTriton(), second) as clip:
        with pytest.raises(kind, match=says):
            await clip.embed(b"a")


@pytest.mark.parametrize("error", [Unauthorized, ModelNotReady])
async def test_auto_uses_a_server_that_responds_even_an_unhealthy_one(
    error: type[ClipError], caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeTriton(token="secret" if error is Unauthorized else None)
    server.ready_models.clear()
    async with InMemoryClient({"localhost": server}, "auto:localhost") as clip:
        with pytest.raises(error):
            await clip.embed(b"x")
        assert not clip.is_local
    assert not caplog.records


class Silent(FakeTriton):
    async def ServerLive(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()


@simulated
async def test_auto_ignores_a_server_that_does_not_respond() -> None:
    here = FakeTriton()
    async with InMemoryClient({"localhost": Silent(), "": here}, "auto:") as clip:
        await clip.embed(b"a")
        assert now() == pytest.approx(5)
        assert clip.is_local
        assert here.images_embedded == 1
        assert [channel.closed for channel in clip.transports.channels["localhost"]] == [True]


@pytest.fixture
async def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every name have two addresses of this machine."""

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        addresses = ("127.0.0.1", "127.0.0.2")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("server_name", [None, "inside.example.org"], ids=["the URL's name", "server_name="])
@pytest.mark.usefixtures("two_addresses")
async def test_the_certificate_of_a_numeric_address_must_have_the_name(server_name: str | None) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert(server_name or NAME)
    server = FakeTriton(host="127.0.0.1")
    server.use_tls(certificate=issued.cert_chain_pems[0].bytes(), key=issued.private_key_pem.bytes())
    async with server:
        url = f"grpcs://{NAME}:{server.port}"
        config = ClientConfig(urls=(url,), ca_certificate=authority.cert_pem.bytes(), server_name=server_name)
        async with ClipClient(config=config, timeout_s=20) as clip:
            assert (await clip.embed(b"a")).errors == {}
            assert len(clip.stats().servers) == 2


@pytest.mark.usefixtures("two_addresses")
async def test_a_proxy_is_told_the_name_of_a_numeric_address() -> None:
    """Envoy and others choose the service by it."""
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An empty SETTINGS frame: an HTTP/2 client sends nothing before it.
        writer.write(bytes(3) + b"\x04" + bytes(5))
        while b"ServerLive" not in heard and b"ModelInfer" not in heard and (data := await reader.read(4096)):
            heard.extend(data)

    async with listening(listen) as address, ClipClient(f"{NAME}:{address.rpartition(':')[2]}", timeout_s=20) as clip:
        with pytest.raises(Unavailable):
            await clip.embed(b"a")
    assert NAME.encode() in heard


SETTINGS: Final = bytes.fromhex("000000 04 00 00000000")
ACKNOWLEDGED: Final = bytes.fromhex("000000 04 01 00000000")
HEADERS_OF_FIRST_STREAM: Final = bytes.fromhex("000005 01 05 00000001")
STATUS: Final = bytes.fromhex("08 03")  # the header :status as a literal of three letters


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (302, ProtocolMismatch, r"redirects \(HTTP status 302\)"),
        (400, ProtocolMismatch, "answers with HTTP status 400"),
        (401, Unauthorized, "check token"),
        (403, Unauthorized, r"forbids the request \(HTTP status 403\)"),
        (404, ProtocolMismatch, "not Triton's gRPC port"),
        (413, ProtocolMismatch, "does not accept a request of this size; lower max_request_bytes"),
        (429, Overloaded, "is overloaded"),
        (431, ProtocolMismatch, "answers with HTTP status 431"),
        (500, Unavailable, r"cannot reach its server \(HTTP status 500\)"),
        (502, Unavailable, r"cannot reach its server \(HTTP status 502\)"),
    ],
)
async def test_an_http_status_has_its_own_error(status: int, kind: type[ClipError], says: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak as much HTTP/2 as a proxy needs that answers without its server."""
        writer.write(SETTINGS + ACKNOWLEDGED)
        while b"ModelInfer" not in (received := await reader.read(65536)) and received:
            pass
        writer.write(HEADERS_OF_FIRST_STREAM + STATUS + str(status).encode())
        await reader.read()
        left.set()

    left = asyncio.Event()
    async with listening(answer) as address:
        async with ClipClient(address, timeout_s=20) as clip:
            with pytest.raises(kind, match=says) as raised:
                await clip.embed(b"a")
        assert type(raised.value) is kind
        await left.wait()


@pytest.mark.parametrize(
    ("no_proxy", "is_without"),
    [(".svc.test", True), ("other.test, SVC.test ,", True), ("", False), (".svc.test.org", False)],
)
def test_an_address_needs_no_proxy_if_its_name_needs_none(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, is_without: bool
) -> None:
    """gRPC itself reads no_proxy for a name with one address; one with two is connected to by numbers."""
    monkeypatch.setenv("no_proxy", no_proxy)
    config = ClientConfig(urls=("10.9.9.1",))
    options = channel_options(config, config.endpoints[0], "clip.svc.test")
    assert (("grpc.enable_http_proxy", 0) in options) is is_without

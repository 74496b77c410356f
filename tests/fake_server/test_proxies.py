"""Proxies between client and server: what their HTTP statuses mean, and which hosts go without one."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from clip_client import ClientConfig, ClipClient, ClipError, Overloaded, ProtocolMismatch, Unauthorized, Unavailable
from clip_client._transports.grpc import channel_options
from tests.fixtures.fakes import listening

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

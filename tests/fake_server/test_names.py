"""A name that stands for several servers: repeated look-ups, and the name in TLS and for proxies."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
import trustme

from clip_client import ClientConfig, ClipClient, Unavailable
from clip_client.testing import FakeTriton
from tests.fixtures.networks import InMemoryClient
from tests.fixtures.simulated_time import simulate

NAME = "clip.example.org"


@pytest.mark.parametrize(
    ("name", "addresses", "servers"),
    [
        ("clip.example.org", ["2001:db8::1", "192.0.2.1", "192.0.2.2"], ["192.0.2.1:8001", "192.0.2.2:8001"]),
        ("clip.example.org", ["2001:db8::1", "2001:db8::2"], ["[2001:db8::1]:8001", "[2001:db8::2]:8001"]),
        ("clip.example.org", ["2001:db8::1", "192.0.2.1"], ["clip.example.org:8001"]),
        ("clip.example.org", ["192.0.2.1", "192.0.2.1"], ["clip.example.org:8001"]),
        ("localhost", ["127.0.0.1", "127.0.0.2"], ["localhost:8001"]),
    ],
    ids=["both kinds", "IPv6 only", "one of each kind", "one address twice", "this machine"],
)
def test_a_host_with_several_addresses_is_not_taken_for_several_servers(
    name: str, addresses: list[str], servers: list[str]
) -> None:
    """Nor are the IPv6 and IPv4 addresses of one host: only those of one kind count."""

    async def run() -> None:
        async with InMemoryClient(dict.fromkeys([name, *addresses], FakeTriton()), name) as clip:
            await clip.model()
            assert [server.url for server in clip.stats().servers] == [f"grpc://{server}" for server in servers]

    simulate(run(), names={name: addresses})


def resolve_to(*addresses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every name these addresses for the rest of the test."""

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("issued_to", "server_name"),
    [("clip.example.org", None), ("inside.example.org", "inside.example.org")],
    ids=["the URL's name", "server_name="],
)
async def test_the_certificate_of_a_numeric_address_must_have_the_name(
    issued_to: str, server_name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert(issued_to)
    server = FakeTriton(host="127.0.0.1")
    server.use_tls(certificate=issued.cert_chain_pems[0].bytes(), key=issued.private_key_pem.bytes())
    async with server:
        url = f"grpcs://{NAME}:{server.port}"
        config = ClientConfig(urls=(url,), ca_certificate=authority.cert_pem.bytes(), server_name=server_name)
        resolve_to("127.0.0.1", "127.0.0.2", monkeypatch=monkeypatch)
        async with ClipClient(config=config, timeout_s=20) as clip:
            assert (await clip.embed(b"a")).errors == {}
            assert len(clip.stats().servers) == 2


async def test_a_proxy_is_told_the_name_of_a_numeric_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Envoy and others choose the service by it."""
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An empty SETTINGS frame: an HTTP/2 client sends nothing before it.
        writer.write(bytes(3) + b"\x04" + bytes(5))
        with suppress(OSError):
            while b"ServerLive" not in heard and b"ModelInfer" not in heard and (data := await reader.read(4096)):
                heard.extend(data)
        writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with listener:
        resolve_to("127.0.0.1", "127.0.0.2", monkeypatch=monkeypatch)
        async with ClipClient(f"{NAME}:{listener.sockets[0].getsockname()[1]}", timeout_s=20) as clip:
            with pytest.raises(Unavailable):
                await clip.embed(b"a")
    assert NAME.encode() in heard

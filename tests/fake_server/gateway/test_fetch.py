"""Images by URL: only from the public Internet, whatever a name, a redirect or a server says."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from clip_client.gateway.errors import Refusal
from clip_client.gateway.fetch import Address, Fetcher, is_public
from clip_client.testing import PNG_1X1, FakeTriton, fake_vector
from tests.fixtures.gateways import client_of, gateway, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

HERE = ip_address("127.0.0.1")


class Site:
    """A web site, and the names that lead to it."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.resolved: list[str] = []
        self.addresses: dict[str, list[list[Address]]] = {}
        """Host -> the answers to the queries for it, the last one for all further ones."""
        self.app = Starlette(
            routes=[
                Route("/photo.png", self._photo),
                Route("/page", lambda _: Response("<html>", media_type="text/html")),
                Route("/hops/{left:int}", self._hop),
                Route("/away", lambda request: RedirectResponse(request.query_params["to"])),
                Route("/large", lambda _: StreamingResponse(_too_much(), media_type="image/png")),
                Route("/silent", self._silent),
                Route("/nowhere", lambda _: Response(status_code=302)),
            ]
        )

    def _photo(self, request: Request) -> Response:
        self.hosts.append(request.headers["host"])
        return Response(PNG_1X1, media_type="image/png")

    def _hop(self, request: Request) -> Response:
        left = request.path_params["left"]
        return RedirectResponse(f"/hops/{left - 1}" if left else "/photo.png")

    async def _silent(self, _: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def resolve(self, host: str, _port: int) -> list[Address]:
        """Answer like a name server."""
        self.resolved.append(host)
        answers = self.addresses.get(host)
        if answers is None:
            return [ip_address(host)]
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def _too_much() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b"x" * 10_000


def fetcher_of(site: Site) -> Fetcher:
    return Fetcher(resolver=site.resolve, allows=lambda address: address == HERE)


@asynccontextmanager
async def fetching(site: Site) -> AsyncIterator[tuple[Fetcher, int]]:
    """A fetcher that takes 127.0.0.1 for a public address, and the port of the site there."""
    async with served(site.app) as url:
        fetcher = fetcher_of(site)
        yield fetcher, httpx.URL(url).port or 0
        await fetcher.aclose()


def no_limit(_: int) -> None:
    """Count nothing."""


@pytest.fixture
def site() -> Site:
    site = Site()
    site.addresses["photos.example"] = [[HERE]]
    return site


async def test_an_image_of_a_public_host(site: Site, triton: FakeTriton) -> None:
    async with fetching(site) as (fetcher, port), gateway(triton.url, fetcher=fetcher) as url, client_of(url) as http:
        body = {"input": [{"image_url": {"url": f"http://photos.example:{port}/hops/2"}}]}
        answer = await http.post("/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        assert np.array_equal(np.array(answer.json()["data"][0]["embedding"], np.float32), fake_vector(PNG_1X1))
    assert site.hosts == [f"photos.example:{port}"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/page", "no image"),
        ("/missing", "404"),
        ("/hops/3", "more than 3 times"),
        ("/away?to=http://10.0.0.1/photo.png", "public Internet"),
        ("/away?to=http://[::1]/photo.png", "public Internet"),
        ("/away?to=file:///etc/passwd", "http"),
        ("/away?to=http://user:password@photos.example/", "password"),
        ("/nowhere", "more than 3 times"),
    ],
)
async def test_what_the_site_answers_is_refused(site: Site, path: str, says: str) -> None:
    async with fetching(site) as (fetcher, port):
        with pytest.raises(Refusal, match=f"Item 7 .*{says}") as raised:
            await fetcher.fetch(7, f"http://photos.example:{port}{path}", no_limit)
    assert (raised.value.status, raised.value.index) == (400, 7)
    assert site.hosts == []


async def test_what_is_fetched_counts_as_part_of_its_request(site: Site, triton: FakeTriton) -> None:
    async with fetching(site) as (_, port):
        body = {"input": [{"image_url": f"http://photos.example:{port}{path}"} for path in ("/photo.png", "/large")]}
        for limits, status in (({"max_body_bytes": 10_000}, 413), ({"max_held_bytes": 10_000}, 503), ({}, 200)):
            async with gateway(triton.url, fetcher=fetcher_of(site), **limits) as url, client_of(url) as http:
                assert (await http.post("/v1/embeddings", json=body)).status_code == status
                # It is no longer held.
                assert (await http.post("/v1/embeddings", json={"input": "a cat"})).status_code == 200


async def test_a_host_with_one_private_address_is_refused(site: Site) -> None:
    site.addresses["mixed.example"] = [[HERE, ip_address("192.168.0.1")]]
    async with fetching(site) as (fetcher, port):
        with pytest.raises(Refusal, match="public Internet"):
            await fetcher.fetch(0, f"http://mixed.example:{port}/photo.png", no_limit)


async def test_the_connection_goes_to_the_address_that_was_checked(site: Site) -> None:
    # DNS rebinding: the second answer names a host inside, which nobody asks for.
    site.addresses["rebinding.example"] = [[HERE], [ip_address("10.0.0.1")]]
    async with fetching(site) as (fetcher, port):
        assert await fetcher.fetch(0, f"http://rebinding.example:{port}/photo.png", no_limit) == PNG_1X1
        assert site.resolved == ["rebinding.example"]
        with pytest.raises(Refusal, match="public Internet"):
            await fetcher.fetch(0, f"http://rebinding.example:{port}/photo.png", no_limit)


async def test_a_redirect_is_resolved_and_checked_again(site: Site) -> None:
    site.addresses["rebinding.example"] = [[HERE], [ip_address("169.254.169.254")]]
    async with fetching(site) as (fetcher, port):
        with pytest.raises(Refusal, match="public Internet"):
            await fetcher.fetch(0, f"http://rebinding.example:{port}/hops/0", no_limit)
    assert site.resolved == ["rebinding.example"] * 2


async def test_a_silent_site_does_not_hold_the_request(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clip_client.gateway.fetch._FETCH_S", 0.2)
    async with fetching(site) as (fetcher, port):
        with pytest.raises(Refusal, match="took more than"):
            await fetcher.fetch(0, f"http://photos.example:{port}/silent", no_limit)


async def test_the_certificate_must_be_that_of_the_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[Any] = []
    wrap = ssl.SSLContext.wrap_bio

    def wrap_bio(self: ssl.SSLContext, incoming: Any, outgoing: Any, *, server_side: bool, server_hostname: Any) -> Any:
        assert self.check_hostname
        names.append(server_hostname)
        return wrap(self, incoming, outgoing, server_side=server_side, server_hostname=server_hostname)

    monkeypatch.setattr(ssl.SSLContext, "wrap_bio", wrap_bio)
    async with fetching(site) as (fetcher, port):
        with pytest.raises(Refusal, match="cannot be reached"):  # the site speaks no TLS
            await fetcher.fetch(0, f"https://photos.example:{port}/photo.png", no_limit)
    assert names in ([b"photos.example"], ["photos.example"]), "anyio changed the type"


@pytest.mark.parametrize(
    "url", ["http://", "http://[", "http://a b/", "http://\udce9/", "http://x:99999/", "https://.."]
)
async def test_a_malformed_url_is_a_400(url: str) -> None:
    fetcher = Fetcher()
    with pytest.raises(Refusal) as raised:
        await fetcher.fetch(0, url, no_limit)
    assert raised.value.status == 400
    await fetcher.aclose()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "::1", "::", "fe80::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
        *(
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "fec0::1",
            "64:ff9b:1::1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:0:0:0:0:0:80ff:fffe",
        ),
    ],
)
def test_addresses_around_this_machine_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ip_address(address))

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

from clip_client.gateway.dialect import Refusal
from clip_client.gateway.fetch import Address, Fetcher, is_public
from clip_client.testing import PNG_1X1, FakeTriton, fake_vector
from tests.fixtures.gateways import data_uri, gateway, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

HERE = ip_address("127.0.0.1")


class Site:
    """A web site, and the names that lead to it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str | None, str | None]] = []
        """Host and cookies of each request for the photo."""
        self.resolved: list[str] = []
        self.asked, self.released = asyncio.Event(), asyncio.Event()
        """Of the image /held, which is answered when it is released."""
        self.addresses: dict[str, list[list[Address]]] = {
            "photos.example": [[HERE]],
            "mixed.example": [[HERE, ip_address("192.168.0.1")]],
            "rebinding.example": [[HERE], [ip_address("169.254.169.254")]],
        }
        """Host -> the answers to the queries for it, the last one for all further ones."""
        self.app = Starlette(
            routes=[
                Route("/photo.png", self._photo),
                Route("/page", lambda _: Response("<html>", media_type="text/html")),
                Route("/hops/{left:int}", self._hop),
                Route("/away", lambda request: RedirectResponse(request.query_params["to"])),
                Route("/large", lambda _: StreamingResponse(_too_much(), media_type="image/png")),
                Route("/nowhere", lambda _: Response(status_code=302)),
                Route("/held", self._held),
            ]
        )

    def _photo(self, request: Request) -> Response:
        self.seen.append((request.headers.get("host"), request.headers.get("cookie")))
        return Response(PNG_1X1, media_type="image/png", headers={"set-cookie": "a=b"})

    def _hop(self, request: Request) -> Response:
        left = request.path_params["left"]
        return RedirectResponse(f"/hops/{left - 1}" if left else "/photo.png")

    async def _held(self, request: Request) -> Response:
        self.asked.set()
        await self.released.wait()
        return self._photo(request)

    async def resolve(self, host: str, _port: int) -> list[Address]:
        """Answer like a name server."""
        self.resolved.append(host)
        answers = self.addresses.get(host) or [[ip_address(host)]]
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def _too_much() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b"x" * 10_000


@asynccontextmanager
async def fetching(site: Site, **options: Any) -> AsyncIterator[tuple[Fetcher, int]]:
    """A fetcher that takes 127.0.0.1 for a public address, and the port of the site there."""
    async with served(site.app) as url:
        fetcher = Fetcher(resolver=site.resolve, allows=lambda address: address == HERE, **options)
        yield fetcher, httpx.URL(url).port or 0
        await fetcher.aclose()


async def fetch(fetcher: Fetcher, url: str) -> bytes:
    return await fetcher.fetch(7, httpx.URL(url), lambda _: None)


async def test_an_image_of_a_public_host(triton: FakeTriton) -> None:
    site = Site()
    async with fetching(site) as (fetcher, port), gateway(triton.url, fetcher=fetcher) as http:
        body = {"input": [{"image_url": {"url": f"http://photos.example:{port}/hops/2"}}]}
        answer = await http.post("/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        assert np.array_equal(np.array(answer.json()["data"][0]["embedding"], np.float32), fake_vector(PNG_1X1))
        # Other sites at the same address do not get its cookies.
        await fetch(fetcher, f"http://{HERE}:{port}/photo.png")
    assert site.seen == [(f"photos.example:{port}", None), (f"{HERE}:{port}", None)]


@pytest.mark.parametrize(
    ("host", "path", "says"),
    [
        ("photos.example", "/page", "no image"),
        ("photos.example", "/missing", "404"),
        ("photos.example", "/hops/3", "more than 3 times"),
        ("photos.example", "/nowhere", "more than 3 times"),
        ("photos.example", "/held", "took more than"),
        ("photos.example", "/away?to=http://10.0.0.1/photo.png", "public Internet"),
        ("photos.example", "/away?to=http://[::1]/photo.png", "public Internet"),
        ("photos.example", "/away?to=file:///etc/passwd", "http"),
        ("photos.example", "/away?to=http://user:password@photos.example/", "password"),
        ("user@photos.example", "/photo.png", "password"),
        ("mixed.example", "/photo.png", "public Internet"),
        ("rebinding.example", "/hops/0", "public Internet"),
    ],
)
async def test_what_a_site_or_its_name_answers_is_refused(host: str, path: str, says: str) -> None:
    site = Site()
    async with fetching(site, limit_s=1.0) as (fetcher, port):
        with pytest.raises(Refusal, match=f"Item 7 .*{says}") as raised:
            await fetch(fetcher, f"http://{host}:{port}{path}")
    assert (raised.value.status, raised.value.index, site.seen) == (400, 7, [])


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    # DNS rebinding: the second answer names a host inside, which nobody asks for.
    site = Site()
    async with fetching(site) as (fetcher, port):
        assert await fetch(fetcher, f"http://rebinding.example:{port}/photo.png") == PNG_1X1
    assert site.resolved == ["rebinding.example"]


@pytest.mark.parametrize(
    ("limits", "status"), [({"max_body_bytes": 10_000}, 413), ({"max_held_bytes": 10_000}, 503), ({}, 200)]
)
async def test_what_is_fetched_counts_as_part_of_its_request(
    triton: FakeTriton, limits: dict[str, Any], status: int
) -> None:
    async with fetching(Site()) as (fetcher, port), gateway(triton.url, fetcher=fetcher, **limits) as http:
        images = [{"image_url": f"http://photos.example:{port}{path}"} for path in ("/photo.png", "/large")]
        assert (await http.post("/v1/embeddings", json={"input": images})).status_code == status
        # It is no longer held.
        assert (await http.post("/v1/embeddings", json={"input": "a cat"})).status_code == 200


async def test_vectors_of_another_model_are_no_answer(triton: FakeTriton) -> None:
    """The model changes while an image is fetched."""
    site = Site()
    async with fetching(site) as (fetcher, port), gateway(triton.url, fetcher=fetcher) as http:
        body = {"input": {"image_url": f"http://photos.example:{port}/held"}, "model": "fake/random:0"}
        waiting = asyncio.create_task(http.post("/v1/embeddings", json=body))
        await site.asked.wait()
        triton.model, triton.fingerprint = "other", (1, 1)
        while (await http.post("/v1/embeddings", json={"input": data_uri(PNG_1X1)})).status_code != 200:
            pass
        site.released.set()
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ProtocolMismatch")


async def test_many_slow_images_do_not_hold_a_request_for_long(triton: FakeTriton) -> None:
    async with fetching(Site()) as (fetcher, port), gateway(triton.url, fetcher=fetcher, timeout_s=0.5) as http:
        body = {"input": [{"image_url": f"http://photos.example:{port}/held"}] * 2000}
        answer = await http.post("/v1/embeddings", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "DeadlineExceeded")


async def test_the_certificate_must_be_that_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[Any] = []
    wrap = ssl.SSLContext.wrap_bio

    def wrap_bio(self: ssl.SSLContext, incoming: Any, outgoing: Any, *, server_side: bool, server_hostname: Any) -> Any:
        assert self.check_hostname
        names.append(server_hostname)
        return wrap(self, incoming, outgoing, server_side=server_side, server_hostname=server_hostname)

    monkeypatch.setattr(ssl.SSLContext, "wrap_bio", wrap_bio)
    async with fetching(Site()) as (fetcher, port):
        with pytest.raises(Refusal, match="cannot be reached"):  # the site speaks no TLS
            await fetch(fetcher, f"https://photos.example:{port}/photo.png")
    assert names in ([b"photos.example"], ["photos.example"]), "anyio changed the type"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "::1", "::", "fe80::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "2001:db8::1", "fec0::1"),
        # With an IPv4 address inside: mapped, compatible, translated, NAT64, 6to4 and Teredo.
        *("::ffff:127.0.0.1", "::10.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::"),
        "2001:0:0:0:0:0:80ff:fffe",
    ],
)
def test_addresses_around_this_machine_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        # Other spellings of this machine.
        *(
            (f"http://{host}/", "public Internet")
            for host in ("2130706433", "0x7f000001", "017700000001", "127.1", "0")
        ),
        ("http://[::ffff:7f00:1]/", "public Internet"),
        ("http://", "only http"),
        *((url, "cannot be reached") for url in ("http://[", "http://a b/", "http://x:99999/", "https://..")),
    ],
)
async def test_an_odd_url_is_refused(url: str, says: str) -> None:
    fetcher = Fetcher()
    with pytest.raises(Refusal, match=says):
        await fetch(fetcher, url)
    await fetcher.aclose()

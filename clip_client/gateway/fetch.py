"""Fetches images from URLs that strangers send, without letting them reach the network around this machine.

Every address that a name resolves to must be public, and the connection goes to one that was checked: the name is not
resolved again, so its owner cannot answer with another address in between (DNS rebinding). A redirect is a new URL and
is checked in the same way. Proxies of the environment are not used, because they would resolve the name once more.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

import httpx

from clip_client.gateway.errors import Refusal

Address: TypeAlias = IPv4Address | IPv6Address
Hold: TypeAlias = Callable[[int], None]
Resolver: TypeAlias = Callable[[str, int], Awaitable[list[Address]]]

_FETCH_S: Final = 15.0
"""Seconds for one image, redirects included."""
_MOST_REDIRECTS: Final = 3
_AT_ONCE: Final = 16
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_TYPES: Final = ("image/", "application/octet-stream", "binary/octet-stream")

_WITH_IPV4: Final = (ip_network("64:ff9b::/96"), ip_network("::/96"))
"""NAT64, and a form of old: the last 32 bits are an IPv4 address."""
_REFUSED: Final = tuple(map(ip_network, ("168.63.129.16/32", "192.0.0.0/24", "64:ff9b:1::/48", "fec0::/10")))
"""Services of clouds (Azure's wire server, Oracle's metadata) and private networks that Python may call global."""


def is_public(address: Address) -> bool:
    """Whether an address is one of the Internet, and not of this machine, its network, or its cloud's services."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if inner is None and any(address in network for network in _WITH_IPV4):
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast and not any(address in network for network in _REFUSED)


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a host, in the order of preference of the system. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ip_address(str(address[0]).partition("%")[0]) for *_, address in found]


class Fetcher:
    """Fetches images; the defaults of ``resolver`` and ``allows`` are what a gateway uses."""

    def __init__(self, *, resolver: Resolver = resolve, allows: Callable[[Address], bool] = is_public) -> None:
        self._resolve = resolver
        self._allows = allows
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # Without kept connections: one to a checked address might be used for another name.
        self._http = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            timeout=_FETCH_S,
            headers={"accept": "image/*", "accept-encoding": "identity", "user-agent": "clip-gateway"},
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def fetch(self, index: int, url: str, hold: Hold) -> bytes:
        """Return the bytes at ``url``, item ``index`` of its request; ``hold`` counts them as they arrive.

        Raises Refusal that names the item, and what ``hold`` raises.
        """

        def refused(reason: str) -> Refusal:
            return Refusal(400, f"Item {index} cannot be fetched: {reason}.", code="URL_REFUSED", index=index)

        try:
            async with self._slots, asyncio.timeout(_FETCH_S):
                return await self._follow(httpx.URL(url), hold)
        except _CannotFetch as error:
            raise refused(str(error)) from None
        except TimeoutError:
            raise refused(f"it took more than {_FETCH_S:g} s") from None
        except httpx.InvalidURL:
            raise refused("the URL is malformed") from None
        except (OSError, ValueError, httpx.HTTPError):  # ValueError: a name that no DNS query can hold
            raise refused("its server cannot be reached") from None

    async def _follow(self, url: httpx.URL, hold: Hold) -> bytes:
        for _ in range(_MOST_REDIRECTS + 1):
            address = await self._checked(url)
            host = url.netloc.decode("ascii")
            request = self._http.build_request(
                "GET",
                url.copy_with(host=str(address)),
                headers={"host": host},
                extensions={**self._http_extensions, "sni_hostname": url.raw_host.decode("ascii")},
            )
            response = await self._http.send(request, stream=True)
            try:
                if response.status_code not in _REDIRECTS:
                    return await _content(response, hold)
                url = url.join(response.headers.get("location", ""))
            finally:
                await response.aclose()
        raise _CannotFetch(f"it redirects more than {_MOST_REDIRECTS} times")

    _http_extensions: Final = {"timeout": httpx.Timeout(_FETCH_S).as_dict()}

    async def _checked(self, url: httpx.URL) -> Address:
        """Return the address to connect to. Raises _CannotFetch if any address of the host is not allowed."""
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise _CannotFetch("only http and https URLs without a password are")
        addresses = await self._resolve(url.host, url.port or (443 if url.scheme == "https" else 80))
        if not addresses or not all(map(self._allows, addresses)):
            raise _CannotFetch("its host is not on the public Internet")
        return addresses[0]


async def _content(response: httpx.Response, hold: Hold) -> bytes:
    if response.status_code != 200:
        raise _CannotFetch(f"its server answered {response.status_code}")
    if not response.headers.get("content-type", "").lower().startswith(_TYPES):
        raise _CannotFetch("it is no image by its content-type")
    content = bytearray()
    async for chunk in response.aiter_raw():
        hold(len(chunk))
        content += chunk
    return bytes(content)


class _CannotFetch(Exception):
    """Why not, in words that follow "cannot be fetched: "."""

"""Fetches images from URLs that strangers send, without letting them reach the network around this machine.

Every address that a name resolves to must be public, and the connection goes to one that was checked: neither this
process nor a proxy resolves the name again, when its owner could answer with another address (DNS rebinding). A
redirect is a new URL.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

import httpx

from clip_client.gateway.dialect import Refusal

Address: TypeAlias = IPv4Address | IPv6Address
Hold: TypeAlias = Callable[[int], None]
Resolver: TypeAlias = Callable[[str, int], Awaitable[list[Address]]]

_MOST_REDIRECTS: Final = 3
_AT_ONCE: Final = 16
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "clip-gateway"}
_TYPES: Final = ("image/", "application/octet-stream", "binary/octet-stream")

_IPV6: Final = ip_network("2000::/3")
"""What is given to the Internet so far. Everything else, such as ``::ffff:a.b.c.d``, may lead back to IPv4."""
_NAT64: Final = ip_network("64:ff9b::/96")
"""The last 32 bits are an IPv4 address."""
_CLOUDS: Final = tuple(map(ip_network, ("168.63.129.16/32", "192.0.0.0/24")))
"""Azure's wire server and Oracle's metadata, which Python may call global."""


def is_public(address: Address) -> bool:
    """Whether an address is one of the Internet, and not of this machine, its network, or its cloud's services."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast and not any(address in network for network in _CLOUDS)
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address.is_global and address in _IPV6 and not address.sixtofour


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a host, in the order of preference of the system. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ip_address(str(address[0]).partition("%")[0]) for *_, address in found]


class Fetcher:
    """Fetches images, each within ``limit_s`` with its redirects. The defaults are what a gateway uses."""

    def __init__(
        self, *, resolver: Resolver = resolve, allows: Callable[[Address], bool] = is_public, limit_s: float = 15.0
    ) -> None:
        self._resolve = resolver
        self._allows = allows
        self._limit_s = limit_s
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # No client, which would keep cookies and send them to other sites at the same address. No kept connections: one
        # to a checked address might be used for another name.
        self._http = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def fetch(self, index: int, url: httpx.URL, hold: Hold) -> bytes:
        """Return the bytes at ``url``; ``hold`` counts them. Raises Refusal that names item ``index``."""
        try:
            async with self._slots, asyncio.timeout(self._limit_s):
                return await self._follow(url, hold)
        except _CannotFetch as error:
            reason = str(error)
        except TimeoutError:
            reason = f"it took more than {self._limit_s:g} s"
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL):  # ValueError: a name that DNS cannot hold
            reason = "its server cannot be reached"
        raise Refusal(400, f"Item {index} cannot be fetched: {reason}.", code="URL_REFUSED", index=index)

    async def _follow(self, url: httpx.URL, hold: Hold) -> bytes:
        for _ in range(_MOST_REDIRECTS + 1):
            address = await self._checked(url)
            request = httpx.Request(
                "GET",
                url.copy_with(host=str(address)),
                headers={**_HEADERS, "host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": url.raw_host.decode("ascii")},
            )
            response = await self._http.handle_async_request(request)
            try:
                if response.status_code not in _REDIRECTS:
                    return await _content(response, hold)
                url = url.join(response.headers.get("location", ""))
            finally:
                await response.aclose()
        raise _CannotFetch(f"it redirects more than {_MOST_REDIRECTS} times")

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

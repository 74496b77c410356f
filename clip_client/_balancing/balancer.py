"""The servers of one client: which of them gets the next request, and which is left alone for a while."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from clip_client._balancing.concurrency_limit import AdaptiveLimit
from clip_client._balancing.retry import backoff_s
from clip_client._endpoint import EndpointKind
from clip_client._errors import ClipError, DeadlineExceeded, ModelNotReady, Overloaded, Unavailable
from clip_client._transports.factory import resolve_auto

if TYPE_CHECKING:
    import random

    from clip_client._config import ClientConfig
    from clip_client._endpoint import Endpoint
    from clip_client._transports.base import Transport

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port -> numeric addresses."""

MakeTransport = Callable[["Endpoint", str | None], "Transport"]
"""Endpoint, and the name to expect in its certificate where the endpoint is a number -> transport."""

_RESOLVE_EVERY_S: Final = 30.0
_RESOLVE_WHEN_DOWN_S: Final = 5.0
"""Names are looked up again so often; more often while a server is down, since it may come back elsewhere."""


class Server:
    """One address: its connection, its limit, and whether it is left alone just now."""

    def __init__(self, endpoint: Endpoint, transport: Transport, config: ClientConfig) -> None:
        self.endpoint = endpoint
        self.transport = transport
        self.limit = AdaptiveLimit(maximum=config.max_in_flight, target_latency_s=config.target_latency_s)
        self.chosen = 0
        """How often it got the next request; decides between servers with nothing in flight."""
        self.retired = False
        """Its name does not lead here any more; what is in flight may end."""
        self.backoff_until = 0.0
        """Loop time up to which it gets no request."""
        self._failures = 0
        self._failed_at = 0.0

    def __repr__(self) -> str:
        state = "retired" if self.retired else f"{self._failures} failures" if self._failures else "good"
        return f"<Server {self.endpoint} [{state}] {self.limit.in_flight}/{self.limit.limit}>"

    @property
    def is_down(self) -> bool:
        """The last thing heard from it was a failure of the service."""
        return self._failures > 0

    def available_slots(self, now: float, waiting: int, max_batch_size: int) -> int:
        """Rows that the next request may carry; after a failure one request at a time goes out, as a probe."""
        if now < self.backoff_until or (self.is_down and self.limit.in_flight):
            return 0
        return self.limit.available_slots(waiting, max_batch_size)

    def succeeded(self, rows: int, *, started_at: float, now: float, time_given_s: float) -> None:
        """An answer came; what it says about its images is no matter of the server."""
        self.limit.answered(rows, started_at=started_at, now=now, time_given_s=time_given_s)
        self._failures = 0

    def failed(self, rows: int, error: ClipError, *, started_at: float, now: float, randomness: random.Random) -> None:
        """A request failed: shrink the limit, or leave the server alone for a while, or neither."""
        if isinstance(error, Overloaded):
            self.limit.refused(rows, started_at=started_at, now=now)
        elif isinstance(error, DeadlineExceeded):
            self.limit.expired(rows, started_at=started_at, now=now)
        else:
            self.limit.release(rows)
        # Requests that were already on their way when it failed first tell nothing new.
        if isinstance(error, Unavailable | ModelNotReady | Overloaded) and started_at >= self._failed_at:
            self._failures += 1
            self._failed_at = now
            self.backoff_until = now + backoff_s(self._failures, random_source=randomness)


class Balancer:
    """Chooses the server with the least in flight. One connection per address, since gRPC's own balancing knows
    nothing of limits and batches."""

    def __init__(self, config: ClientConfig, make_transport: MakeTransport, *, resolve: Resolver | None = None) -> None:
        self._config = config
        self._make_transport = make_transport
        self._resolve = resolve or _resolve
        self._servers: dict[Endpoint, Server] = {}
        self._retired: list[Server] = []
        self._addresses: dict[Endpoint, Sequence[str]] = {}
        self._settled: dict[Endpoint, Endpoint] = {}
        self._first_look_up = asyncio.Lock()
        self._resolved_at: float | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def servers(self) -> tuple[Server, ...]:
        """Those that get requests."""
        return tuple(self._servers.values())

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Those of the configuration; an AUTO one, once it is settled, as what it turned out to be."""
        return tuple(self._settled.get(endpoint, endpoint) for endpoint in self._config.endpoints)

    async def ensure_resolved(self) -> None:
        """Look the names up for the first time."""
        async with self._first_look_up:
            if self._resolved_at is None:
                await self._look_up()

    def choose(self, waiting: int, max_batch_size: int) -> tuple[Server, int] | None:
        """A server and the number of rows it takes now, or None."""
        now = self._loop.time()
        self._refresh(now)
        offers = [(server, server.available_slots(now, waiting, max_batch_size)) for server in self._servers.values()]
        able = [(server, available_slots) for server, available_slots in offers if available_slots]
        if not able:
            return None
        server, available_slots = min(able, key=lambda offer: (offer[0].limit.in_flight, offer[0].chosen))
        server.chosen += 1
        return server, available_slots

    def next_chance(self) -> float | None:
        """Loop time when a server that rests may be tried again; None where no time but an answer is waited for."""
        now = self._loop.time()
        resting = [server.backoff_until for server in self._servers.values() if server.backoff_until > now]
        return min(resting, default=None)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.wait({self._resolving})
        for server in (*self._servers.values(), *self._retired):
            await server.transport.close()

    def _refresh(self, now: float) -> None:
        period = _RESOLVE_WHEN_DOWN_S if any(server.is_down for server in self._servers.values()) else _RESOLVE_EVERY_S
        if self._resolving is None and (self._resolved_at is None or now - self._resolved_at > period):
            self._resolving = asyncio.create_task(self._look_up(), name="clip_client names")
            self._resolving.add_done_callback(self._looked_up)

    def _looked_up(self, task: asyncio.Task[None]) -> None:
        self._resolving = None
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _look_up(self) -> None:
        found: dict[Endpoint, str | None] = {}
        for endpoint in self.endpoints:
            if endpoint.kind is EndpointKind.AUTO:
                self._settled[endpoint] = endpoint = await resolve_auto(endpoint, self._make_transport)
            addresses = await self._look_up_one(endpoint)
            if len(addresses) > 1:
                found.update({replace(endpoint, host=address): endpoint.host for address in addresses})
            else:
                # gRPC looks a single address up itself, again at each reconnection.
                found[endpoint] = None
        self._resolved_at = self._loop.time()
        for endpoint, name in found.items():
            if endpoint not in self._servers:
                transport = self._make_transport(endpoint, name)
                self._servers[endpoint] = Server(endpoint, transport, self._config)
        for endpoint in [endpoint for endpoint in self._servers if endpoint not in found]:
            server = self._servers.pop(endpoint)
            server.retired = True
            self._retired.append(server)
        for server in [server for server in self._retired if not server.limit.in_flight]:
            self._retired.remove(server)
            await server.transport.close()

    async def _look_up_one(self, endpoint: Endpoint) -> Sequence[str]:
        if endpoint.kind in (EndpointKind.LOCAL, EndpointKind.HTTP):  # aiohttp looks names up itself
            return ()
        # A name server that does not answer takes no server away that is known already. What can be no name, such as
        # a..b, is a UnicodeError, and gRPC will say so.
        with contextlib.suppress(OSError, UnicodeError):
            self._addresses[endpoint] = await self._resolve(endpoint.host, endpoint.port)
        return self._addresses.get(endpoint, ())


async def _resolve(host: str, port: int) -> Sequence[str]:
    if host == "localhost":
        # Two addresses, one server.
        return ()
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A host with addresses of both kinds is one server, not two.
    family = socket.AF_INET if any(info[0] == socket.AF_INET for info in found) else socket.AF_INET6
    return tuple(dict.fromkeys(str(info[4][0]) for info in found if info[0] == family))

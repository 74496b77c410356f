"""The servers of one client: the choice for the next request, the back-off from each server, and the retries."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from clip_client._balancing.concurrency_limit import AdaptiveLimit
from clip_client._config import ClientConfig
from clip_client._deadline import Deadline
from clip_client._endpoint import Endpoint, EndpointKind
from clip_client._errors import ClipError, DeadlineExceeded, ModelNotReady, Overloaded, Unavailable
from clip_client._results import ServerStats
from clip_client._transports.base import Transport, TransportFactory
from clip_client._transports.factory import resolve_auto

RETRIED: Final = (Unavailable, Overloaded, ModelNotReady)
"""Errors after which a request is sent to the same server again. A bad image stays bad, and a refused token refused."""
_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 1.0  # a server that is up again is noticed within this time
_BUDGET: Final = 100.0  # tokens at first, and at most: those of 20 s
_BUDGET_PER_S: Final = 5.0
_BUDGET_PER_SUCCESS: Final = 0.1
_random: Final = random.SystemRandom()  # differs between programs, even if they seed ``random`` in the same way
_RESOLVE_EVERY_S: Final = 30.0
_RESOLVE_WHEN_DOWN_S: Final = 5.0
"""Seconds between look-ups of names: normally, and while a server is down, because it may come back elsewhere."""


def backoff_s(failures: int) -> float:
    """Return the seconds to back off after this many failures in a row (1 or more).

    This is the "full jitter" of Brooker, "Exponential Backoff And Jitter" (AWS, 2015), so that clients that lost a
    server together do not reconnect together.
    """
    doublings = min(failures - 1, 30)  # an outage of hours must not overflow
    return _random.uniform(0.0, min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0**doublings))


class RetryBudget:
    """Tokens for retries: each success earns 0.1, each second earns 5, and a retry costs 1 (as in Finagle).

    In an outage this allows five retries a second, enough to probe two dead servers twice a second.
    """

    def __init__(self, now: float) -> None:
        self._tokens = _BUDGET
        self._updated = now

    def success(self) -> None:
        self._tokens += _BUDGET_PER_SUCCESS

    def spend(self, now: float) -> bool:
        self._tokens = min(_BUDGET, self._tokens + (now - self._updated) * _BUDGET_PER_S)
        self._updated = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Server:
    """One address: its connection, its concurrency limit and its back-off."""

    def __init__(self, endpoint: Endpoint, transport: Transport, config: ClientConfig) -> None:
        self.endpoint = endpoint
        self.transport = transport
        self.limit = AdaptiveLimit(maximum=config.max_in_flight, target_latency_s=config.target_latency_s)
        self.times_chosen = 0
        self.backoff_until = 0.0  # loop time until which it gets no requests
        self._failures = 0
        self._failed_at = 0.0
        self.failure = ""  # sentence about the failure for which it is down, with its address

    @property
    def is_down(self) -> bool:
        return self._failures > 0

    @property
    def load(self) -> tuple[int, int]:
        return self.limit.in_flight, self.times_chosen

    def stats(self) -> ServerStats:
        return ServerStats(
            url=str(self.endpoint),
            images_in_flight=self.limit.in_flight,
            limit=self.limit.limit,
            latency_s=self.limit.latency_s,
            is_down=self.is_down,
        )

    def available_slots(self, now: float, waiting: int, max_batch_size: int) -> int:
        """Return the number of images that the next request may carry. After a failure, send one request at a time."""
        if now < self.backoff_until or (self._failures and self.limit.in_flight):
            return 0
        return self.limit.available_slots(waiting, max_batch_size)

    def succeeded(self, images: int, *, started_at: float, now: float, time_given_s: float) -> None:
        self.limit.answered(images, started_at=started_at, now=now, time_given_s=time_given_s)
        self._failures = 0

    def failed(self, images: int, error: ClipError, *, started_at: float, now: float, has_other: bool) -> None:
        """Record a failed request: shrink the limit, back off, both or neither. ``has_other``: another server works."""
        if isinstance(error, Overloaded):
            self.limit.refused(images, started_at=started_at, now=now)
        elif isinstance(error, DeadlineExceeded):
            self.limit.expired(images, started_at=started_at, now=now)
        else:
            self.limit.release(images)
        # If other servers work, back off even after errors that are not retried: a server that fails at once would have
        # the fewest images in flight and attract all requests. A single server may fail because of its requests.
        backs_off = isinstance(error, RETRIED) or (has_other and not isinstance(error, DeadlineExceeded))
        # Ignore requests that were already in flight at the first failure, because they add no information.
        if backs_off and started_at >= self._failed_at:
            self._failures += 1
            self._failed_at, self.failure = now, error.message
            self.backoff_until = now + backoff_s(self._failures)


class Balancer:
    """Chooses the server with the fewest images in flight, of one per address: gRPC's balancing ignores batches."""

    def __init__(self, config: ClientConfig, connect: TransportFactory) -> None:
        self.endpoints = config.endpoints  # an AUTO endpoint is replaced by the endpoint that it resolves to
        self._config = config
        self._connect = connect
        self._loop = asyncio.get_running_loop()

        # A server is in _servers while its name leads to it. Then it is in _retired until its last request has ended.
        self._servers: dict[Endpoint, Server] = {}
        self._retired: list[Server] = []
        self._addresses: dict[Endpoint, Sequence[str]] = {}  # from the last successful look-up of each name
        self._first_look_up = asyncio.Lock()
        self._resolved: Deadline | None = None  # begins at the last look-up of the names
        self._resolving: asyncio.Task[None] | None = None
        self.chose_at = 0.0  # loop time of the last choice

    @property
    def servers(self) -> tuple[Server, ...]:
        return tuple(self._servers.values())

    async def ensure_resolved(self) -> None:
        async with self._first_look_up:
            if self._resolved is None:
                await self._look_up()

    def choose(self, waiting: int, max_batch_size: int) -> tuple[Server, int] | None:
        """Return a server and the number of images that it takes now; None if all servers are busy or back off."""
        now = self.chose_at = self._loop.time()
        self._refresh()
        best, most = None, 0
        for server in self._servers.values():
            slots = server.available_slots(now, waiting, max_batch_size)
            if slots and (best is None or server.load < best.load):
                best, most = server, slots
        if best is None:
            return None
        best.times_chosen += 1
        return best, most

    def has_other(self, server: Server) -> bool:
        """Return whether the last request of some server besides ``server`` did not fail."""
        return any(not other.is_down for other in self._servers.values() if other is not server)

    def why_down(self) -> str:
        """Return the failures of all servers that are down, each behind a space, to follow another sentence."""
        return "".join(f" {one.failure}" for one in self._servers.values() if one.is_down)

    def next_attempt_at(self) -> float | None:
        """Return the loop time at which the first back-off of the last choice ends; None without a back-off."""
        times = [one.backoff_until for one in self._servers.values() if one.backoff_until > self.chose_at]
        return min(times, default=None)

    async def aclose(self) -> None:
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.wait({self._resolving})
        for server in (*self._servers.values(), *self._retired):
            await server.transport.close()

    def _refresh(self) -> None:
        if self._resolved is None or (self._resolving is not None and not self._resolving.done()):
            return
        elapsed, servers = self._resolved.elapsed, self._servers.values()
        if elapsed > _RESOLVE_EVERY_S or (elapsed > _RESOLVE_WHEN_DOWN_S and any(one.is_down for one in servers)):
            self._resolving = asyncio.create_task(self._look_up(), name="clip_client names")

    async def _look_up(self) -> None:
        if self.endpoints[0].kind is EndpointKind.AUTO:  # it is the only one
            self.endpoints = (await resolve_auto(self.endpoints[0], self._connect),)
        found: dict[Endpoint, str | None] = {}
        for endpoint in self.endpoints:
            addresses = await self._addresses_of(endpoint)
            if len(addresses) > 1:
                found.update({replace(endpoint, host=address): endpoint.host for address in addresses})
            else:
                # Leave a single address to gRPC, which looks the name up again at each reconnection.
                found[endpoint] = None
        self._resolved = Deadline(_RESOLVE_EVERY_S)
        for endpoint, name in found.items():
            if endpoint not in self._servers:
                self._servers[endpoint] = Server(endpoint, self._connect(endpoint, name), self._config)
        self._retired += [self._servers.pop(endpoint) for endpoint in list(self._servers) if endpoint not in found]
        for server in [server for server in self._retired if not server.limit.in_flight]:
            self._retired.remove(server)
            await server.transport.close()

    async def _addresses_of(self, endpoint: Endpoint) -> Sequence[str]:
        # localhost has two addresses, 127.0.0.1 and ::1, but is one server.
        if endpoint.kind is EndpointKind.LOCAL or endpoint.host == "localhost":
            return ()
        # If the name server does not answer, keep the known addresses. An impossible name such as a..b raises
        # UnicodeError, and gRPC will report it.
        with contextlib.suppress(OSError, UnicodeError):
            found = await self._loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            # A host with IPv4 and IPv6 addresses is one server, not two.
            family = socket.AF_INET if any(info[0] == socket.AF_INET for info in found) else socket.AF_INET6
            self._addresses[endpoint] = tuple(dict.fromkeys(str(one[4][0]) for one in found if one[0] == family))
        return self._addresses.get(endpoint, ())

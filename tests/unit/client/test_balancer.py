"""Servers, their choice and their names, one decision at a time, without a client: times are simulated."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clip_client import ClientConfig, ClipError, DeadlineExceeded, ModelNotReady, Overloaded, Unauthorized, Unavailable
from clip_client._balancing.balancer import Balancer, RetryBudget, Server, backoff_s
from clip_client._endpoint import Endpoint, EndpointKind
from clip_client._transports.base import Transport
from clip_client.testing import FakeTriton
from tests.fixtures.fakes import InMemoryTransports
from tests.fixtures.simulated_time import SimulatedLoop, simulated

NAME = "clip.example.org"
FIRST, SECOND, THIRD = "192.0.2.1", "192.0.2.2", "192.0.2.3"


@pytest.fixture
def longest_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clip_client._balancing.balancer._random.uniform", lambda _, most: most)


def new_server(**options: Any) -> Server:
    config = ClientConfig(**options)
    endpoint = config.endpoints[0]
    return Server(endpoint, InMemoryTransports({"localhost": FakeTriton()})(endpoint, None), config)


def fail(server: Server, error: ClipError, *, started_at: float, now: float, has_other: bool = False) -> None:
    server.limit.started(4)
    server.failed(4, error, started_at=started_at, now=now, has_other=has_other)


@pytest.mark.parametrize(
    ("error", "has_other", "limit", "backs_off"),
    [
        (Unavailable("x"), False, 16, True),
        (ModelNotReady("x"), False, 16, True),
        (Overloaded("x"), False, 8, True),
        (DeadlineExceeded("x"), False, 8, False),
        (DeadlineExceeded("x"), True, 8, False),
        (Unauthorized("x"), False, 16, False),
        (ClipError("x"), False, 16, False),
        (ClipError("x"), True, 16, True),
    ],
)
@pytest.mark.usefixtures("longest_back_off")
def test_a_failure_shrinks_the_limit_or_backs_off_or_both(
    error: ClipError, has_other: bool, limit: int, backs_off: bool
) -> None:
    """One that is alone backs off only after what is retried."""
    server = new_server()
    server.limit.started(3)
    for _ in range(2):  # a second one of the same round trip adds no information
        fail(server, error, started_at=1.0, now=2.0, has_other=has_other)
        assert (server.limit.limit, server.limit.in_flight) == (limit, 3)
        assert server.backoff_until == (2.1 if backs_off else 0.0)
        assert server.is_down is backs_off


@pytest.mark.usefixtures("longest_back_off")
def test_the_back_off_doubles_until_an_answer_comes() -> None:
    server = new_server()
    for now, backoff_until in ((0.5, 0.6), (3.0, 3.2), (4.0, 4.4)):
        fail(server, Unavailable("x"), started_at=now - 0.5, now=now)
        assert server.backoff_until == pytest.approx(backoff_until)
    was_down = server.is_down
    server.limit.started(4)
    server.succeeded(4, started_at=5.0, now=5.25, time_given_s=60.0)
    assert (was_down, server.is_down) == (True, False)
    fail(server, Unavailable("x"), started_at=5.5, now=6.0)
    assert server.backoff_until == 6.1


@pytest.mark.usefixtures("longest_back_off")
def test_a_server_takes_nothing_during_its_back_off_and_then_one_request() -> None:
    server = new_server(max_in_flight=10)
    fail(server, Unavailable("x"), started_at=1.0, now=2.0)
    assert server.available_slots(2.0625, 100, 32) == 0
    assert server.available_slots(server.backoff_until, 100, 32) == 5
    server.limit.started(1)
    assert server.available_slots(server.backoff_until, 100, 32) == 0
    server.succeeded(1, started_at=2.5, now=2.75, time_given_s=60.0)
    server.limit.started(1)
    assert [server.available_slots(3.0, *both) for both in ((100, 32), (2, 32), (100, 3))] == [5, 2, 3]
    stats = server.stats()
    assert (stats.url, stats.images_in_flight, stats.limit) == ("grpc://localhost:8001", 1, 10)
    assert (stats.latency_s, stats.is_down) == (0.25, False)


def test_backoff_is_full_jitter_below_a_growing_cap() -> None:
    for failures, cap in ((1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (50, 1.0), (5000, 1.0)):
        delays = [backoff_s(failures) for _ in range(400)]
        assert 0 <= min(delays) < 0.1 * cap
        assert 0.9 * cap < max(delays) <= cap


def test_the_budget_is_used_up_and_earned_back_by_time_and_success() -> None:
    budget = RetryBudget(now=0.0)
    assert sum(budget.spend(0.0) for _ in range(1000)) == 100
    assert [budget.spend(0.3) for _ in range(2)] == [True, False]
    for _ in range(11):
        budget.success()
    assert [budget.spend(0.3) for _ in range(2)] == [True, False]


def test_the_budget_is_capped() -> None:
    """Neither idle hours nor a million answers may allow a storm of retries later."""
    budget = RetryBudget(now=0.0)
    for _ in range(10_000):
        budget.success()
    assert [sum(budget.spend(now) for _ in range(1000)) for now in (0.0, 3600.0, 3602.0)] == [100, 100, 10]


class Network:
    """Servers at addresses, names that lead to them, and a balancer."""

    def __init__(self, *urls: str) -> None:
        self.names: dict[str, Any] = {NAME: [FIRST, SECOND]}
        hosts = ["", NAME, FIRST, SECOND, THIRD, "2001:db8::1", "2001:db8::2", "a", "b", "c", "localhost", "a..b"]
        self.transports = InMemoryTransports({host: FakeTriton() for host in hosts})
        self.named: list[tuple[str, str | None]] = []
        """URL and name of each connection."""
        self._config = ClientConfig(urls=urls or (f"{NAME}:8001",))

    def connect(self, endpoint: Endpoint, server_name: str | None) -> Transport:
        self.named.append((str(endpoint), server_name))
        return self.transports(endpoint, server_name)

    @asynccontextmanager
    async def balancer(self) -> AsyncIterator[Balancer]:
        """Give a balancer that has looked all names up; in the end, all connections are closed."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.names = self.names
        balancer = Balancer(self._config, self.connect)
        await asyncio.gather(balancer.ensure_resolved(), balancer.ensure_resolved())
        yield balancer
        await balancer.aclose()
        assert all(channel.closed for opened in self.transports.channels.values() for channel in opened)

    def is_closed(self, host: str) -> bool:
        (channel,) = self.transports.channels[host]
        return channel.closed


def hosts(balancer: Balancer) -> list[str]:
    return [server.endpoint.host for server in balancer.servers]


async def look_up_again(balancer: Balancer, after_s: float = 31.0) -> None:
    await asyncio.sleep(after_s)
    balancer.choose(1, 1)
    await asyncio.sleep(0.0625)


@simulated
async def test_the_server_with_the_fewest_images_in_flight_is_chosen_then_the_one_chosen_least() -> None:
    async with Network("a", "b", "c").balancer() as balancer:
        assert hosts(balancer) == ["a", "b", "c"]
        chosen = [balancer.choose(4, 32) for _ in range(7)]
        assert [choice and (choice[0].endpoint.host, choice[1]) for choice in chosen] == [(a, 4) for a in "abcabca"]
        first, second, third = balancer.servers
        first.limit.started(1)
        second.limit.started(2)
        third.limit.started(3)
        assert balancer.choose(4, 2) == (first, 2)
        first.backoff_until = second.backoff_until = 50.0
        assert balancer.choose(4, 32) == (third, 4)
        third.limit.started(13)
        assert balancer.choose(4, 32) is None


@simulated
async def test_the_next_attempt_is_at_the_end_of_the_first_back_off() -> None:
    async with Network("a", "b", "c").balancer() as balancer:
        assert balancer.next_attempt_at() is None
        await asyncio.sleep(10.0)
        for server, until in zip(balancer.servers, (10.0, 12.0, 11.0), strict=True):
            server.backoff_until = until
        balancer.choose(1, 1)
        assert balancer.next_attempt_at() == 11.0
        await asyncio.sleep(1.5)
        assert balancer.next_attempt_at() == 11.0, "it has ended since the choice, so the next choice is due"


@pytest.mark.parametrize(
    ("url", "addresses", "servers"),
    [
        (NAME, ["2001:db8::1", FIRST, SECOND], [f"grpc://{FIRST}:8001", f"grpc://{SECOND}:8001"]),
        (NAME, ["2001:db8::1", "2001:db8::2"], ["grpc://[2001:db8::1]:8001", "grpc://[2001:db8::2]:8001"]),
        (NAME, ["2001:db8::1", FIRST], [f"grpc://{NAME}:8001"]),
        (NAME, [FIRST, FIRST], [f"grpc://{NAME}:8001"]),
        ("localhost", ["127.0.0.1", "127.0.0.2"], ["grpc://localhost:8001"]),
        ("local:", [FIRST, SECOND], ["local:"]),
        (f"{NAME}:8005", socket.gaierror("no name server answers"), [f"grpc://{NAME}:8005"]),
        ("a..b", UnicodeError("an impossible name"), ["grpc://a..b:8001"]),
    ],
    ids=[
        "both kinds", "IPv6 only", "one of each kind", "one address twice", "this machine", "this process",
        "not found", "impossible",
    ],
)  # fmt: skip
@simulated
async def test_several_addresses_of_one_kind_are_several_servers(
    url: str, addresses: list[str] | Exception, servers: list[str]
) -> None:
    network = Network(url)
    network.names = dict.fromkeys((NAME, "localhost", "", "a..b"), addresses)
    async with network.balancer() as balancer:
        assert [str(server.endpoint) for server in balancer.servers] == servers


@simulated
async def test_the_first_look_up_connects_by_address_and_lasts_while_no_name_server_answers() -> None:
    network = Network()
    async with network.balancer() as balancer:
        await balancer.ensure_resolved()
        assert hosts(balancer) == [FIRST, SECOND]
        assert [endpoint.host for endpoint in balancer.endpoints] == [NAME]
        del network.names[NAME]
        for _ in range(2):
            await look_up_again(balancer)
            assert hosts(balancer) == [FIRST, SECOND]
    assert network.named == [(f"grpc://{FIRST}:8001", NAME), (f"grpc://{SECOND}:8001", NAME)]


@pytest.mark.parametrize(("is_down", "period_s"), [(False, 30.0), (True, 5.0)])
@simulated
async def test_names_are_looked_up_again_after_more_than_their_period(is_down: bool, period_s: float) -> None:
    network = Network()
    async with network.balancer() as balancer:
        if is_down:
            fail(balancer.servers[1], Unavailable("x"), started_at=0.0, now=0.0)
        network.names[NAME] = [SECOND, THIRD]
        await look_up_again(balancer, period_s)
        assert hosts(balancer) == [FIRST, SECOND]
        balancer.choose(1, 1)
        balancer.choose(1, 1)
        await asyncio.sleep(0.0625)
        assert hosts(balancer) == [SECOND, THIRD]
        assert network.is_closed(FIRST)
        assert not network.is_closed(SECOND)
    assert len(network.named) == 3


@simulated
async def test_a_server_that_left_its_name_is_closed_after_its_last_request() -> None:
    network = Network()
    async with network.balancer() as balancer:
        first, second = balancer.servers
        first.limit.started(2)
        network.names[NAME] = [SECOND, THIRD]
        await look_up_again(balancer)
        assert hosts(balancer) == [SECOND, THIRD]
        assert balancer.servers[0] is second
        assert not network.is_closed(FIRST)
        first.succeeded(2, started_at=0.0, now=1.0, time_given_s=9.0)
        await look_up_again(balancer)
        assert network.is_closed(FIRST)
        # One that is still at work is closed with the client.
        second.limit.started(2)
        network.names[NAME] = [THIRD, FIRST]
        await look_up_again(balancer)
        assert not network.is_closed(SECOND)


@simulated
async def test_what_auto_stands_for_is_decided_once() -> None:
    network = Network(f"auto:grpc://{NAME}:8001")
    async with network.balancer() as balancer:
        for _ in range(2):
            assert [endpoint.kind for endpoint in balancer.endpoints] == [EndpointKind.GRPC]
            assert hosts(balancer) == [FIRST, SECOND]
            await look_up_again(balancer)
    assert [url for url, _ in network.named].count(f"grpc://{NAME}:8001") == 1


@simulated
async def test_a_defect_in_a_look_up_is_reported_and_the_next_one_is_made() -> None:
    network = Network()
    reported: list[Any] = []
    async with network.balancer() as balancer:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        network.names[NAME] = [SECOND, THIRD]
        servers, network.transports.servers = network.transports.servers, {}
        await look_up_again(balancer)
        network.transports.servers = servers
        await look_up_again(balancer)
        assert hosts(balancer) == [SECOND, THIRD]
        assert [type(error) for error in reported] == [KeyError]


@simulated
async def test_closing_cancels_a_look_up() -> None:
    async def getaddrinfo(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async with Network("a").balancer() as balancer:
        asyncio.get_running_loop().getaddrinfo = getaddrinfo  # type: ignore[assignment,method-assign]
        await look_up_again(balancer)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "clip_client names"]
    assert task.cancelled()

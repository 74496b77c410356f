"""The adaptive limit against a simulated server: a FIFO queue that never refuses, as Triton is."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

import pytest

from clip_client._balancing.concurrency_limit import AdaptiveLimit

MAX_BATCH = 32
TIMEOUT_S = 10.0


@dataclass
class FifoServer:
    """Serves one request after the other; a request of n images takes ``fixed_s + n * per_image_s``."""

    fixed_s: float
    per_image_s: float
    free_at: float = 0.0

    def serve(self, images: int, now: float) -> float:
        self.free_at = max(self.free_at, now) + self.fixed_s + images * self.per_image_s
        return self.free_at

    @property
    def capacity(self) -> float:
        return MAX_BATCH / (self.fixed_s + MAX_BATCH * self.per_image_s)


@dataclass
class Outcome:
    images: list[int]
    latencies: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    """The number of images of each request, in the order sent."""


def simulate(server: FifoServer, limits: list[AdaptiveLimit], *, until: float) -> Outcome:
    """Run clients that always have more to send; count the images that each completed before ``until``."""
    outcome = Outcome(images=[0] * len(limits))
    events: list[tuple[float, int, int, float]] = []

    def send(client: int, now: float) -> None:
        while available_slots := limits[client].available_slots(10**9, MAX_BATCH):
            limits[client].started(available_slots)
            outcome.requests.append(available_slots)
            heapq.heappush(events, (server.serve(available_slots, now), client, available_slots, now))

    for client in range(len(limits)):
        send(client, 0.0)
    while events and events[0][0] < until:
        now, client, images, started_at = heapq.heappop(events)
        limits[client].answered(images, started_at=started_at, now=now, time_given_s=TIMEOUT_S)
        outcome.images[client] += images
        outcome.latencies.append(now - started_at)
        send(client, now)
    return outcome


def new_limit(maximum: int = 256, *, target_s: float = 0.5) -> AdaptiveLimit:
    return AdaptiveLimit(maximum=maximum, target_latency_s=target_s)


def answer(limit: AdaptiveLimit, images: int, started_at: float, now: float, time_given_s: float = TIMEOUT_S) -> None:
    limit.started(images)
    limit.answered(images, started_at=started_at, now=now, time_given_s=time_given_s)


@pytest.mark.parametrize(
    "server",
    [FifoServer(0.002, 0.0005), FifoServer(0.0, 0.05), FifoServer(0.02, 0.0001)],
    ids=["gpu", "cpu", "overhead"],
)
@pytest.mark.parametrize("clients", [1, 4])
def test_backlogged_clients_use_the_server_share_it_and_keep_its_queue_short(server: FifoServer, clients: int) -> None:
    outcome = simulate(replace(server), [new_limit() for _ in range(clients)], until=60.0)
    assert sum(outcome.images) >= 0.9 * server.capacity * 60.0
    assert min(outcome.images) > 0.4 * max(outcome.images)
    late = sorted(outcome.latencies[len(outcome.latencies) // 2 :])
    assert late[len(late) // 2] < 0.6


def test_the_limit_shrinks_when_the_server_slows_down_and_grows_again() -> None:
    limit = new_limit()
    limits = []
    for per_image_s in (0.0002, 0.004, 0.0002):
        limit.in_flight = 0
        simulate(FifoServer(0.002, per_image_s), [limit], until=5.0)
        limits.append(limit.limit)
    before, slow, after = limits
    assert slow < before / 2
    assert after > 1.5 * slow


def test_a_limit_that_makes_no_image_wait_does_not_grow() -> None:
    # Thirty callers, one image each, all at once: the limit grows until it lets all through, and no further.
    limit, now = new_limit(), 0.0
    answer(limit, 1, -1.0, -0.99)
    assert limit.limit == 16
    for _ in range(100):
        for _ in range(30):
            limit.started(limit.available_slots(1, MAX_BATCH))
        now += 0.01
        for _ in range(limit.in_flight):
            limit.answered(1, started_at=now - 0.01, now=now, time_given_s=TIMEOUT_S)
    assert 30 <= limit.limit <= 32


def test_never_below_one_and_never_above_the_maximum() -> None:
    limit = new_limit(maximum=20)
    for step in range(50):
        limit.started(1)
        limit.refused(1, started_at=step, now=step + 0.5)
    assert limit.limit == 1
    assert limit.available_slots(5, MAX_BATCH) == 1
    for step in range(5000):
        assert limit.available_slots(10**9, MAX_BATCH)
        answer(limit, 1, 100.0 + step, 100.001 + step)
    assert limit.limit == 20


def test_requests_are_not_too_small() -> None:
    limit = new_limit()
    assert limit.limit == 16
    assert limit.available_slots(100, MAX_BATCH) == 8
    limit.started(15)
    # One slot is free; waiting for the next answer gives a request of eight.
    assert limit.available_slots(100, MAX_BATCH) == 0
    # But a request with all waiting images is sent at once.
    assert limit.available_slots(1, MAX_BATCH) == 1


def test_one_image_that_waits_lets_the_limit_grow() -> None:
    limit = new_limit()
    for waiting, slots in ((100, 8), (1, 1)):
        assert limit.available_slots(waiting, MAX_BATCH) == slots
        limit.started(slots)
    limit.answered(8, started_at=0.0, now=0.1, time_given_s=TIMEOUT_S)
    assert limit.limit == 24


@pytest.mark.parametrize("per_image_s", [0.02, 0.05, 0.2])
def test_a_request_is_about_half_of_the_target_latency_of_work(per_image_s: float) -> None:
    # The server decodes what a cancelled caller has sent, before what others send.
    sent = simulate(FifoServer(0.0, per_image_s), [new_limit(target_s=2.0)], until=120.0).requests
    assert max(sent[len(sent) // 2 :]) * per_image_s <= 1.25


@pytest.mark.parametrize(
    ("answered_in_s", "cancelled"),
    [
        (None, [(1.0, 1.03125, 1.0625)]),
        (None, [(1.0, 1.5, 1.0625), (1.5, 2.0, 1.625)]),
        (0.125, [(2.5, 2.5625, 2.625), (2.515625, 2.5625, 2.640625), (3.0, 3.0625, 3.25), (3.5, 3.5625, 4.0)]),
        (0.375, [(2.5, 2.5625, 2.875), (3.0, 3.0625, 3.5)]),
        (2.0, [(3.0, 3.5, 5.0), (6.0, 6.5, 8.0)]),
    ],
    ids=[
        "an eighth of the target before the first answer",
        "sent at the very cancellation: the next round trip",
        "as an answer takes, twice as long for each round trip without one",
        "at most the target",
        "a slow server: longer than the target",
    ],
)
def test_a_cancelled_request_keeps_its_slots_as_long_as_an_answer_takes(
    answered_in_s: float | None, cancelled: list[tuple[float, float, float]]
) -> None:
    """(Sent, cancelled, released); an answer between makes it as at first."""
    limit = new_limit()
    for round_trip_s in (0.0, 100.0) if answered_in_s else (0.0,):
        if answered_in_s:
            answer(limit, 8, round_trip_s, round_trip_s + answered_in_s)
        for started_at, now, released_at in cancelled:
            found = limit.cancelled(started_at=round_trip_s + started_at, now=round_trip_s + now)
            assert found == round_trip_s + released_at
    assert limit.in_flight == 0


def test_the_latency_is_a_running_mean() -> None:
    limit = new_limit()
    answer(limit, 1, 0.0, 0.1)
    answer(limit, 1, 0.0, 0.9)
    assert limit.latency_s == pytest.approx(0.1 + (0.9 - 0.1) / 8)


def limit_after(fastest_s: float) -> AdaptiveLimit:
    """A limit of 16 whose one answer so far took ``fastest_s``."""
    limit = new_limit(target_s=10.0)
    answer(limit, 1, 0.0, fastest_s, 1000.0)
    return limit


@pytest.mark.parametrize(
    ("fastest_s", "time_given_s", "longest_s"),
    [(0.25, 12.0, 3.0), (0.25, 0.5, 0.5), (2.0, 6.0, 4.0), (0.25, 1000.0, 10.0)],
    ids=["a quarter of the time given", "twice the fastest answer", "a slow server", "the target"],
)
def test_an_answer_is_late_only_beyond_its_longest_time(
    fastest_s: float, time_given_s: float, longest_s: float
) -> None:
    for latency_s, expected in ((longest_s, 16), (longest_s + 0.015625, 12)):
        limit = limit_after(fastest_s)
        answer(limit, 8, 100.0, 100.0 + latency_s, time_given_s)
        assert limit.limit == expected


def test_a_deadline_counts_only_if_an_idle_server_would_have_met_it_twice() -> None:
    limit = limit_after(0.5)
    # Two requests of one round trip expire: one decrease.
    for started_at, now, expected in ((10.0, 11.0, 16), (20.0, 21.25, 8), (20.0, 21.5, 8)):
        limit.started(8)
        limit.expired(8, started_at=started_at, now=now)
        assert limit.limit == expected

"""The order of sending, the choice of a server, and the end of each image, in simulated time."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest

from clip_client import ClipError, DeadlineExceeded, Overloaded
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import LOST, NEVER, images, now, paced, scripted
from tests.fixtures.simulated_time import connected, simulated

FULL = Reply(status=grpc.StatusCode.RESOURCE_EXHAUSTED, details="upstream overflow")
DEFECT = Reply(status=grpc.StatusCode.INTERNAL, details="boom")


@simulated
async def test_a_server_that_fails_at_once_does_not_attract_the_requests() -> None:
    """The failing server always has the fewest images in flight. The healthy server gets its images: no call fails."""
    good, bad = scripted(then=Reply(delay_s=0.05)), scripted(then=DEFECT)
    async with connected(good, bad) as clip:
        assert (await clip.embed(images(3000))).errors == {}
        assert bad.requests_received < good.requests_received / 3
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert (await clip.embed(b"a")).errors == {}
        assert 5 < bad.requests_received < 60, "it is tried again, about twice a second"
        bad.answer_always(Reply())
        await asyncio.sleep(1)  # the longest back-off
        assert (await clip.embed(images(1000))).errors == {}
        assert bad.images_embedded > 300


@simulated
async def test_a_request_that_every_server_fails_on_fails() -> None:
    """Callers who shared it do not share its error: raising an exception adds to its traceback."""
    servers = [scripted(DEFECT) for _ in range(3)]
    async with connected(*servers) as clip:
        first, second = await asyncio.gather(clip.embed(b"a"), clip.embed(b"b"), return_exceptions=True)
        assert [len(server.requests) for server in servers] == [1, 1, 1]
        assert (type(first), type(second)) == (ClipError, ClipError)
        assert "failed on this request" in str(first) == str(second)
        assert first is not second


@simulated
async def test_retried_images_go_before_waiting_ones() -> None:
    """An ordered stream waits for these."""
    server = scripted(LOST, then=Reply(delay_s=0.01))
    async with connected(server) as clip:
        assert (await clip.embed(images(64))).errors == {}
        first, second, third = (request.images for request in server.requests[:3])
        assert first == tuple(images(8))
        assert second == tuple(images(8, first=8))
        assert third[:8] == first


@simulated
async def test_an_image_to_retry_fails_at_its_deadline_while_its_server_is_busy() -> None:
    server = scripted(Reply(status=grpc.StatusCode.UNAVAILABLE, details="Socket closed", delay_s=4), NEVER)
    async with connected(server, timeout_s=5.0) as clip:
        with pytest.raises(DeadlineExceeded, match="before a server took the image"):
            await anext(clip.embed_stream(paced([b"first", b"second"], 3)))
        assert now() == pytest.approx(5, abs=0.01)


@simulated
async def test_an_outage_is_no_overload() -> None:
    """An image that waited because its server was down is not shed."""
    server = scripted(then=Reply(delay_s=3))
    async with connected(server) as clip:
        await clip.embed(b"shows how long an answer takes")
        server.ready_models.clear()
        call = asyncio.create_task(clip.embed(b"a", timeout_s=10))
        await asyncio.sleep(5.5)
        server.ready_models.add("clip_image")
        assert (await call).errors == {}
        assert clip.stats().images_shed == 0


@pytest.mark.parametrize(
    ("latency_s", "timeout_s", "waits_s"),
    [(3.0, 4.0, 0.0), (0.01, 10.0, 6.0)],
    ids=["in a hurry, and first", "late, and quickly done"],
)
@simulated
async def test_an_image_that_can_be_back_in_time_is_sent(latency_s: float, timeout_s: float, waits_s: float) -> None:
    server = scripted(Reply(delay_s=latency_s), Reply(delay_s=waits_s), Reply(delay_s=latency_s))
    async with connected(server, max_in_flight=1) as clip:
        await clip.embed(b"shows how long an answer takes")
        before = asyncio.create_task(clip.embed(b"is in the way"))
        if not waits_s:
            await before
        await asyncio.sleep(0.001)
        assert (await clip.embed(b"a", timeout_s=timeout_s)).errors == {}
        await before


@simulated
async def test_what_counts_as_late_is_decided_by_the_caller_with_the_least_time() -> None:
    server = scripted(Reply(delay_s=0.01), Reply(delay_s=1.5))
    async with connected(server) as clip:
        await asyncio.gather(clip.embed(b"shows how long"), clip.embed(b"an answer takes"))
        await asyncio.gather(clip.embed(b"a", timeout_s=4), clip.embed(b"b", timeout_s=100))
        assert len(server.requests) == 2
        assert clip.stats().servers[0].limit == 12


@simulated
async def test_a_cancelled_call_frees_the_queue_and_the_server() -> None:
    async with connected(scripted(then=NEVER)) as clip:
        first, other, big, few = (asyncio.create_task(clip.embed(images(count))) for count in (16, 1, 400, 20))
        await asyncio.sleep(1)
        assert (clip.stats().images_in_flight, clip.stats().images_waiting) == (16, 421)
        for call, in_flight, waiting in ((few, 16, 401), (big, 16, 1), (other, 16, 0), (first, 0, 0)):
            call.cancel()
            await asyncio.sleep(1)
            assert (clip.stats().images_in_flight, clip.stats().images_waiting) == (in_flight, waiting)
        assert clip.stats().servers[0].images_in_flight == 0
        assert clip.stats().servers[0].limit == 16, "a cancelled call is not a sign of load"


@simulated
async def test_a_request_whose_call_is_cancelled_before_it_begins_is_not_sent() -> None:
    server = FakeTriton()
    async with connected(server) as clip:
        call = asyncio.create_task(clip.embed(images(16)))  # two requests, one after the other
        for _ in range(2):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(1)
        assert (server.requests_received, clip.stats().servers[0].images_in_flight) == (1, 0)
        assert (await clip.embed(images(16))).errors == {}


@simulated
async def test_a_cancelled_call_behind_another_is_never_sent() -> None:
    server = FakeTriton(seconds_per_image=0.005)
    async with connected(server) as clip:
        first, second = (asyncio.create_task(clip.embed(40 * [image])) for image in (b"first", b"second"))
        await asyncio.sleep(0.001)
        second.cancel()
        assert (await first).errors == {}
        assert (await clip.embed(b"last")).errors == {}
        assert Counter(image for request in server.requests for image in request.images) == {b"first": 40, b"last": 1}


@simulated
async def test_cancelled_calls_do_not_pile_up_on_the_server() -> None:
    """A server keeps decoding cancelled images, and the next caller would wait for all of them."""
    server = FakeTriton(seconds_per_image=0.01)
    async with connected(server, target_latency_s=0.5) as clip:
        for _ in range(100):
            call = asyncio.create_task(clip.embed([b"x"] * 8))
            await asyncio.sleep(0.001)
            call.cancel()
        assert (await clip.embed(b"last")).errors == {}
        # 800 images were cancelled. Sixteen may be in flight at once, at first for a sixteenth of a second, then for
        # twice as long each time, up to half a second.
        assert server.images_worked_on <= 16 * (now() / 0.5 + 4)


@simulated
async def test_an_internal_error_ends_the_call() -> None:
    def defect(image: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
        if image.startswith(b"defect"):
            raise ZeroDivisionError
        return np.full(8, 8**-0.5, dtype=np.float32)

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    async with connected(FakeTriton(vector=defect), max_request_bytes=1) as clip:
        call = asyncio.create_task(clip.embed(b"defect, as large as all requests that may be held"))
        await asyncio.sleep(0)
        assert (await clip.embed(b"b")).errors == {}, "the defect makes room, too"
        with pytest.raises(ClipError, match=r"internal error \(ZeroDivisionError\)"):
            await call
        assert clip.stats().servers[0].images_in_flight == 0
        assert [type(error) for error in reported] == [ZeroDivisionError]


@simulated
async def test_the_retry_budget_ends_a_storm_of_refusals() -> None:
    async with connected(scripted(*(FULL, Reply()) * 1000)) as clip:  # it refuses every other request
        answered = 0
        with suppress(Overloaded):
            while answered < 1000:
                await clip.embed(b"a")
                answered += 1
        assert answered < 1000
        # The budget: 100 at first, 5 more each second, and a tenth for each answer.
        retried = clip.stats().requests_retried
        assert 100 <= retried <= 100 + 5 * now() + 0.1 * answered
        await asyncio.sleep(2)
        assert (await clip.embed(images(2))).errors == {}
        assert clip.stats().requests_retried > retried

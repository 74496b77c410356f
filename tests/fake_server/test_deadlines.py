"""The time limit of ``embed``, the results when the time is over, and overload, in simulated time."""

import asyncio
import gc
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import grpc
import numpy as np
import pytest

from clip_client import DeadlineExceeded, ItemErrors, Overloaded, ProtocolMismatch, Unavailable
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import NEVER, InMemoryClient, Stalled, asynchronous, images, now, paced, scripted
from tests.fixtures.simulated_time import connected, simulated


@pytest.mark.parametrize(("count", "seconds_per_image"), [(500, 0.2), (40, 4.0)], ids=["long", "slow"])
@simulated
async def test_a_call_that_gets_results_does_not_fail_for_its_length(count: int, seconds_per_image: float) -> None:
    """Not even if the first requests are more than the server can answer within ``timeout_s``."""
    server = FakeTriton(seconds_per_image=seconds_per_image)
    async with connected(server) as clip:
        batch = await clip.embed(images(count))
        assert now() > 90
        assert batch.errors == {}
        assert (batch.vectors == np.stack([server.vector(image) for image in images(count)])).all()


@simulated
async def test_images_that_wait_for_a_thread_have_no_less_time_to_be_read() -> None:
    async def read(*_: Any, limiter: anyio.CapacityLimiter, **__: Any) -> bytes:
        async with limiter:
            await asyncio.sleep(40)
        return b"content"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio.to_thread, "run_sync", read)
        async with connected(FakeTriton()) as clip:
            assert (await clip.embed([__file__] * 100)).errors == {}


@simulated
async def test_a_request_that_hangs_is_sent_again_while_others_are_answered() -> None:
    async with connected(scripted(NEVER, seconds_per_image=0.1)) as clip:
        assert (await clip.embed(images(1000))).errors == {}
        assert clip.stats().requests_retried == 1


@simulated
async def test_one_callers_deadline_is_not_anothers() -> None:
    server = scripted(then=Reply(delay_s=0.5))
    async with connected(server) as clip:
        hasty = asyncio.create_task(clip.embed(b"a", timeout_s=0.1))
        patient = asyncio.create_task(clip.embed(b"b", timeout_s=30))
        with pytest.raises(DeadlineExceeded):
            await hasty
        assert (await patient).errors == {}
        # They shared a request, and it continued for the other caller.
        assert [len(request.images) for request in server.requests] == [2]


@simulated
async def test_a_handshake_has_the_time_of_the_call_that_waits_for_it() -> None:
    async with InMemoryClient({"localhost": Stalled()}) as clip:
        with pytest.raises(DeadlineExceeded, match="did not answer the handshake in time"):
            await clip.embed(b"a", timeout_s=5)
        assert now() == pytest.approx(5)
        call = asyncio.create_task(clip.embed(b"a"))
        await asyncio.sleep(1)
    with pytest.raises(Unavailable, match="closed during the handshake"):
        await call


@simulated
async def test_a_call_may_wait_longer_for_a_handshake_than_the_clients_time() -> None:
    async with InMemoryClient({"localhost": Stalled(late_s=80)}) as clip:
        assert (await clip.embed(b"a", timeout_s=90)).errors == {}
    async with InMemoryClient({"localhost": Stalled(late_s=80)}) as clip:
        hasty = asyncio.create_task(clip.embed(b"a"))
        await asyncio.sleep(1)
        assert (await clip.embed(b"a", timeout_s=300)).errors == {}
        with pytest.raises(DeadlineExceeded):
            await hasty


@simulated
async def test_a_handshake_that_fails_after_its_callers_have_left_is_not_reported() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with InMemoryClient({"localhost": Stalled()}) as clip:
        with pytest.raises(DeadlineExceeded):
            await clip.embed(b"a", timeout_s=5)
        await asyncio.sleep(100)
        gc.collect()
    assert reported == []


@simulated
async def test_a_server_that_is_retired_during_a_handshake_is_replaced() -> None:
    """The name of the servers leads elsewhere meanwhile, and connections to the old ones are closed."""
    names = {"clip": ["10.0.0.1", "10.0.0.2"]}
    asyncio.get_running_loop().names = names  # type: ignore[attr-defined]
    servers = {f"10.0.0.{number}": Stalled(ended=1) if number < 3 else FakeTriton() for number in (1, 2, 3, 4)}
    async with InMemoryClient(servers, "clip") as clip:
        stream = clip.embed_stream(paced(images(90)))
        assert (await anext(stream)).error is None
        for number in (1, 2):
            servers[f"10.0.0.{number}"].answer_always(Reply(fingerprint=(9, 9)))
        with pytest.raises(ProtocolMismatch):
            await clip.embed(b"the next call asks for the model again")
        for number in (1, 2):
            servers[f"10.0.0.{number}"].answer_always(Reply())
        call = asyncio.create_task(clip.embed(b"a", timeout_s=100))
        names["clip"] = ["10.0.0.3", "10.0.0.4"]
        assert len([item async for item in stream if item.error is None]) == 89
        assert (await call).errors == {}


@simulated
async def test_a_handshake_with_a_server_that_was_there_before_is_tried_again() -> None:
    server = scripted(Reply(fingerprint=(9, 9)))
    async with connected(server) as clip:
        with pytest.raises(ProtocolMismatch):
            await clip.embed(b"the next call asks for the model again")
        ready, server.ready_models = server.ready_models, set()
        call = asyncio.create_task(clip.embed(b"a"))
        await asyncio.sleep(5)
        server.ready_models = ready
        assert (await call).errors == {}


@pytest.mark.parametrize("max_request_bytes", [2**20, 40], ids=["roomy", "images wait for memory, too"])
@simulated
async def test_an_explicit_time_bounds_the_call_and_keeps_what_is_finished(max_request_bytes: int) -> None:
    async with connected(FakeTriton(seconds_per_image=0.1), max_request_bytes=max_request_bytes) as clip:
        batch = await clip.embed(images(1000), timeout_s=20)  # more than are taken from a source at a time
        assert now() == pytest.approx(20, abs=0.01)
        assert len(batch) == 1000
        assert 100 <= 1000 - len(batch.errors) <= 200
        assert list(batch.errors) == np.flatnonzero(np.isnan(batch.vectors[:, 0])).tolist()
        assert {error.code for error in batch.errors.values()} == {"TIMEOUT"}
        assert all(error.index == index for index, error in batch.errors.items())
        with pytest.raises(ItemErrors, match=r"TIMEOUT: timeout_s (ran out|left too little).*; use a longer timeout_s"):
            batch.raise_for_errors()
        again = await clip.embed([images(1000)[index] for index in batch.errors])
        assert again.errors == {}
        assert clip.stats().images_waiting == 0


@simulated
async def test_a_call_fails_a_minute_after_its_last_result() -> None:
    server = scripted(Reply(), Reply(delay_s=5), then=NEVER)
    async with connected(server) as clip:
        with pytest.raises(DeadlineExceeded):
            await clip.embed(images(100))
        assert now() == pytest.approx(65, abs=0.01)
        await asyncio.sleep(10)
        assert server.in_flight == 0


GONE = Reply(status=grpc.StatusCode.UNAVAILABLE, details="failed to connect to all addresses")
LOADING = Reply(status=grpc.StatusCode.UNAVAILABLE, details="Request for unknown model")


@pytest.mark.parametrize("call", ["embed", "embed with a time", "embed an iterator", "embed_stream"])
@simulated
async def test_a_call_without_a_server_names_each_server_that_is_down_and_why(call: str) -> None:
    servers = [FakeTriton(), FakeTriton(), FakeTriton()]
    async with connected(*servers) as clip:
        for server, reply in zip(servers, (GONE, LOADING, NEVER), strict=True):
            server.answer_always(reply)
        awaitables: dict[str, Callable[[], Awaitable[object]]] = {
            "embed": lambda: clip.embed(images(80)),
            "embed with a time": lambda: clip.embed(images(80), timeout_s=30),
            "embed an iterator": lambda: clip.embed(asynchronous(images(1000))),
            "embed_stream": lambda: anext(clip.embed_stream(images(80))),
        }
        with pytest.raises(DeadlineExceeded, match=r"^timeout_s ran out") as caught:
            await awaitables[call]()
        said = str(caught.value)
        assert "No server answers at grpc://192.0.2.0:8001; is clip-serve or tritonserver running" in said
        assert "or still loading" in said
        assert "The server at grpc://192.0.2.1:8001 has no ready model" in said
        assert "192.0.2.2" not in said, "it may be busy"


@simulated
async def test_images_in_flight_to_a_server_that_was_down_before_name_it() -> None:
    async with connected(scripted(GONE, NEVER)) as clip:
        says = r"1 images in flight.* No server answers at grpc://192\.0\.2\.0:8001"
        with pytest.raises(DeadlineExceeded, match=says):
            await clip.embed(b"a", timeout_s=5)


@simulated
async def test_a_call_whose_source_hangs_fails_a_minute_after_its_last_result() -> None:
    async with connected(FakeTriton()) as clip:
        with pytest.raises(DeadlineExceeded, match="the iterator has not ended"):
            await clip.embed(paced([b"a", b"b"], 5, ends=False))
        assert now() == pytest.approx(65, abs=0.01)


@pytest.mark.parametrize(("timeout_s", "seconds"), [(None, 60), (5.0, 5)])
@simulated
async def test_without_a_vector_the_call_raises(timeout_s: float | None, seconds: float) -> None:
    """An error of one image does not count as a result."""
    bad = Reply(row_errors={0: (4, "The file ends before the picture does.")})
    async with connected(scripted(bad, then=NEVER, max_batch_size=1)) as clip:
        with pytest.raises(DeadlineExceeded, match=r"with 1 images in flight.* number 1; use a longer timeout_s"):
            await clip.embed(images(2), timeout_s=timeout_s)
        assert now() == pytest.approx(seconds, abs=0.01)


@simulated
async def test_an_iterator_that_has_not_ended_has_no_batch() -> None:
    """A batch of a part would look like a batch of all."""
    server = FakeTriton()
    async with connected(server) as clip:
        server.script(Reply(), NEVER, NEVER)
        with pytest.raises(DeadlineExceeded, match=r"the iterator has not ended; embed a list, or omit timeout_s"):
            await clip.embed(asynchronous(images(1000)), timeout_s=10)
        server.script(Reply(), *[NEVER] * 10)
        batch = await clip.embed(asynchronous(images(200)), timeout_s=10)  # fewer than are taken at a time
        assert len(batch) == 200
        assert {error.code for error in batch.errors.values()} == {"TIMEOUT"}


@simulated
async def test_single_images_are_shed_under_overload() -> None:
    """A service that embeds one image a call, without a ``timeout_s`` of its own."""
    server = FakeTriton(seconds_per_image=1.0)
    async with connected(server) as clip:
        outcomes = await asyncio.gather(*(clip.embed(image) for image in images(200)), return_exceptions=True)
        assert now() <= 60.01
        assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) > 100
        # Nearly all of the server's work was for callers that still waited.
        good = sum(not isinstance(outcome, BaseException) for outcome in outcomes)
        assert good >= 0.8 * server.images_worked_on
        assert (await clip.embed(b"after the load")).errors == {}


@simulated
async def test_a_stream_that_is_too_slow_for_its_time_says_so_after_its_results() -> None:
    """Nobody else uses the server, so it is not overloaded."""
    async with connected(FakeTriton(seconds_per_image=0.1)) as clip:
        (await clip.embed(images(64))).raise_for_errors()  # now it knows how long an answer takes
        count = 0

        async def take() -> None:
            nonlocal count
            async for item in clip.embed_stream(images(500), timeout_s=5):
                assert item.index == count
                count += 1

        with pytest.raises(DeadlineExceeded, match=r"timeout_s is too short for all images of this stream") as caught:
            await take()
        (numbers,) = re.findall(r"waited (\S+) s, (\S+) s are left, and an answer may take (\S+) s", str(caught.value))
        waited_s, left_s, answer_s = map(float, numbers)
        assert left_s <= min(waited_s, answer_s)
        assert count
        batch = await clip.embed(images(500), timeout_s=5)
        unsent = "timeout_s left too little time for an answer, so this image was not sent"
        assert {error.message.split(";")[0] for error in batch.errors.values()} == {unsent}


@simulated
async def test_many_times_the_load_that_a_server_can_take() -> None:
    """The server keeps working for callers who still wait, and the next image is embedded within its time."""
    counts: Counter[type[Exception] | None] = Counter()

    async def one() -> None:
        try:
            await clip.embed(b"x", timeout_s=1.0)
        except (Overloaded, DeadlineExceeded) as error:
            counts[Overloaded if isinstance(error, Overloaded) else DeadlineExceeded] += 1
        else:
            counts[None] += 1

    # It serves one request at a time, even for clients that have left.
    server = FakeTriton(seconds_per_image=1 / 200)
    async with connected(server) as clip, anyio.create_task_group() as tasks:
        for _ in range(60):
            for _ in range(48):
                tasks.start_soon(one)
            await asyncio.sleep(0.04)
        await asyncio.sleep(1)
        assert sum(counts.values()) == 60 * 48
        assert counts[None] >= 0.8 * server.images_worked_on
        assert counts[Overloaded] > 0
        assert clip.stats().servers[0].limit < 200
        assert (await clip.embed(b"y", timeout_s=1.0)).errors == {}


@simulated
async def test_the_deadline_of_a_streams_image_is_a_sign_of_load() -> None:
    """It is sent with the request; tests/fake_server/test_at_once.py has the deadline of a call."""
    async with connected(scripted(then=NEVER), timeout_s=5.0) as clip:
        assert clip.stats().servers[0].limit == 16
        with pytest.raises(DeadlineExceeded):
            await anext(clip.embed_stream([b"a"]))
        await asyncio.sleep(0.1)
        assert clip.stats().servers[0].limit == 8
        assert clip.stats().servers[0].images_in_flight == 0


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "embed"])
@simulated
async def test_a_file_that_hangs_costs_one_row(is_stream: bool) -> None:
    """Reading it never ends, as on a share whose server is gone."""

    async def read(_encode: object, file: str, *_: Any, **__: Any) -> bytes:
        await asyncio.sleep(1e6 if file == "hangs.jpg" else 0)
        return b"content"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio.to_thread, "run_sync", read)
        async with connected(FakeTriton()) as clip:
            source = paced(["a.jpg", "hangs.jpg", "b.jpg", "c.jpg", "d.jpg"], seconds=20)
            if is_stream:
                errors = {item.index: item.error async for item in clip.embed_stream(source)}
            else:
                errors = {**dict.fromkeys(range(5)), **(await clip.embed(source)).errors}
            late = errors.pop(1)
            assert errors == {0: None, 2: None, 3: None, 4: None}
            assert (late and late.code, late and late.source) == ("TIMEOUT", "hangs.jpg")


@simulated
async def test_without_a_deadline_each_image_of_a_stream_has_the_clients_time() -> None:
    """Twelve requests one after the other take longer than ``timeout_s`` in total."""
    async with connected(scripted(then=Reply(delay_s=0.1)), timeout_s=1.0) as clip:
        assert len([item async for item in clip.embed_stream(images(12), max_in_flight=1)]) == 12
        assert now() > 1.0

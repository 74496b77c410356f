"""Failures of the service: which are retried, which are raised, and what the caller is told."""

from __future__ import annotations

import asyncio

import anyio
import grpc
import pytest

from clip_client import (
    ClientConfig,
    ClipClient,
    ClipError,
    DeadlineExceeded,
    ModelNotReady,
    Overloaded,
    ProtocolMismatch,
    Unavailable,
)
from clip_client._transports.grpc import channel_options
from clip_client._transports.grpc_errors import ERROR_TABLE
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import Relay, listening
from tests.fixtures.service_errors import SEEN
from tests.fixtures.simulated_time import play
from tests.fixtures.waiting import until

RETRIED = (Unavailable, Overloaded, ModelNotReady)

WIRE = [(status, text, kind) for status, text, kind in SEEN if status != "OK"]


def test_every_row_but_ok_is_tried_over_the_wire() -> None:
    assert {status for status, _, _ in WIRE} == {row.code.name for row in ERROR_TABLE} - {"OK"}


@pytest.mark.parametrize(("status", "text", "kind"), WIRE, ids=[f"{s}-{t[:30]}" for s, t, _ in WIRE])
async def test_every_row_of_the_error_table(
    server: FakeTriton, clip: ClipClient, status: str, text: str, kind: str
) -> None:
    server.script(Reply(status=grpc.StatusCode[status], details=text))
    kinds: list[type[ClipError]] = [ClipError, *ClipError.__subclasses__()]
    expected = next(error for error in kinds if error.__name__ == kind)
    if issubclass(expected, RETRIED):
        batch = await clip.embed(b"a")
        assert (batch.vectors[0] == server.vector(b"a")).all()
        assert len(server.requests) == 2
        assert server.requests[0].request_id != server.requests[1].request_id
        assert clip.stats().requests_retried == 1
        return
    with pytest.raises(expected) as caught:
        await clip.embed(b"a")
    error = caught.value
    assert type(error) is expected
    assert error.request_id == server.requests[0].request_id
    assert f"request {error.request_id}" in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    # Our own sentence, without the server's text.
    assert not [word for word in ("\n", "/opt", "/srv", "boom", "Traceback", "SSL_", "ipv4:") if word in str(error)]
    assert len(server.requests) == 1
    assert clip.stats().requests_failed == 1


async def test_an_outage_is_survived_within_the_deadline(server: FakeTriton, clip: ClipClient) -> None:
    await clip.embed(b"a")
    await server.stop()
    call = asyncio.create_task(clip.embed([b"b", b"c"]))
    await until(lambda: clip.stats().requests_retried)
    await server.start()
    assert (await call).errors == {}


@pytest.mark.parametrize(
    ("ready", "kind", "says"),
    [
        (set(), ModelNotReady, "clip-export"),
        ({"clip_image"}, ModelNotReady, "clip-export"),
        ({"resnet50"}, ProtocolMismatch, "--model-repository triton_models"),
    ],
)
async def test_the_wrong_model_and_the_wrong_triton(
    server: FakeTriton, clip: ClipClient, ready: set[str], kind: type[ClipError], says: str
) -> None:
    server.ready_models = ready
    with pytest.raises(kind, match=says):
        await clip.embed(b"a")


@pytest.mark.parametrize(
    ("scheme", "greeting", "kind", "says"),
    [
        ("", b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolMismatch, "--grpc-port"),
        ("auto:", b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolMismatch, "--grpc-port"),
        ("", b"SSH-2.0-OpenSSH_9.2\r\n", ProtocolMismatch, "--grpc-port"),
        ("", b"", Unavailable, "gRPC port"),
    ],
    ids=["http", "http is not hidden by auto:", "ssh", "hangs up"],
)
async def test_a_port_that_does_not_speak_grpc(scheme: str, greeting: bytes, kind: type[ClipError], says: str) -> None:

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()

    async with listening(greet) as address, ClipClient(f"{scheme}{address}", timeout_s=20) as clip:
        with pytest.raises(kind, match=says):
            await clip.embed(b"a")
        assert not clip.is_local


async def test_the_remaining_time_travels(server: FakeTriton, clip: ClipClient) -> None:
    await clip.model()
    server.script(Reply(status=grpc.StatusCode.UNAVAILABLE, delay_s=0.5))
    await clip.embed(b"a", timeout_s=10.0)
    first, second = (request.timeout_s for request in server.requests)
    assert first is not None
    assert second is not None
    # gRPC sends a time that is up to 3 % longer, if it has sent that one before.
    assert first <= 10.4
    assert second <= 9.5 * 1.03


def test_one_callers_deadline_is_not_anothers() -> None:
    """In simulated time, so that both are sent before the first deadline has passed."""
    server = FakeTriton()
    server.answer_always(Reply(delay_s=0.5))

    async def test(clip: ClipClient) -> None:
        hasty = asyncio.create_task(clip.embed(b"a", timeout_s=0.1))
        patient = asyncio.create_task(clip.embed(b"b", timeout_s=30))
        with pytest.raises(DeadlineExceeded):
            await hasty
        assert (await patient).errors == {}
        # They shared a request, and it continued for the other caller.
        assert [len(request.images) for request in server.requests] == [2]

    play(test, server)


async def test_a_connection_cut_in_the_middle_of_an_answer() -> None:
    async with FakeTriton(dimension=4096) as server, Relay(server.port) as relay, ClipClient(relay.url) as clip:
        await clip.model()
        relay.cut_after(5000)
        batch = await clip.embed([b"a", b"b"])
        assert (batch.vectors[1] == server.vector(b"b")).all()
        assert clip.stats().requests_retried >= 1
        assert relay.connections >= 2


@pytest.mark.parametrize("pause_s", [0.0, 0.3], ids=["under gRPC's own ping", "at rest"])
async def test_a_half_open_connection_is_detected_and_replaced(server: FakeTriton, pause_s: float) -> None:
    """Within ``keepalive_time_s``, not within gRPC's own limits of 20 s and a minute."""
    config = ClientConfig(keepalive_time_s=0.2)
    async with Relay(server.port) as relay, ClipClient(relay.url, config=config) as clip:
        await clip.embed(b"a")
        await asyncio.sleep(pause_s)
        relay.freeze()
        call = asyncio.create_task(clip.embed(b"b"))
        with anyio.fail_after(15):
            await until(lambda: clip.stats().requests_retried)
        relay.thaw()
        assert (await call).errors == {}


async def test_a_server_that_hangs_up_is_tried_again_soon_and_by_each_client() -> None:
    """By gRPC's defaults the fifth attempt comes after seven seconds or more, and all clients of a process share it."""
    tries = 0

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.transport.abort()

    async with listening(hang_up) as address:

        async def keep_trying() -> None:
            async with ClipClient(address) as clip:
                while tries < 12:
                    assert not (await clip.health(timeout_s=1)).ok
                    await asyncio.sleep(0.02)

        # It takes 2 s here; six attempts at gRPC's own pace take 16 s, and twelve of a shared one take minutes.
        with anyio.fail_after(12):
            await asyncio.gather(keep_trying(), keep_trying())


def test_how_long_grpc_may_wait_before_it_tries_again() -> None:
    """What the test above cannot observe within a second: the longest pause, and the longest time for one attempt."""
    config = ClientConfig()
    given = dict(channel_options(config, config.endpoints[0], None))
    assert {name: value for name, value in given.items() if "backoff" in name} == {
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 1000,
        "grpc.min_reconnect_backoff_ms": 5000,
    }
    assert given["grpc.enable_retries"] == 0, "there is one layer of retries, and it is not gRPC's"


async def test_an_answer_may_be_longer_than_grpc_takes_by_default() -> None:
    async with FakeTriton(dimension=135_000) as server, ClipClient(server.url) as clip:
        batch = await clip.embed([b"%d" % number for number in range(8)])
        assert batch.vectors.nbytes > 4 * 2**20
        assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["a..b", 80 * "a"])
async def test_an_impossible_name_fails_like_an_unknown_one(name: str) -> None:
    async with ClipClient(f"{name}:8001") as clip:
        with pytest.raises(Unavailable, match="cannot be resolved"):
            await clip.model()

"""Failures of the service: which are retried, which are raised, and what the caller is told."""

import asyncio
import re
from typing import Final

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
    Unauthorized,
    Unavailable,
)
from clip_client._transports.grpc import channel_options
from clip_client._transports.grpc_errors import ERROR_TABLE, OTHER, find_row
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import InMemoryTransports, images, listening, relay
from tests.fixtures.waiting import until

RETRIED: Final = (Unavailable, Overloaded, ModelNotReady)

_NO_CONNECTION: Final = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:4: "
_TLS: Final = f"{_NO_CONNECTION}Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:10000"
_UNVERIFIED: Final = f"{_TLS}07d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED"
_ENSEMBLE: Final = "in ensemble 'clip_image', "

SEEN: Final[list[tuple[str, str, type[ClipError]]]] = [
    ("UNAVAILABLE", "Request timeout expired", DeadlineExceeded),
    ("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-k'", Unauthorized),
    ("UNAVAILABLE", "[request id: 1] Exceeds maximum queue size", Overloaded),
    ("UNAVAILABLE", "upstream connect error or disconnect/reset before headers. reset reason: overflow", Overloaded),
    ("UNAVAILABLE", "envoy overloaded", Overloaded),
    ("UNAVAILABLE", "Request for unknown model: 'clip_image' is not ready", ModelNotReady),
    ("UNAVAILABLE", f"{_ENSEMBLE}Server is stopping, scheduler for model has stopped accepting", Unavailable),
    ("UNAVAILABLE", f"{_TLS}0f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER", ProtocolMismatch),
    ("UNAVAILABLE", f"{_UNVERIFIED}: unable to get local issuer certificate: OK", Unauthorized),
    ("UNAVAILABLE", f"{_UNVERIFIED}: certificate has expired: OK", Unauthorized),
    ("UNAVAILABLE", f"{_UNVERIFIED}: certificate is not yet valid: OK", Unauthorized),
    ("UNAVAILABLE", _UNVERIFIED, Unauthorized),
    ("UNAVAILABLE", f"{_TLS}416:SSL routines:OPENSSL_internal:SSLV3_ALERT_CERTIFICATE_UNKNOWN", Unauthorized),
    ("UNAVAILABLE", f"{_TLS}45b:SSL routines:OPENSSL_internal:TLSV1_ALERT_CERTIFICATE_REQUIRED", Unauthorized),
    ("UNAVAILABLE", f"{_NO_CONNECTION}Hostname Verification Check failed.", Unauthorized),
    ("UNAVAILABLE", f"{_NO_CONNECTION}Failed to create security handshaker.", Unauthorized),
    ("UNAVAILABLE", f"{_NO_CONNECTION}Failed parsing HTTP/2 (Trying to connect an http1.x server)", ProtocolMismatch),
    ("UNAVAILABLE", f"{_NO_CONNECTION}Socket closed", Unavailable),
    ("UNAVAILABLE", "errors resolving no-such-host.invalid:8001: [Domain name not found]", Unavailable),
    ("UNAVAILABLE", f"{_NO_CONNECTION}Failed to connect to remote host: Connection refused", Unavailable),
    ("UNAVAILABLE", "Stream removed (Socket closed)", Unavailable),
    ("INTERNAL", f"{_ENSEMBLE}Stub process 'clip_preprocess_0_0' is not healthy.", Unavailable),
    ("INTERNAL", f"{_ENSEMBLE}model 'clip_encoder' is not ready", ModelNotReady),
    ("INTERNAL", f"{_ENSEMBLE}Failed to increase the shared memory pool size for key 'clip_triton_1'", ClipError),
    ("INTERNAL", "Received RST_STREAM with error code 2", Unavailable),
    ("INTERNAL", f"{_ENSEMBLE}message: RuntimeError: boom\n\nAt:\n  /opt/models/clip_preprocess/1/model.py", ClipError),
    ("NOT_FOUND", "Request for unknown model: 'clip_image' has no available versions", ModelNotReady),
    ("INVALID_ARGUMENT", "Request for unknown model: 'clip_image' version 7 is not ready", ModelNotReady),
    ("INVALID_ARGUMENT", f"{_ENSEMBLE}unexpected deadlock, at least one output is not set", ProtocolMismatch),
    ("INVALID_ARGUMENT", "inference request batch-size must be <= 8 for 'clip_image'", ProtocolMismatch),
    ("INVALID_ARGUMENT", "unexpected inference output 'embedding' for model 'clip_image'", ProtocolMismatch),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded", DeadlineExceeded),
    ("UNAUTHENTICATED", "Jwt is missing", Unauthorized),
    ("PERMISSION_DENIED", "RBAC: access denied", Unauthorized),
    ("RESOURCE_EXHAUSTED", "Received message larger than max (5000000 vs. 4194304)", ProtocolMismatch),
    ("RESOURCE_EXHAUSTED", "upstream overflow", Overloaded),
    ("UNIMPLEMENTED", "Method not found!", ProtocolMismatch),
    ("CANCELLED", "RST_STREAM with error code 8", Unavailable),
    ("UNKNOWN", "Stream removed", Unavailable),
    ("UNKNOWN", "Payload Too Large", ProtocolMismatch),
    ("UNKNOWN", "Received http2 header with status: 413", ProtocolMismatch),
    ("UNKNOWN", "Received http2 header with status: 302", ProtocolMismatch),
    ("UNKNOWN", "Received http2 header with status: 500", Unavailable),
    ("UNKNOWN", "Received http2 header with status: 405", ProtocolMismatch),
    ("INTERNAL", "Received http2 header with status: 400", ProtocolMismatch),
    ("UNAVAILABLE", "Received http2 header with status: 429", Overloaded),
    ("UNAVAILABLE", "local_rate_limited", Overloaded),
    ("UNAVAILABLE", "Received http2 header with status: 504", Unavailable),
    ("PERMISSION_DENIED", "Received http2 header with status: 403", Unauthorized),
    ("UNKNOWN", "Unexpected <class 'ValueError'>: /srv/x.py", ClipError),
    ("ABORTED", "", Unavailable),
    ("DATA_LOSS", "", Unavailable),
    ("ALREADY_EXISTS", "", ClipError),
    ("FAILED_PRECONDITION", "", ModelNotReady),
    ("OUT_OF_RANGE", "", ProtocolMismatch),
]
"""(gRPC status, text, class). Texts with a model or an address come from tritonserver 2.51 and grpcio 1.85, the short
ones from the sources that the error table names."""


def test_every_row_is_tried_over_the_wire() -> None:
    reached = [find_row(grpc.StatusCode[status], text) for status, text, _ in SEEN]
    assert [row for row in (*ERROR_TABLE, OTHER) if row not in reached] == []
    assert all(issubclass(find_row(code, "a new text").error, ClipError) for code in grpc.StatusCode)


@pytest.mark.parametrize(("status", "text", "kind"), SEEN, ids=[f"{s}-{t[-30:].strip()}" for s, t, _ in SEEN])
async def test_every_row_of_the_error_table(
    server: FakeTriton, clip: ClipClient, status: str, text: str, kind: type[ClipError]
) -> None:
    server.script(Reply(status=grpc.StatusCode[status], details=text))
    if issubclass(kind, RETRIED):
        batch = await clip.embed(b"a")
        assert (batch.vectors[0] == server.vector(b"a")).all()
        assert len(server.requests) == 2
        assert server.requests[0].request_id != server.requests[1].request_id
        assert clip.stats().requests_retried == 1
        return
    with pytest.raises(kind) as caught:
        await clip.embed(b"a")
    error = caught.value
    assert type(error) is kind
    assert error.request_id == server.requests[0].request_id
    assert f"request {error.request_id}" in str(error)
    # Our own sentence, without the server's text.
    assert not [word for word in ("\n", "/opt", "/srv", "boom", "Traceback", "SSL_", "ipv4:") if word in str(error)]
    assert len(server.requests) == 1
    assert clip.stats().requests_failed == 1


async def test_after_a_request_that_is_too_large_the_next_call_asks_again(fake: FakeTriton, near: ClipClient) -> None:
    await near.model()
    fake.max_batch_size = 4
    fake.script(Reply(status=grpc.StatusCode.INVALID_ARGUMENT, details="batch-size must be <= 4 for 'clip_image'"))
    with pytest.raises(ProtocolMismatch, match=r"takes fewer images .* call again\."):
        await near.embed(images(8))
    assert (await near.embed(images(8))).errors == {}
    assert [len(request.images) for request in fake.requests] == [8, 4, 4]


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


@pytest.mark.parametrize(
    ("url", "says"),
    [("localhost", r"need TLS \(grpcs://\)\?$"), ("grpcs://localhost", r"need a client certificate .*--tls-cert")],
)
async def test_a_server_that_hangs_up_may_want_more_than_a_client_sends(fake: FakeTriton, url: str, says: str) -> None:
    fake.script(Reply(status=grpc.StatusCode.UNAVAILABLE, details="failed to connect to all addresses; Socket closed"))
    transport = InMemoryTransports({"localhost": fake})(ClientConfig(urls=(url,)).endpoints[0], None)
    with pytest.raises(Unavailable) as caught:
        await transport.infer([b"a"], request_id="r", timeout_s=1)
    assert re.search(says, caught.value.message)
    # gRPC goes on connecting for a call that an error's context holds, and that would show the server's text.
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


async def test_the_remaining_time_travels(server: FakeTriton, clip: ClipClient) -> None:
    await clip.model()
    server.script(Reply(status=grpc.StatusCode.UNAVAILABLE, delay_s=0.5))
    await clip.embed(b"a", timeout_s=10.0)
    first, second = (request.timeout_s or 0.0 for request in server.requests)
    # gRPC sends a time that is up to 3 % longer, if it has sent the longer time before.
    assert 9.5 * 1.03 < first <= 10.4
    assert 0 < second <= 9.5 * 1.03


@pytest.mark.parametrize("pause_s", [0.0, 0.3], ids=["under gRPC's own ping", "at rest"])
async def test_a_half_open_connection_is_detected_and_replaced(server: FakeTriton, pause_s: float) -> None:
    """Within ``keepalive_time_s``, not within gRPC's own limits of 20 s and a minute."""
    flowing = asyncio.Event()
    flowing.set()
    config = ClientConfig(keepalive_time_s=0.2)
    async with relay(server.port, flowing) as address, ClipClient(address, config=config) as clip:
        await clip.embed(b"a")
        await asyncio.sleep(pause_s)
        flowing.clear()
        call = asyncio.create_task(clip.embed(b"b"))
        with anyio.fail_after(15):
            await until(lambda: clip.stats().requests_retried)
        flowing.set()
        assert (await call).errors == {}


async def test_a_server_that_hangs_up_is_tried_again_soon_and_by_each_client() -> None:
    """gRPC makes the fifth attempt after seven seconds or more by default, and all clients of a process share it."""
    tries = 0

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.transport.abort()

    async def keep_trying(address: str) -> None:
        async with ClipClient(address) as clip:
            while tries < 12:
                assert not (await clip.health(timeout_s=1)).ok
                await asyncio.sleep(0.02)

    async with listening(hang_up) as address:
        # It takes 2 s here; six attempts at gRPC's own pace take 16 s, and twelve of a shared one take minutes.
        with anyio.fail_after(12):
            await asyncio.gather(keep_trying(address), keep_trying(address))


def test_how_long_grpc_may_wait_before_it_tries_again() -> None:
    """The test above cannot observe these settings: the first and the longest pause, and the time for one attempt."""
    config = ClientConfig()
    given = dict(channel_options(config, config.endpoints[0], None))
    assert {name: value for name, value in given.items() if "backoff" in name} == {
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 1000,
        "grpc.min_reconnect_backoff_ms": 5000,
    }
    assert given["grpc.use_local_subchannel_pool"] == 1, "two clients of a process share no back-off"
    assert given["grpc.enable_retries"] == 0, "there is one layer of retries, and it is not gRPC's"


async def test_an_answer_may_be_longer_than_grpc_takes_by_default(server: FakeTriton, clip: ClipClient) -> None:
    server.script(Reply(row_errors={0: (4, "x" * 5_000_000)}))
    assert len((await clip.embed(b"a")).errors[0].message) == 5_000_000


@pytest.mark.parametrize("name", ["a..b", 80 * "a"])
async def test_an_impossible_name_fails_like_an_unknown_one(name: str) -> None:
    async with ClipClient(f"{name}:8001") as clip:
        with pytest.raises(Unavailable, match="cannot be resolved"):
            await clip.model()

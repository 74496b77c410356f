"""A client and a scripted server in one event loop whose time passes only while nobody has anything to do.

Seconds of sleep then cost nothing, and a machine that is busy with other things takes no time from anybody: what comes
out is what the rules of client and server make of each other, in every run the same.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2

from clip_client._transports import grpc as _transport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    import pytest

    from clip_client._endpoint import Endpoint
    from clip_client.testing import FakeTriton


class _Clock(selectors.DefaultSelector):
    """Does not wait for a timer, but says that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout and 0)
        if timeout is not None and not events:
            self.passed_s += max(0.0, timeout)
        return events


class _SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._clock = _Clock()
        self._names = names
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.passed_s

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """The addresses of ``names``, or the error of a name server that does not answer."""
        if host not in self._names:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [
            (families[":" in address], socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
            for address in self._names[host]
        ]


def simulate(work: Coroutine[Any, Any, None], *, names: Mapping[str, Sequence[str]] | None = None) -> None:
    """Run to the end what uses nothing but timers, and looks names up in ``names``, which may change meanwhile."""
    loop = _SimulatedLoop(names or {})
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


class _Context:
    """What a call tells the server about itself."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def time_remaining(self) -> float:
        return self._timeout_s

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise _failure(code, details)


class ChannelTo:
    """In the place of a gRPC channel: calls the methods of ``server``, which need not be started, without a network."""

    def __init__(self, server: FakeTriton) -> None:
        self._server = server
        self._calls: set[asyncio.Future[Any]] = set()
        self.closed = False

    def unary_unary(self, path: str, **_: Any) -> Callable[..., Awaitable[Any]]:
        name = path.rpartition("/")[2]
        method = getattr(self._server, name, None)

        async def call(request: Any, *, timeout: float, metadata: object) -> Any:
            assert method is not None, name
            if isinstance(request, bytes):
                request = service_pb2.ModelInferRequest.FromString(request)
            answer = asyncio.ensure_future(method(request, _Context(timeout)))
            self._calls.add(answer)
            answer.add_done_callback(self._calls.discard)
            try:
                return await asyncio.wait_for(answer, timeout)
            except asyncio.TimeoutError:
                raise _failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None

        return call

    def stream_stream(self, path: str, **_: Any) -> None:
        """The client has no streams."""

    async def close(self) -> None:
        """Cancel the calls that are under way, as gRPC does."""
        self.closed = True
        for call in list(self._calls):
            call.cancel()


def _failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def connect_to(servers: Mapping[str, FakeTriton], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[ChannelTo]]:
    """Have clients reach these servers, by host, without a network. Returns the channels to each, oldest first."""
    channels: dict[str, list[ChannelTo]] = {}

    def open_channel(endpoint: Endpoint, *_: object) -> ChannelTo:
        channel = ChannelTo(servers[endpoint.host])
        channels.setdefault(endpoint.host, []).append(channel)
        return channel

    monkeypatch.setattr(_transport, "_open_channel", open_channel)
    return channels

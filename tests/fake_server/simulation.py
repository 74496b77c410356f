"""A client and a scripted server in one event loop whose time passes only while nobody has anything to do.

Seconds of sleep then cost nothing, and a machine that is busy with other things takes no time from anybody: what comes
out is what the rules of client and server make of each other, in every run the same.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

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
    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.passed_s


def simulate(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end what uses nothing but timers."""
    loop = _SimulatedLoop()
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


class ChannelTo:
    """In the place of a gRPC channel: calls the methods of ``server``, which need not be started, without a network."""

    def __init__(self, server: FakeTriton) -> None:
        self._server = server

    def unary_unary(self, path: str, **_: Any) -> Callable[..., Awaitable[Any]]:
        name = path.rpartition("/")[2]
        method = getattr(self._server, name, None)

        async def call(request: Any, *, timeout: float, metadata: object) -> Any:
            assert method is not None, name
            if isinstance(request, bytes):
                request = service_pb2.ModelInferRequest.FromString(request)
            try:
                return await asyncio.wait_for(method(request, _Context(timeout)), timeout)
            except asyncio.TimeoutError:
                nothing = grpc.aio.Metadata()
                code = grpc.StatusCode.DEADLINE_EXCEEDED
                raise grpc.aio.AioRpcError(code, nothing, nothing, "Deadline Exceeded") from None

        return call

    def stream_stream(self, path: str, **_: Any) -> None:
        """The client has no streams."""

    async def close(self) -> None:
        """There is nothing to close."""

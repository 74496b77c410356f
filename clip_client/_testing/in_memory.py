"""A client and its server in one event loop, without a network between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2

from clip_client._transports.grpc import TritonTransport

if TYPE_CHECKING:
    from clip_client._endpoint import Endpoint
    from clip_client._testing.fake_triton import FakeTriton


class InMemoryTransports:
    """Connects clients to servers, by host, without a network: the ``transport_factory`` of a ``ClipClient``.

    The servers need not be started. ``local:`` endpoints have the host ``""``.
    """

    def __init__(self, servers: Mapping[str, FakeTriton]) -> None:
        self.servers = servers
        self.channels: dict[str, list[InMemoryChannel]] = {}
        """Host -> the channels that were opened to it, oldest first."""

    def __call__(self, endpoint: Endpoint, server_name: str | None) -> TritonTransport:
        channel = InMemoryChannel(self.servers[endpoint.host])
        self.channels.setdefault(endpoint.host, []).append(channel)
        return TritonTransport(endpoint, channel)


class InMemoryChannel:
    """Calls the methods of a server where a gRPC channel would send a request."""

    def __init__(self, server: FakeTriton) -> None:
        self.closed = False
        self._server = server
        self._calls: set[asyncio.Future[Any]] = set()

    def unary_unary(self, path: str, **_: Any) -> Callable[..., Awaitable[Any]]:
        """Return a function that calls the method with the last part of ``path`` as its name."""
        name = path.rpartition("/")[2]
        method = getattr(self._server, name, None)

        async def call(request: Any, *, timeout: float, metadata: object) -> Any:  # noqa: ASYNC109  that of gRPC
            assert method is not None, name
            if isinstance(request, bytes):
                request = service_pb2.ModelInferRequest.FromString(request)
            answer = asyncio.ensure_future(method(request, _Context(timeout)))
            self._calls.add(answer)
            answer.add_done_callback(self._calls.discard)
            try:
                return await asyncio.wait_for(answer, timeout)
            except TimeoutError:
                raise _failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None

        return call

    def stream_stream(self, path: str, **_: Any) -> None:
        """Do nothing: the client has no streams."""

    async def close(self, grace: float | None = None) -> None:
        self.closed = True
        for call in list(self._calls):
            call.cancel()


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


def _failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)

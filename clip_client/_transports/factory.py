"""From an endpoint to a transport: the one place that knows every way to reach a model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from clip_client._endpoint import DEFAULT_URL, Endpoint, EndpointKind, parse_url
from clip_client._errors import ClipError, DeadlineExceeded, Unavailable

if TYPE_CHECKING:
    from clip_client._config import ClientConfig
    from clip_client._transports.base import Transport, TransportFactory

_LIVE_TIMEOUT_S: Final = 5.0
"""A running server says that it is live within milliseconds, however busy it is."""

_logger = logging.getLogger("clip_client")


def transport_factory(config: ClientConfig) -> TransportFactory:
    """Return what opens connections for this configuration. Raises ValueError if a certificate cannot be read."""
    kinds = {endpoint.kind for endpoint in config.endpoints}
    if not kinds & {EndpointKind.GRPC, EndpointKind.AUTO}:
        return lambda endpoint, _: _without_grpc(endpoint, config)
    # Imported here because grpc and protobuf would take most of the package's import time.
    from clip_client._transports import grpc

    connect = grpc.transport_factory(config)

    def make(endpoint: Endpoint, server_name: str | None) -> Transport:
        return connect(endpoint, server_name) if endpoint.kind is EndpointKind.GRPC else _without_grpc(endpoint, config)

    return make


async def resolve_auto(endpoint: Endpoint, connect: TransportFactory) -> Endpoint:
    """Decide what an AUTO endpoint stands for: its server if one responds, even with an error, else this process."""
    transport = connect(endpoint.remote, None)
    try:
        await transport.server_live(timeout_s=_LIVE_TIMEOUT_S)
    except (Unavailable, DeadlineExceeded):
        from preprocess_ensemble.model_repository.location import default_repository, has_model

        repository = default_repository()
        # Who named no server expects none.
        missing = "" if endpoint.remote == parse_url(DEFAULT_URL) else f"No server answers at {endpoint.remote}. "
        if has_model(repository):
            _logger.warning("%sImages are embedded in this process, with the model in %s.", missing, repository)
        elif missing:
            _logger.warning(missing.rstrip())
        return Endpoint(kind=EndpointKind.LOCAL, repository=str(repository))
    except ClipError:
        # A server is there. The handshake will say what is wrong with it; falling back would hide that.
        return endpoint.remote
    finally:
        await transport.close()
    return endpoint.remote


def _without_grpc(endpoint: Endpoint, config: ClientConfig) -> Transport:
    if endpoint.kind is EndpointKind.HTTP:
        from clip_client._transports.http import HttpTransport

        return HttpTransport(str(endpoint), token=config.token)
    from clip_client._transports.local import LocalTransport

    return LocalTransport(endpoint.repository or None, threads=config.local_threads, precision=config.local_precision)

"""Make the transport for an endpoint; only this module lists all ways to reach a model."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from clip_client._config import ClientConfig
from clip_client._endpoint import DEFAULT_URL, Endpoint, EndpointKind, parse_url
from clip_client._errors import ClipError, DeadlineExceeded, Unavailable
from clip_client._transports.base import Transport, TransportFactory

_LIVE_TIMEOUT_S: Final = 5.0  # a running server says that it is live within milliseconds, even if it is busy
_logger = logging.getLogger("clip_client")


def transport_factory(config: ClientConfig) -> TransportFactory:
    """Return the factory of connections for this configuration. Raises ValueError if a certificate cannot be read."""
    if config.endpoints[0].kind is not EndpointKind.LOCAL:  # a local endpoint is the only one
        # Import them here, because grpc and protobuf would take most of the package's import time.
        from clip_client._transports import grpc

        connect_grpc = grpc.transport_factory(config)

    def connect(endpoint: Endpoint, server_name: str | None) -> Transport:
        if endpoint.kind is EndpointKind.GRPC:
            return connect_grpc(endpoint, server_name)
        from clip_client._transports.local import LocalTransport

        repository = endpoint.repository or None
        return LocalTransport(
            repository, names=endpoint.names, threads=config.local_threads, compute_precision=config.local_precision
        )

    return connect


async def resolve_auto(endpoint: Endpoint, connect: TransportFactory) -> Endpoint:
    """Resolve an AUTO endpoint: to its server if one responds, even with an error, else to this process."""
    server = replace(endpoint, kind=EndpointKind.GRPC)
    transport = connect(server, None)
    try:
        await transport.server_live(timeout_s=_LIVE_TIMEOUT_S)
        return server
    except (Unavailable, DeadlineExceeded) as error:
        reason = error.message
    except ClipError:
        # A server exists. Do not fall back: the handshake will say what is wrong with the server.
        return server
    finally:
        await transport.close()
    from preprocess_ensemble.model_repository.location import default_repository, has_model

    repository = default_repository()
    # Say why there is no server only if the user named one.
    is_default = str(server) == str(parse_url(DEFAULT_URL))
    missing = "" if is_default else f"{reason} "
    if has_model(repository, endpoint.names):
        _logger.warning("%sImages are embedded in this process, with the model in %s.", missing, repository)
    elif missing:
        _logger.warning(missing.rstrip())
    return Endpoint(kind=EndpointKind.LOCAL, repository=str(repository), model=endpoint.model)

"""The client with which ``clip-serve`` sends its canary to its own server.

The canary is a small image whose vector was computed when the model was exported. A server that returns another vector,
or none, does not work, whatever its own health endpoints say.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.serving.supervisor import CONNECT, Probe, ProbeOutcome

if TYPE_CHECKING:
    from clip_client import ClipClient
    from preprocess_ensemble.serving.triton_process import ServeConfig

_SMALL_IMAGE: Final = 64 * 2**10
"""Bytes of an encoded image; the thumbnails that clip_client sends have 10 to 25 KB."""


class CanaryClient:
    """Embeds the canary. It reconnects at each start of the server, because the certificates may be new then."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._client: ClipClient | None = None
        self._has_connected = False

    async def reconnect(self) -> None:
        """Trust the certificate that the server is about to read. Raises ``TlsError`` if it cannot be used."""
        # Imported here: gRPC takes most of the time that `clip-serve --help` would need.
        from clip_client import ClientConfig, ClipClient

        config = ClientConfig(urls=(self._config.grpc_url,), timeout_s=self._config.canary_timeout_s)
        if (tls := self._config.tls) is not None:
            name = tls.check()
            certificate, key = tls.canary_files or (None, None)
            config = replace(
                config,
                ca_certificate=tls.certificate,
                server_name=name,
                client_certificate=certificate,
                client_key=key,
            )
        await self.aclose()
        self._has_connected = False
        self._client = await ClipClient(config=config).__aenter__()

    async def probe(self) -> Probe:
        """Embed the canary once."""
        from clip_client import DeadlineExceeded, Overloaded

        assert self._client is not None
        # Not through the client: its channel retries at growing intervals while the port is closed.
        self._has_connected = self._has_connected or await _can_connect(self._config)
        if not self._has_connected:
            message = f"No server listens at {self._config.grpc_url} yet."
            return Probe(outcome=ProbeOutcome.SLOW, step=CONNECT, message=message)
        report = await self._client.health(timeout_s=self._config.canary_timeout_s)
        failed = report.failed
        if failed is None:
            return Probe(outcome=ProbeOutcome.OK, model_id=report.model_id or "")
        is_slow = failed.error in (DeadlineExceeded, Overloaded) or failed.name == CONNECT
        outcome = ProbeOutcome.SLOW if is_slow else ProbeOutcome.BROKEN
        return Probe(outcome=outcome, step=failed.name, message=failed.message)

    async def full_batch_bytes(self) -> int:
        """Return how much shared memory the preprocessor needs for a full batch of small images."""
        assert self._client is not None
        model = await self._client.model()
        height, width = PreprocessConfig.from_mapping(model.preprocess).size
        pixels = height * width * 3
        # Half as much again for gaps between blocks, and the encoder's copy of the pixels.
        return model.max_batch_size * ((_SMALL_IMAGE + pixels) * 3 // 2 + pixels)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.aclose()


async def _can_connect(config: ServeConfig) -> bool:
    try:
        connecting = asyncio.open_connection(config.client_host.strip("[]"), config.grpc_port)
        _, writer = await asyncio.wait_for(connecting, config.canary_timeout_s)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True

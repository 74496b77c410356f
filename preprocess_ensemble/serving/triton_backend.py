"""How the supervisor acts on a real tritonserver: start it, probe it, count its requests, check its shared memory.

A probe embeds the canary, a small image whose vector was computed when the model was exported. A server that returns
another vector, or none, does not work, whatever its own health endpoints say.
"""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.serving.cleanup import free_bytes, region_prefix
from preprocess_ensemble.serving.supervisor import CONNECT, Probe, ProbeOutcome
from preprocess_ensemble.serving.triton_process import TritonProcess

if TYPE_CHECKING:
    from clip_client import ClipClient
    from preprocess_ensemble.serving.tensorrt import StagedRepository
    from preprocess_ensemble.serving.triton_process import ServeConfig

_SMALL_IMAGE: Final = 64 * 2**10
"""Bytes of an encoded image; the thumbnails that clip_client sends have 10 to 25 KB."""

_METRICS_TIMEOUT_S: Final = 2.0
_FINISHED: Final = 'nv_inference_request_success{model="clip_image"'
"""Triton's counter of answered requests, of the ensemble only. The preprocessor answers the canary's handshake, and
that would count as progress of an encoder that hangs."""


class TritonBackend:
    """A ``tritonserver`` process with the client that probes it; implements the supervisor's ``Backend``.

    ``staged`` is the repository that ``config`` serves if the encoder runs on TensorRT. Close it with :meth:`aclose`.
    """

    def __init__(self, config: ServeConfig, staged: StagedRepository | None = None) -> None:
        self._config = config
        self._staged = staged
        self._client: ClipClient | None = None
        self._has_connected = False
        self._process: TritonProcess | None = None

    async def start(self) -> TritonProcess:
        """Start the process. Raises TlsError, RepositoryError and OSError."""
        await self.reconnect()
        if self._staged is not None:
            # Another model may have been exported since the last start.
            self._staged.refresh()
        self._process = await TritonProcess.start(self._config)
        return self._process

    async def reconnect(self) -> None:
        """Trust the certificate that the server is about to read. Raises TlsError if it cannot be used."""
        # Imported here: gRPC takes most of the time that `clip-serve --help` would need.
        from clip_client import ClientConfig, ClipClient

        config = ClientConfig(urls=(self._config.grpc_url,), timeout_s=self._config.canary_timeout_s)
        if (tls := self._config.tls) is not None:
            name = tls.check()
            certificate, key = tls.canary_files or (None, None)
            config = replace(
                config, ca_certificate=tls.certificate, server_name=name, client_certificate=certificate, client_key=key
            )
        await self.aclose()
        self._has_connected = False
        self._client = await ClipClient(config=config).__aenter__()

    async def probe(self) -> Probe:
        """Embed the canary once."""
        from clip_client import DeadlineExceeded, Overloaded

        assert self._client is not None
        # Not through the client: its channel retries at growing intervals while the port is closed.
        self._has_connected = self._has_connected or await self._can_connect()
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

    async def progress(self) -> float | None:
        """Return how many requests for embeddings the server has finished, or None if it does not report that."""
        url = f"http://{self._config.client_host}:{self._config.metrics_port}/metrics"
        return await asyncio.to_thread(finished_requests, url)

    async def shortage(self) -> str:
        """Return one sentence if shared memory is too small for a full batch of small images, else an empty text."""
        assert self._client is not None
        assert self._process is not None
        model = await self._client.model()
        height, width = PreprocessConfig.from_mapping(model.preprocess).size
        pixels = height * width * 3
        # Half as much again for gaps between blocks, and the encoder's copy of the pixels.
        needed = model.max_batch_size * ((_SMALL_IMAGE + pixels) * 3 // 2 + pixels)
        free = free_bytes(region_prefix(self._process.pid))
        if free >= needed:
            return ""
        return (
            f"A full batch of small images needs {needed >> 20} MiB of shared memory and this server can have "
            f"{free >> 20} MiB: make /dev/shm larger (docker run --shm-size=1g), or remove what else is in it."
        )

    async def aclose(self) -> None:
        """Close the canary's connection. The supervisor stops the process."""
        if self._client is not None:
            await self._client.aclose()

    async def _can_connect(self) -> bool:
        try:
            connecting = asyncio.open_connection(self._config.client_host.strip("[]"), self._config.grpc_port)
            _, writer = await asyncio.wait_for(connecting, self._config.canary_timeout_s)
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return True


def finished_requests(metrics_url: str) -> float | None:
    """Return how many requests for embeddings a Triton has answered, or None if it does not report that."""
    try:
        with urllib.request.urlopen(metrics_url, timeout=_METRICS_TIMEOUT_S) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_FINISHED))
    except (OSError, http.client.HTTPException, ValueError):
        # The server may end, or be killed, in the middle of the answer.
        return None

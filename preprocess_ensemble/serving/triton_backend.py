"""How the supervisor acts on a real tritonserver: start it, probe it, count its requests, check its shared memory."""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.serving.canary_client import CanaryClient
from preprocess_ensemble.serving.cleanup import free_bytes, region_prefix
from preprocess_ensemble.serving.triton_process import TritonProcess

if TYPE_CHECKING:
    from preprocess_ensemble.serving.supervisor import Probe
    from preprocess_ensemble.serving.tensorrt import StagedRepository
    from preprocess_ensemble.serving.triton_process import ServeConfig

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
        self._canary = CanaryClient(config)
        self._process: TritonProcess | None = None

    async def start(self) -> TritonProcess:
        """Start the process. Raises TlsError, RepositoryError and OSError."""
        await self._canary.reconnect()
        if self._staged is not None:
            # Another model may have been exported since the last start.
            self._staged.refresh()
        self._process = await TritonProcess.start(self._config)
        return self._process

    async def probe(self) -> Probe:
        """Embed the canary once."""
        return await self._canary.probe()

    async def progress(self) -> float | None:
        """Return how many requests for embeddings the server has finished, or None if it does not report that."""
        url = f"http://{self._config.client_host}:{self._config.metrics_port}/metrics"
        return await asyncio.to_thread(finished_requests, url)

    async def shortage(self) -> str:
        """Return one sentence if shared memory is too small for a full batch, else an empty text."""
        assert self._process is not None
        needed, free = await self._canary.full_batch_bytes(), free_bytes(region_prefix(self._process.pid))
        if free >= needed:
            return ""
        return (
            f"A full batch of small images needs {needed >> 20} MiB of shared memory and this server can have "
            f"{free >> 20} MiB: make /dev/shm larger (docker run --shm-size=1g), or remove what else is in it."
        )

    async def aclose(self) -> None:
        """Close the canary's connection. The supervisor stops the process."""
        await self._canary.aclose()


def finished_requests(metrics_url: str) -> float | None:
    """Return how many requests for embeddings a Triton has answered, or None if it does not report that."""
    try:
        with urllib.request.urlopen(metrics_url, timeout=_METRICS_TIMEOUT_S) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_FINISHED))
    except (OSError, http.client.HTTPException, ValueError):
        # The server may end, or be killed, in the middle of the answer.
        return None

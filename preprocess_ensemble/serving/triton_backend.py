"""How the supervisor acts on a real tritonserver: start it, probe it, count its requests, check its shared memory.

A probe embeds the canary, a small image whose vector was computed when the model was exported. A server that returns
another vector, or none, does not work, whatever its own health endpoints say.
"""

from __future__ import annotations

import asyncio
import http.client
import struct
import urllib.request
import uuid
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.serving.cleanup import free_bytes, region_prefix
from preprocess_ensemble.serving.probe import Probe, ProbeOutcome, Step
from preprocess_ensemble.serving.triton_process import TritonProcess

if TYPE_CHECKING:
    from clip_client import ModelInfo
    from clip_client._transports.base import Transport
    from preprocess_ensemble.serving.tensorrt import StagedRepository
    from preprocess_ensemble.serving.triton_process import ServeConfig

_SMALL_IMAGE: Final = 64 * 2**10
"""Bytes of an encoded image; the thumbnails that clip_client sends have 10 to 25 KB."""

_METRICS_TIMEOUT_S: Final = 2.0
_FINISHED: Final = 'nv_inference_request_success{model="clip_image"'
"""Triton's counter of answered requests, of the ensemble only. The preprocessor alone answers clients' handshakes, and
they would count as progress of an encoder that hangs."""


class TritonBackend:
    """A ``tritonserver`` process with the connection that probes it.

    ``staged`` is the repository that ``config`` serves if the encoder runs on TensorRT. Close it with :meth:`aclose`.
    """

    def __init__(self, config: ServeConfig, staged: StagedRepository | None = None) -> None:
        self._config = config
        self._staged = staged
        self._transport: Transport | None = None
        self._model: ModelInfo | None = None
        self._full_batch_fits = False
        self._process: TritonProcess | None = None

    async def start(self) -> TritonProcess:
        """Start the process. Raises ReportedError and OSError."""
        await self.reconnect()
        if self._staged is not None:
            # Another model may have been exported since the last start.
            self._staged.refresh()
        self._process = await TritonProcess.start(self._config)
        return self._process

    async def reconnect(self) -> None:
        """Trust the certificate that the server is about to read. Raises ReportedError if it cannot be used."""
        # Imported here: gRPC takes most of the time that `clip-serve --help` would need.
        from clip_client import ClientConfig
        from clip_client._transports.factory import transport_factory

        config = ClientConfig(urls=(self._config.grpc_url,))
        if (tls := self._config.tls) is not None:
            name = tls.check()
            certificate, key = tls.canary_files or (None, None)
            config = replace(
                config, ca_certificate=tls.certificate, server_name=name, client_certificate=certificate, client_key=key
            )
        await self.aclose()
        self._model, self._full_batch_fits = None, False
        # Not a ClipClient, which would retry, and wait while it limits itself.
        self._transport = transport_factory(config)(config.endpoints[0], None)

    async def probe(self) -> Probe:
        """Embed the canary once, with one request; only the first probe of a server also asks for its model."""
        from clip_client import ClipError, DeadlineExceeded, Overloaded, Unavailable
        from clip_client._health import check_canary

        assert self._transport is not None
        timeout_s = self._config.canary_timeout_s
        step = Step.HANDSHAKE
        try:
            if self._model is None:
                # Not with gRPC, which retries at growing intervals while the port is closed.
                if not await self._can_connect():
                    return self._no_connection()
                self._model = await self._transport.model(timeout_s=timeout_s)
            step = Step.CANARY
            await check_canary(self._transport, self._model, timeout_s=timeout_s)
        except (DeadlineExceeded, Overloaded) as error:
            return Probe(outcome=ProbeOutcome.SLOW, step=step, message=error.message)
        except Unavailable:
            if not await self._can_connect():
                return self._no_connection()
            # The error says what a client can do about it; the supervisor is doing that.
            message = "The process of a model has ended or hangs."
            return Probe(outcome=ProbeOutcome.BROKEN, step=step, message=message)
        except ClipError as error:
            return Probe(outcome=ProbeOutcome.BROKEN, step=step, message=error.message)
        shortage = await self._shortage(self._transport, self._model)
        if shortage:
            return Probe(outcome=ProbeOutcome.SHORT, step=Step.SHARED_MEMORY, message=shortage, model_id=self._model.id)
        return Probe(outcome=ProbeOutcome.OK, model_id=self._model.id)

    async def progress(self) -> float | None:
        """Return how many requests for embeddings the server has finished, or None if it does not report that."""
        url = f"http://{self._config.client_host}:{self._config.metrics_port}/metrics"
        return await asyncio.to_thread(finished_requests, url)

    async def aclose(self) -> None:
        """Close the canary's connection. The supervisor stops the process."""
        if self._transport is not None:
            await self._transport.close()

    async def _shortage(self, transport: Transport, model: ModelInfo) -> str:
        """Return one sentence if shared memory is too small for a full batch of small images, else an empty text.

        The estimate is a little high, so if the memory seems too small, a full batch decides. It is tried until it
        succeeds once: Triton never makes its regions of shared memory smaller.
        """
        from clip_client import ClipError, DeadlineExceeded, Overloaded, Unavailable

        if self._full_batch_fits:
            return ""
        height, width = PreprocessConfig.from_mapping(model.preprocess).size
        pixels = height * width * 3
        # Half as much again for gaps between blocks, and the encoder's copy of the pixels.
        needed = model.max_batch_size * ((_SMALL_IMAGE + pixels) * 3 // 2 + pixels)
        assert self._process is not None
        try:
            free = free_bytes(region_prefix(self._process.pid))
        except ProcessLookupError:
            return ""  # it has just ended, which the supervisor notices by itself
        if free >= needed:
            return ""
        batch = [_padded(model.canary_image)] * model.max_batch_size
        try:
            await transport.infer(batch, request_id=uuid.uuid4().hex, timeout_s=self._config.canary_timeout_s)
        except (DeadlineExceeded, Overloaded, Unavailable):
            return ""  # it is busy or has ended; this says nothing about memory
        except ClipError:
            return (
                f"A full batch of small images needs {needed >> 20} MiB of shared memory and this server can have "
                f"{free >> 20} MiB: make /dev/shm larger (docker run --shm-size=1g), or remove what else is in it."
            )
        self._full_batch_fits = True
        return ""

    def _no_connection(self) -> Probe:
        message = f"No server listens at {self._config.grpc_url} yet."
        return Probe(outcome=ProbeOutcome.SLOW, step=Step.CONNECT, message=message)

    async def _can_connect(self) -> bool:
        try:
            connecting = asyncio.open_connection(self._config.client_host.strip("[]"), self._config.grpc_port)
            _, writer = await asyncio.wait_for(connecting, self._config.canary_timeout_s)
        except (TimeoutError, OSError):
            return False
        writer.close()
        return True


def _padded(png: bytes) -> bytes:
    """Return ``png`` with ``_SMALL_IMAGE`` bytes, of which a chunk that decoders skip has the rest."""
    end = png[-12:]
    chunk = b"paDd" + bytes(_SMALL_IMAGE - len(png) - 12)
    return png[:-12] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + end


def finished_requests(metrics_url: str) -> float | None:
    """Return how many requests for embeddings a Triton has answered, or None if it does not report that."""
    try:
        with urllib.request.urlopen(metrics_url, timeout=_METRICS_TIMEOUT_S) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_FINISHED))
    except (OSError, http.client.HTTPException, ValueError):
        # The server may end, or be killed, in the middle of the answer.
        return None

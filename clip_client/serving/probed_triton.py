"""A tritonserver for the supervisor: start it, embed its canaries, count its requests, check its shared memory."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import urllib.request
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from clip_client._config import ClientConfig
from clip_client._deadline import Deadline
from clip_client._errors import ClipError, DeadlineExceeded, ModelNotReady, Overloaded, Unavailable
from clip_client._health import Step, health_steps
from clip_client._model import ModelInfo
from clip_client._transports.base import Transport
from clip_client.serving.config import ADMIN_KEY, ServeConfig
from clip_client.serving.port_handover import CANARY_DSCP, PortHandover
from clip_client.serving.triton_process import Activity, TritonProcess
from preprocess_ensemble.contract import DEFAULT_NAMES, ModelNames
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.tritonserver.cleanup import free_bytes, region_prefix
from preprocess_ensemble.tritonserver.process_group import (
    connections,
    listening_addresses,
    processor_time_s,
    shares_port,
)

if TYPE_CHECKING:
    from clip_client._transports.grpc import TritonTransport

_SMALL_IMAGE: Final = 64 * 2**10  # bytes encoded; the thumbnails that clip_client sends have 10 to 25 KB
_METRICS_TIMEOUT_S: Final = 2.0
_ENDED: Final = ("nv_inference_request_success{", "nv_inference_request_failure{")
"""Triton's counters; a step of an ensemble is a request to its model."""

_SERVE_ON_S: Final = 10.0  # service after a signal to stop, until a load balancer has noticed it
_QUIET_S: Final = 0.3


class ProbeOutcome(Enum):
    OK = "ok"
    SHORT = "short"
    SLOW = "slow"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Result of the canaries: the outcome and, unless it is OK, the step that failed and one sentence about it."""

    outcome: ProbeOutcome
    step: Step = Step.CANARY
    message: str = ""
    model_id: str = ""


@dataclass(kw_only=True)
class _ServedModel:
    names: ModelNames
    transport: TritonTransport
    info: ModelInfo | None = None


class ProbedTriton:
    """A ``tritonserver`` process with the connections that probe it. Make it with :meth:`start`."""

    process: TritonProcess
    activity: Activity

    def __init__(self, config: ServeConfig, *, beside: bool = False) -> None:
        """Trust the certificate that the server is about to read. Raises ReportedError if it cannot be used."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._config = replace(config, triton_metrics_port=free.getsockname()[1])
        self._full_batch_fits = False
        self._is_candidate = beside  # another server has the port until this one is checked
        self._began_beside = beside  # another server may listen on the port, too
        self._probed_ensemble = DEFAULT_NAMES.image
        self._models = self._connect()

    @classmethod
    async def start(cls, config: ServeConfig, *, beside: bool = False) -> ProbedTriton:
        triton = cls(config, beside=beside)
        try:
            triton.process = await TritonProcess.start(triton._config)
        except OSError:
            await triton._disconnect()
            raise
        triton.activity = Activity(partial(processor_time_s, triton.process.pid), triton.progress)
        return triton

    async def stop(self, *, drain_s: float) -> None:
        await self.process.stop(drain_s=drain_s)
        await self._disconnect()

    def hand_over(self) -> PortHandover:
        """Return the handover of the port to a successor. Raises ReportedError if that is not possible."""
        if self._config.http_port is not None:
            raise ReportedError("--http-port is open, whose connections cannot be handed over")
        port = self._config.grpc_port
        return PortHandover(listening_addresses(self.process.pid, port) or [], port)

    async def take_over(self) -> None:
        await self._disconnect()
        self._is_candidate = False
        self._models = self._connect()

    async def no_connections(self) -> None:
        await self._disconnect()
        while connections(self.process.pid, self._config.grpc_port):  # noqa: ASYNC110 - the kernel tells no one
            await asyncio.sleep(_QUIET_S)

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self._config.triton_metrics_port}/metrics"

    def _connect(self) -> list[_ServedModel]:
        # Imported here: gRPC takes most of the time that `clip-serve --help` would need.
        from clip_client._transports.grpc import transport_factory

        config = ClientConfig(
            urls=(self._config.grpc_url,),
            token=self._config.admin_secret,
            token_header=f"triton-grpc-protocol-{ADMIN_KEY}",
            allow_token_in_clear=True,
        )
        if (tls := self._config.tls) is not None:
            name = tls.check()
            certificate, key = tls.canary_files or (None, None)
            config = replace(
                config, ca_certificate=tls.certificate, server_name=name, client_certificate=certificate, client_key=key
            )
        marks = [("grpc.dscp", CANARY_DSCP)] if self._is_candidate else []
        models = []
        # Not a ClipClient, which would retry, and wait while it limits itself.
        for names in self._config.names:
            named = replace(config, model=names.name)
            transport = transport_factory(named, more_options=marks)(named.endpoints[0], None)
            models.append(_ServedModel(names=names, transport=transport))
        return models

    async def _disconnect(self) -> None:
        while self._models:
            await self._models.pop().transport.close()

    async def probe(self) -> Probe:
        """Embed each canary once; then ask for readiness, which tells ended processes since release 25.12."""
        for served in self._models:
            if (failed := await self._probe_model(served)) is not None:
                if len(self._models) > 1:
                    failed = replace(failed, message=f"Model {served.names.name}: {failed.message}")
                return failed
        models = [served.info for served in self._models if served.info is not None]
        ids = ", ".join(model.id for model in models)
        if shortage := await self._shortage(self._models[0].transport, models[0]):
            return Probe(outcome=ProbeOutcome.SHORT, step=Step.SHARED_MEMORY, message=shortage, model_id=ids)
        return Probe(outcome=ProbeOutcome.OK, model_id=ids)

    async def _probe_model(self, served: _ServedModel) -> Probe | None:
        steps = [Step.CANARY, Step.TEXT_CANARY, Step.READY]
        if served.info is None:
            if (problem := await self._no_server()) is not None:
                return problem
            steps.insert(0, Step.HANDSHAKE)
        self._probed_ensemble = served.names.image
        limit_s = self._config.canary_timeout_s
        findings = health_steps(served.transport, steps, limit_s=lambda: limit_s, model=served.info)
        async with contextlib.aclosing(findings):
            async for found in findings:
                if found.error is not None:
                    return await self._failed(found.step, found.error)
                if found.step is Step.HANDSHAKE:
                    if self._is_candidate and not connections(self.process.pid, self._config.grpc_port):
                        return _broken(found.step, "The old server answered in its place.")
                    served.info = found.model
                if found.step is Step.CANARY and found.model is not None and found.model.text is not None:
                    self._probed_ensemble = served.names.text
        return None

    async def _no_server(self) -> Probe | None:
        pid, port = self.process.pid, self._config.grpc_port
        # Not with gRPC, which retries at growing intervals while the port is closed.
        if not await self._can_connect():
            return self._no_connection()
        if listening_addresses(pid, port) != [] and (self._began_beside or not shares_port(pid, port)):
            return None
        if self._is_candidate:
            return self._no_connection()
        message = f"Another program has opened port {port}: stop it, or choose another port with --grpc-port."
        return _broken(Step.CONNECT, message)

    async def _failed(self, step: Step, error: ClipError) -> Probe:
        match error:
            case DeadlineExceeded() | Overloaded():
                return Probe(outcome=ProbeOutcome.SLOW, step=step, message=error.message)
            case Unavailable():
                if not await self._can_connect():
                    return self._no_connection()
                # The error says what a client can do about it; the supervisor is doing that.
                return _broken(step, "The process of a model has ended or hangs.")
            case ModelNotReady() if step is not Step.HANDSHAKE:
                return _broken(step, "A model is not ready any more: its process has ended.")
        return _broken(step, error.message)

    async def progress(self) -> float | None:
        """Return how many requests for embeddings the server has finished, or None if it does not report that.

        Requests count if they are for the tower whose canary was sent last: another tower may work while this tower
        hangs. Requests for the preprocessor alone do not count, because they are clients' handshakes.
        """
        ended = f'nv_inference_request_success{{model="{self._probed_ensemble}"'
        counts = await asyncio.to_thread(read_metrics, self.metrics_url, [ended])
        return counts[0] if counts else None

    async def answer_all(self) -> None:
        """Return when the server has no request in flight; refuse further ones when few come, or after a while.

        Triton refuses requests for an unloaded model, and keeps the model until those before are answered. The steps of
        the ensembles stay loaded, because a step whose process has ended ends the draining.
        """
        ask, serves = self._models[0].transport.ask, Deadline(_SERVE_ON_S)
        ensembles = {one for model in self._models for one in (model.names.image, model.names.text)}
        steps = {one for model in self._models for one in model.names.of_images + model.names.of_texts} - ensembles
        before: list[float] | None = None
        while True:
            await asyncio.sleep(_QUIET_S)
            counts = await asyncio.to_thread(read_metrics, self.metrics_url, _ENDED)
            with contextlib.suppress(ClipError):
                index = (await ask("RepositoryIndex", _METRICS_TIMEOUT_S)).models
                loaded = {model.name for model in index if model.state in ("READY", "UNLOADING")} - steps
                if not loaded:
                    return
                if counts == before or serves.expired:
                    for name in loaded & ensembles or loaded:
                        await ask("RepositoryModelUnload", _METRICS_TIMEOUT_S, model_name=name)
            before = counts

    async def _shortage(self, transport: Transport, model: ModelInfo) -> str:
        """Return one sentence if shared memory is too small for a full batch of small images, else an empty text.

        The estimate is a little high, so if the memory seems too small, a full batch decides. It is tried until it
        succeeds once: Triton never makes its regions of shared memory smaller.
        """
        if self._full_batch_fits:
            return ""
        height, width = PreprocessConfig.from_mapping(model.preprocess).size
        pixels = height * width * 3
        # Half as much again for gaps between blocks, and the encoder's copy of the pixels.
        needed = model.max_batch_size * ((_SMALL_IMAGE + pixels) * 3 // 2 + pixels)
        try:
            free = free_bytes(region_prefix(self.process.pid))
        except ProcessLookupError:
            return ""  # it has just ended, which the supervisor notices by itself
        if free >= needed:
            return ""
        # Decoders skip what follows the end of a PNG.
        batch = [model.canary_image.ljust(_SMALL_IMAGE)] * model.max_batch_size
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


def _broken(step: Step, message: str) -> Probe:
    return Probe(outcome=ProbeOutcome.BROKEN, step=step, message=message)


def read_metrics(url: str, names: Sequence[str]) -> list[float] | None:
    """Return for each of ``names`` the sum of the metrics that begin with it, or None if Triton does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=_METRICS_TIMEOUT_S) as response:
            lines = response.read().decode().splitlines()
        return [sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)) for name in names]
    except (OSError, http.client.HTTPException, ValueError):
        # The server may end, or be killed, in the middle of the answer.
        return None

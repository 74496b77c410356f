"""Checks a service step by step, so that a failure has a name."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client._errors import ClipError, DeadlineExceeded, ProtocolMismatch, Unavailable
from clip_client._handshake import fetch_model

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from numpy.typing import NDArray

    from clip_client._model import ModelInfo
    from clip_client._transports.base import Transport

CANARY_MIN_COSINE: Final = 0.999
"""Between the vector of the canary image in the passport and the one that the server makes now. Reduced precision stays
above it; a wrong model, wrong preprocessing or a broken GPU does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthStep:
    """One check. Steps after the first that failed are not tried."""

    server: str
    """The server's URL; ``local:...`` if the model is in this process."""
    name: str
    """``connect``, ``server live``, ``models ready``, ``handshake`` or ``canary``."""
    ok: bool | None
    """None if it was not tried."""
    message: str
    """What was found; if the step failed, what is wrong and what to do."""
    elapsed_s: float
    error: type[ClipError] | None = None
    """The kind of failure, for programs; None if the step succeeded or was not tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthReport:
    """All steps, in order, server by server."""

    steps: tuple[HealthStep, ...]
    model_id: str | None = None
    """The model that the server serves; None if the handshake was not reached."""

    @property
    def ok(self) -> bool:
        """True if every step succeeded."""
        return all(step.ok for step in self.steps)

    @property
    def failed(self) -> HealthStep | None:
        """The first step that failed, or None."""
        return next((step for step in self.steps if step.ok is False), None)


async def run_health_checks(transport: Transport, *, name: str, timeout_s: float) -> HealthReport:
    """Run all steps within ``timeout_s``. Nothing is retried, and the steps after the first failure are skipped."""
    checks = _Checks(transport, timeout_s)
    steps: list[HealthStep] = []
    for step, check in checks.steps():
        if steps and not steps[-1].ok:
            steps.append(HealthStep(server=name, name=step, ok=None, message="not tried", elapsed_s=0.0))
            continue
        started = time.perf_counter()
        kind: type[ClipError] | None = None
        try:
            message = await check()
        except ClipError as error:
            message, kind = str(error), type(error)
        elapsed_s = time.perf_counter() - started
        steps.append(
            HealthStep(server=name, name=step, ok=kind is None, message=message, elapsed_s=elapsed_s, error=kind)
        )
    return HealthReport(steps=tuple(steps), model_id=checks.model_id)


class _Checks:
    def __init__(self, transport: Transport, timeout_s: float) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_s
        self._live = False
        self._model: ModelInfo | None = None

    @property
    def model_id(self) -> str | None:
        """The model that the handshake named; None before it."""
        return None if self._model is None else self._model.id

    def steps(self) -> tuple[tuple[str, Callable[[], Awaitable[str]]], ...]:
        return (
            ("connect", self._connect),
            ("server live", self._server_live),
            ("models ready", self._models_ready),
            ("handshake", self._handshake),
            ("canary", self._canary),
        )

    def _remaining(self) -> float:
        remaining = self._deadline - self._loop.time()
        if remaining <= 0:
            raise DeadlineExceeded("timeout_s ran out before this step.")
        return remaining

    async def _connect(self) -> str:
        self._live = await self._transport.server_live(timeout_s=self._remaining())
        return "the server responds"

    async def _server_live(self) -> str:
        if not self._live:
            raise Unavailable("The server responds, but says that it is not live; its log has the reason.")
        return "the server says that it is live"

    async def _models_ready(self) -> str:
        await self._transport.models_ready(timeout_s=self._remaining())
        return "the server says that all models are ready"

    async def _handshake(self) -> str:
        self._model = await fetch_model(self._transport, timeout_s=self._remaining())
        return f"the server serves {self._model.id}"

    async def _canary(self) -> str:
        request_id = uuid.uuid4().hex
        model = self._model
        assert model is not None, "the handshake comes first"
        answer = await self._transport.infer([model.canary_image], request_id=request_id, timeout_s=self._remaining())
        if answer.statuses[0]:
            raise ProtocolMismatch(
                f"The server could not embed the canary image: {answer.errors[0]}", request_id=request_id
            )
        if tuple(answer.fingerprints[0]) != model.fingerprint or answer.vectors.shape[1] != model.dimension:
            raise ProtocolMismatch(
                "The encoder is not the model of the passport; export the model again.", request_id=request_id
            )
        cosine = _cosine(answer.vectors[0], model.canary_vector)
        if not cosine >= CANARY_MIN_COSINE:
            raise ProtocolMismatch(
                f"The vector of the canary image is wrong (cosine {cosine:.4f}, must be at least {CANARY_MIN_COSINE}); "
                "export the model again on this machine.",
                request_id=request_id,
            )
        return f"the canary image has the right vector (cosine {cosine:.6f})"


def _cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norms if norms else 0.0

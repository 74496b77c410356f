"""Checks a service step by step, so that a failure is tied to a named step."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client._errors import ClipError, DeadlineExceeded, ProtocolMismatch, Unavailable
from clip_client._model import Tower

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client._model import ModelInfo
    from clip_client._transports.base import Transport

CANARY_MIN_COSINE: Final = 0.999
"""Least cosine between the vector of a canary in the passport and the vector that the server makes now. Reduced
precision stays above it; a wrong model, wrong preprocessing or a broken GPU falls below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthStep:
    """One check. Steps after the first that failed are not tried."""

    server: str
    """The server's URL; ``local:...`` if the model is in this process."""
    name: str
    """``connect``, ``server live``, ``models ready``, ``handshake``, ``canary``, or ``text canary`` if the model has a
    text tower."""
    ok: bool | None
    """None if the step was not tried."""
    message: str
    """The finding; if the step failed, the problem and its remedy."""
    elapsed_s: float
    error: type[ClipError] | None = None
    """Kind of failure, for programs; None if the step succeeded or was not tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthReport:
    """All steps, in order, server by server."""

    steps: tuple[HealthStep, ...]
    model: ModelInfo | None = None
    """Model that the server serves; None if the handshake was not reached or failed."""

    @property
    def model_id(self) -> str | None:
        return None if self.model is None else self.model.id

    @property
    def ok(self) -> bool:
        """True if every step succeeded."""
        return all(step.ok for step in self.steps)

    @property
    def failed(self) -> HealthStep | None:
        """The first step that failed, or None."""
        return next((step for step in self.steps if step.ok is False), None)


_STEPS: Final = ("connect", "server live", "models ready", "handshake", "canary")
_TEXT_STEP: Final = "text canary"


async def run_health_checks(transport: Transport, *, name: str, timeout_s: float) -> HealthReport:
    """Run all steps within ``timeout_s``. Nothing is retried, and the steps after the first failure are skipped."""
    findings = _findings(transport, timeout_s)
    steps: list[HealthStep] = []
    model: ModelInfo | None = None
    for step in (*_STEPS, _TEXT_STEP):
        if step == _TEXT_STEP and (model is None or model.text is None):
            break
        if steps and not steps[-1].ok:
            steps.append(_not_tried(name, step))
            continue
        started = time.perf_counter()
        kind: type[ClipError] | None = None
        try:
            message, model = await anext(findings)
        except ClipError as error:
            message, kind = str(error), type(error)
        taken_s = time.perf_counter() - started
        steps.append(HealthStep(server=name, name=step, ok=not kind, message=message, elapsed_s=taken_s, error=kind))
    return HealthReport(steps=tuple(steps), model=model)


def without_address(name: str, elapsed_s: float) -> HealthReport:
    """Return the report for servers whose addresses were not known in time; ``name`` names all of them."""
    message = "timeout_s ran out before the address was known; does the name server answer?"
    first, *others = _STEPS
    failed = HealthStep(server=name, name=first, ok=False, message=message, elapsed_s=elapsed_s, error=DeadlineExceeded)
    return HealthReport(steps=(failed, *(_not_tried(name, step) for step in others)))


def _not_tried(server: str, step: str) -> HealthStep:
    return HealthStep(server=server, name=step, ok=None, message="not tried", elapsed_s=0.0)


async def _findings(transport: Transport, timeout_s: float) -> AsyncIterator[tuple[str, ModelInfo | None]]:
    """Run the steps in order; yield the finding of each, and the model (None before the handshake)."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s

    def remaining() -> float:
        if loop.time() >= deadline:
            raise DeadlineExceeded("timeout_s ran out before this step.")
        return deadline - loop.time()

    is_live = await transport.server_live(timeout_s=remaining())
    yield "the server responds", None
    if not is_live:
        raise Unavailable("The server responds, but says that it is not live; its log has the reason.")
    yield "the server says that it is live", None
    await transport.models_ready(timeout_s=remaining())
    yield "the server says that all models are ready", None
    model = await transport.model(timeout_s=remaining())
    yield f"the server serves {model.id}", model
    for tower in Tower if model.text is not None else (Tower.IMAGE,):
        yield await check_canary(transport, model, tower, timeout_s=remaining()), model


async def check_canary(transport: Transport, model: ModelInfo, tower: Tower = Tower.IMAGE, *, timeout_s: float) -> str:
    """Embed the canary image or text of ``model`` with one request; return one sentence if its vector is right.

    Raises ProtocolMismatch if the vector is wrong or is another model's, and the transport's errors.
    """
    request_id = uuid.uuid4().hex
    if tower is Tower.IMAGE:
        canary, expected = model.canary_image, model.canary_vector
    else:
        canary, expected = model.text_tower.canary.encode(), model.text_tower.canary_vector
    answer = await transport.infer([canary], tower=tower, request_id=request_id, timeout_s=timeout_s)
    if answer.statuses[0]:
        problem = f"The server could not embed the canary {tower.value}: {answer.errors[0]}"
    elif tuple(answer.fingerprints[0]) != model.fingerprint_of(tower) or answer.vectors.shape[1] != model.dimension:
        problem = "The encoder is not the model of the passport; export the model again."
    elif not (cosine := _cosine(answer.vectors[0], expected)) >= CANARY_MIN_COSINE:
        problem = (
            f"The vector of the canary {tower.value} is wrong (cosine {cosine:.4f}, must be at least "
            f"{CANARY_MIN_COSINE}); export the model again on this machine."
        )
    else:
        return f"the canary {tower.value} has the right vector (cosine {cosine:.6f})"
    raise ProtocolMismatch(problem, request_id=request_id)


def _cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norms if norms else 0.0

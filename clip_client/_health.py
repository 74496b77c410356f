"""Checks a service step by step, so that a failure is tied to a named step."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clip_client._deadline import Deadline
from clip_client._errors import ClipError, DeadlineExceeded, ProtocolMismatch, Unavailable
from clip_client._model import ModelInfo, Tower
from clip_client._transports.base import Transport

CANARY_MIN_COSINE: Final = 0.999
"""Least cosine between the vector of a canary in the passport and the vector that the server makes now. Reduced
precision stays above it; a wrong model, wrong preprocessing or a broken GPU falls below."""


class Step(Enum):
    """The checks of a server. The values are the names in reports and in ``/healthz``."""

    CONNECT = "connect"
    LIVE = "server live"
    READY = "models ready"
    HANDSHAKE = "handshake"
    CANARY = "canary"
    TEXT_CANARY = "text canary"
    """Only for a model with a text tower."""

    START = "start"
    PROCESS = "process"
    """The processes of the models run. Only ``clip-serve`` can see them, the start and the memory."""
    SHARED_MEMORY = "shared memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthStep:
    """One check. The steps after a failed one are not tried."""

    server: str
    """The server's URL; ``local:...`` if the model is in this process."""
    name: str
    """``connect``, ``server live``, ``models ready``, ``handshake``, ``canary``; ``text canary`` for a text tower."""
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
        return all(step.ok for step in self.steps)

    @property
    def failed(self) -> HealthStep | None:
        return next((step for step in self.steps if step.ok is False), None)


_STEPS: Final = (Step.CONNECT, Step.LIVE, Step.READY, Step.HANDSHAKE, Step.CANARY, Step.TEXT_CANARY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    step: Step
    message: str
    elapsed_s: float
    model: ModelInfo | None
    """None before the handshake."""
    error: ClipError | None = None


async def health_steps(
    transport: Transport, steps: Iterable[Step], *, limit_s: Callable[[], float], model: ModelInfo | None = None
) -> AsyncGenerator[Finding, None]:
    """Run ``steps`` of a report in order; yield each finding, and end after the first step that fails.

    ``limit_s`` returns the seconds that the next step may take, and raises DeadlineExceeded if the time is over. The
    canaries, inputs with a known vector, are those of ``model``, or of the model from the handshake. The text canary
    needs a text tower.
    """
    is_live = False

    async def message_of(step: Step, timeout_s: float) -> str:
        nonlocal model, is_live
        match step:
            case Step.CONNECT:
                is_live = await transport.server_live(timeout_s=timeout_s)
                return "the server responds"
            case Step.LIVE:
                if not is_live:
                    raise Unavailable("The server responds, but says that it is not live; its log has the reason.")
                return "the server says that it is live"
            case Step.READY:
                await transport.models_ready(timeout_s=timeout_s)
                return "the server says that all models are ready"
            case Step.HANDSHAKE:
                model = await transport.model(timeout_s=timeout_s)
                return f"the server serves {model.id}"
        assert model is not None, "a canary is a model's"
        tower = Tower.IMAGE if step is Step.CANARY else Tower.TEXT
        return await check_canary(transport, model, tower, timeout_s=timeout_s)

    for step in steps:
        if step is Step.TEXT_CANARY and (model is None or model.text is None):
            continue
        started = time.perf_counter()
        error: ClipError | None = None
        try:
            message = await message_of(step, limit_s())
        except ClipError as failure:
            message, error = str(failure), failure
        yield Finding(step=step, message=message, elapsed_s=time.perf_counter() - started, model=model, error=error)
        if error is not None:
            return


async def run_health_checks(transport: Transport, name: str, deadline: Deadline) -> HealthReport:
    """Run all steps of a report before ``deadline``; nothing is retried."""

    def limit_s() -> float:
        if deadline.expired:
            raise DeadlineExceeded("timeout_s ran out before this step.")
        return deadline.remaining

    return _report(name, [one async for one in health_steps(transport, _STEPS, limit_s=limit_s)])


def without_address(name: str, elapsed_s: float) -> HealthReport:
    """Return the report for servers whose addresses were not known in time; ``name`` names all of them."""
    error = DeadlineExceeded("timeout_s ran out before the address was known; does the name server answer?")
    return _report(name, [Finding(step=_STEPS[0], message=error.message, elapsed_s=elapsed_s, model=None, error=error)])


def _report(server: str, findings: list[Finding]) -> HealthReport:
    model = next((found.model for found in reversed(findings) if found.model is not None), None)
    steps = [
        HealthStep(
            server=server,
            name=found.step.value,
            ok=found.error is None,
            message=found.message,
            elapsed_s=found.elapsed_s,
            error=None if found.error is None else type(found.error),
        )
        for found in findings
    ]
    tried = {found.step for found in findings} | ({Step.TEXT_CANARY} if model is None or model.text is None else set())
    steps += [
        HealthStep(server=server, name=step.value, ok=None, message="not tried", elapsed_s=0.0)
        for step in _STEPS
        if step not in tried
    ]
    return HealthReport(steps=tuple(steps), model=model)


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
    elif answer.fingerprints[0] != model.fingerprint_of(tower) or answer.vectors.shape[1] != model.dimension:
        problem = "This is not the model that the server describes; export the model again."
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

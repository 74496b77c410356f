"""What one canary of a server found, and where it failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Step(Enum):
    """Where a probe failed; the values are those of ``/healthz``."""

    START = "start"
    CONNECT = "connect"
    """No server listens."""
    PROCESS = "process"
    """The process of a model has ended."""
    HANDSHAKE = "handshake"
    CANARY = "canary"
    SHARED_MEMORY = "shared memory"


class ProbeOutcome(Enum):
    """What a probe found."""

    OK = "ok"
    SHORT = "short"
    SLOW = "slow"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Result of one canary: the outcome and, unless it is OK, the step that failed and one sentence about it."""

    outcome: ProbeOutcome
    step: Step = Step.CANARY
    message: str = ""
    model_id: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the canary got the right vector."""
        return self.outcome in (ProbeOutcome.OK, ProbeOutcome.SHORT)

"""What the supervisor needs of a server: a process, and probes of what it answers. ``TritonBackend`` provides both."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


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


class Process(Protocol):
    """What the supervisor needs of a server process; ``TritonProcess`` provides it."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""

    @property
    def opened(self) -> bool:
        """Whether it has loaded its models and opened its port for them; known for certain once it is stopped."""

    def computed_s(self) -> float:
        """Return the processor time of it and its helpers so far."""

    def watch_stubs(self, ended: Callable[[], None]) -> None:
        """Take the server for ready: from now on, call ``ended`` when a process that serves one of its models ends."""

    def ended(self) -> Coroutine[Any, Any, int]:
        """Wait for its end; return the exit code."""

    async def reason(self) -> str:
        """Return why it ended, once it has; call :meth:`stop` before."""

    async def stop(self, *, drain_s: float) -> None:
        """Stop it and clean up; at once if ``drain_s`` is 0."""


class Backend(Protocol):
    """How the supervisor acts on the server; ``TritonBackend`` provides it."""

    async def start(self) -> Process:
        """Start a process. Raises ReportedError or OSError if that fails."""

    async def probe(self) -> Probe:
        """Send one canary."""

    async def progress(self) -> float | None:
        """Return how many requests for embeddings the server has finished, or None if it does not report that."""

"""Keeps one Triton serving: sends it a canary, an image with a known vector, and restarts it if that fails.

Triton's own health endpoints still say "ready" after a model's process has died, so the supervisor does not ask them.
The outcome of a probe decides what it does::

    ProbeOutcome  meaning                                         action
    OK            the canary has the right vector                 none
    SLOW          no answer in time, or rejected because of load  none while the server finishes requests or computes;
                                                                  otherwise "stuck", and a restart after a while
    BROKEN        an error: dead stub, missing model, wrong       restart at once
                  vector

A server process that has ended is restarted as well. If a server fails soon after its start, the pauses before its
restarts grow exponentially.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.serving.activity_monitor import SAMPLE_EVERY_S, ActivityMonitor

logger = logging.getLogger(__name__)
# That it is loading is worth a line of the log, although no warning.
logger.setLevel(logging.INFO)

_MAX_BACKOFF_S: Final = 60.0
_MAX_COMPUTING: Final = 15
"""How many times ``frozen_after_s`` a server may compute without finishing a request. A full batch of a large model on
a busy machine takes minutes, but a defect that spins must end, too."""

_FIRST_SAMPLE_S: Final = 0.1
"""If a canary takes longer, the supervisor starts to sample what the server does."""

_START_POLL_S: Final = 0.2
_SAY_LOADING_EVERY_S: Final = 10.0
_MAX_WRONG_AT_START: Final = 3

CONNECT: Final = "connect"
"""The step of a probe that no server answered."""


class ProbeOutcome(Enum):
    """What a probe found."""

    OK = "ok"
    SLOW = "slow"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Result of one canary: the outcome, the step that failed and one sentence about it."""

    outcome: ProbeOutcome
    step: str = ""
    message: str = ""
    model_id: str = ""


class Process(Protocol):
    """What the supervisor needs of a server process; ``TritonProcess`` provides it."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""

    def computed_s(self) -> float:
        """Return the processor time of it and its helpers so far."""

    def watch_stubs(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` when a process that serves one of its models ends."""

    def ended(self) -> Coroutine[Any, Any, int]:
        """Wait for its end; return the exit code."""

    async def reason(self) -> str:
        """Return why it ended, once it has."""

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

    async def shortage(self) -> str:
        """Return what the server lacks to answer a full batch, as a sentence with the remedy; empty if nothing."""


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig:
    """Intervals and limits, in seconds."""

    interval_s: float = 3.0
    """Between two canaries."""
    frozen_after_s: float = 20.0
    """Restart a server that neither answers the canary nor finishes a request nor computes for this long. One that
    computes is restarted after fifteen times as long."""
    start_timeout_s: float = 600.0
    """For loading all models; building a TensorRT engine takes minutes."""
    drain_s: float = 30.0
    """For running requests when the server is stopped on purpose."""
    settled_after_s: float = 60.0
    """A server that was healthy for this long is restarted without delay when it fails."""


class StartError(ReportedError):
    """The server did not become ready."""


class CrashedAtStart(StartError):
    """A defect ended the server while it started."""


_CRASHES: Final = frozenset(-number for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV))
"""Exit codes of a program that a defect has ended, rather than another program or itself."""


class Supervisor:
    """Runs the server until it is told to stop. One object serves one :meth:`run`; create it inside its event loop."""

    def __init__(self, backend: Backend, config: SupervisorConfig) -> None:
        self._backend = backend
        self._config = config
        # The event loop's own clock, so that timers and limits never disagree.
        self._now = asyncio.get_running_loop().time
        # What was asked for, or happened to the server.
        self._stop_requested = asyncio.Event()
        self._kill_requested = asyncio.Event()
        self._reload_requested = asyncio.Event()
        self._stub_ended = asyncio.Event()
        # What is reported.
        self._status = "starting"
        self._probe = Probe(outcome=ProbeOutcome.BROKEN, step="start", message="the server is starting")
        self._model_id = ""
        self._restarts = 0
        self._restart_reason = ""
        self._shortage = ""
        # What decides about restarts.
        self._process: Process | None = None
        self._failures = 0
        self._healthy_since = 0.0
        self._activity = ActivityMonitor()

    def stop(self) -> None:
        """Drain the server and end. A second call ends the draining."""
        if self._stop_requested.is_set():
            self._kill_requested.set()
        self._stop_requested.set()

    def reload(self) -> None:
        """Drain the server and restart it, so that it serves the present contents of its repository."""
        self._reload_requested.set()

    def report(self) -> tuple[bool, Mapping[str, Any]]:
        """Return whether images are being embedded, and the latest findings. An overloaded server still embeds."""
        healthy = self._status in ("ready", "overloaded")
        found = {"status": self._status, "model": self._model_id, "restarts": self._restarts}
        if self._restart_reason:
            return healthy, {**found, "step": "start", "message": self._restart_reason}
        if self._probe.outcome is not ProbeOutcome.OK:
            return healthy, {**found, "step": self._probe.step, "message": self._probe.message}
        if self._shortage:
            return healthy, {**found, "step": "shared memory", "message": self._shortage}
        return healthy, found

    async def run(self, on_ready: Callable[[Probe], None]) -> None:
        """Start the server, call ``on_ready`` once when it is ready, and keep it serving until :meth:`stop`.

        Raises ``StartError`` if the first start fails, or, if that one crashed, the second. Later starts are retried
        without limit.
        """
        try:
            try:
                await self._start()
            except CrashedAtStart as crash:
                if self._stop_requested.is_set():
                    return
                # One of hundreds of starts of tritonserver (24.10) has aborted without a word; the next one worked.
                logger.error("%s; trying once more", crash)
                await self._stop_process(drain_s=0)
                await self._start()
            if not self._stop_requested.is_set():
                on_ready(self._probe)
            while not self._stop_requested.is_set():
                await self._watch_once()
        finally:
            was_ready = self._status != "starting"
            self._status = "stopping"
            await self._stop_process(drain_s=self._config.drain_s if was_ready else 0)

    async def _start(self) -> None:
        """Start a process and wait until its canary is right. Returns early if a stop is requested."""
        self._reload_requested.clear()  # this start reads the repository
        self._stub_ended.clear()  # a stub that ended with the previous server must not interrupt the canary of this one
        self._process = process = await self._backend.start()
        self._activity.reset(process.computed_s(), now=self._now())
        started = said = self._now()
        deadline = started + self._config.start_timeout_s
        logger.info("loading the models")
        wrong = 0
        while not self._stop_requested.is_set():
            if not process.running:
                kind = CrashedAtStart if await process.ended() in _CRASHES else StartError
                raise kind(f"tritonserver ended while it started: {await process.reason()}")
            if not await self._send_canary(process):
                continue
            if self._probe.outcome is ProbeOutcome.OK:
                self._restart_reason = ""
                await self._on_canary_ok(process)
                self._healthy_since = self._now()
                self._stub_ended.clear()
                process.watch_stubs(self._stub_ended.set)
                return
            # Triton opens its ports when all models are loaded, so a wrong answer then stays wrong.
            wrong += self._probe.outcome is ProbeOutcome.BROKEN and self._probe.step != CONNECT
            if wrong >= _MAX_WRONG_AT_START:
                raise StartError(f"{self._probe.step}: {self._probe.message}")
            if self._now() - said >= _SAY_LOADING_EVERY_S:
                said = self._now()
                logger.info("still loading after %.0f s", said - started)
            if self._now() > deadline:
                raise StartError(
                    f"tritonserver was not ready within {self._config.start_timeout_s:g} s: {self._probe.message}"
                )
            await self._pause(_START_POLL_S)

    async def _watch_once(self) -> None:
        """Wait for the next canary or the end of the process, and act on the result."""
        process = self._process
        assert process is not None
        await self._pause(self._config.interval_s, self._reload_requested, self._stub_ended)
        if self._stub_ended.is_set():
            # Its model may have been unloaded on purpose. The next canary tells; until then this is not healthy.
            self._stub_ended.clear()
            self._status = "failing"
            message = "The process of a model has ended."
            self._probe = Probe(outcome=ProbeOutcome.BROKEN, step="process", message=message)
        if self._stop_requested.is_set():
            return
        if self._reload_requested.is_set():
            # Not an unload and a load: under load these have damaged tritonserver's heap (24.10).
            await self._restart_at_once("reload requested", drain_s=self._config.drain_s)
            return
        if not process.running:
            await self._restart(f"tritonserver ended ({await process.reason()})")
            return
        if not await self._send_canary(process) or self._stop_requested.is_set() or not process.running:
            return
        match self._probe.outcome:
            case ProbeOutcome.OK:
                await self._on_canary_ok(process)
            case ProbeOutcome.SLOW:
                await self._consider_slow(process)
            case ProbeOutcome.BROKEN:
                # A reload of the models is seconds faster if it works. But with requests waiting, tritonserver (24.10)
                # hung or ended in it after one of three killed stubs, and it never releases an instance whose stub is
                # gone.
                self._status = "failing"
                # After the semicolon the sentence tells users what to do; the supervisor is doing it.
                cause = self._probe.message.partition(";")[0].rstrip(".")
                await self._restart_at_once(f"{self._probe.step}: {cause}")

    async def _send_canary(self, process: Process) -> bool:
        """Send the canary, and sample the server meanwhile.

        Returns False if a stop was requested, or the server or a stub ended, before the answer.
        """
        canary, *_ = await _race(
            self._backend.probe(),
            self._keep_sampling(process),
            self._stop_requested.wait(),
            self._stub_ended.wait(),
            process.ended(),
        )
        if canary.cancelled():
            return False
        self._probe = canary.result()
        return True

    async def _keep_sampling(self, process: Process) -> None:
        await asyncio.sleep(_FIRST_SAMPLE_S)
        while True:
            await self._sample(process)
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def _sample(self, process: Process) -> bool:
        """Record what the server has done so far; return whether it is working."""
        computed_s = process.computed_s()
        # A frozen server never answers.
        (finished,) = await _race(self._backend.progress(), timeout_s=SAMPLE_EVERY_S)
        return self._activity.sample(computed_s, None if finished.cancelled() else finished.result(), now=self._now())

    async def _on_canary_ok(self, process: Process) -> None:
        if self._status in ("overloaded", "stuck"):
            logger.warning("the server answers the canary in time again")
        shortage = await self._backend.shortage()
        if shortage and not self._shortage:
            logger.warning("degraded: %s", shortage)
        self._shortage = shortage
        self._status = "degraded" if shortage else "ready"
        self._model_id = self._probe.model_id
        self._activity.reset(process.computed_s(), now=self._now())

    async def _consider_slow(self, process: Process) -> None:
        """Tell overload from a frozen server, by finished requests and processor time.

        Two finished requests may be a minute apart if a full batch of a large model runs on a busy machine.
        """
        at_work = await self._sample(process)
        # An idle server may also lack processor time that other programs use; either way, no client gets an answer.
        status = "overloaded" if at_work else "stuck"
        if status != self._status:
            logger.warning("%s: server %s; canary timed out", status, "busy" if at_work else "idle")
        self._status = status
        idle_s, unfinished_s = self._activity.idle_s, self._activity.unfinished_s
        limit_s = self._config.frozen_after_s
        if idle_s > limit_s or unfinished_s > _MAX_COMPUTING * limit_s:
            although = "" if idle_s > limit_s else ", although the server computes"
            await self._restart(f"no request finished for {unfinished_s:.0f} s{although}")

    async def _restart_at_once(self, reason: str, *, drain_s: float = 0) -> None:
        """Restart a server that is or was healthy: growing pauses would gain nothing."""
        self._failures = 0
        await self._restart(reason, drain_s=drain_s)
        self._failures = 0

    async def _restart(self, reason: str, *, drain_s: float = 0) -> None:
        # Checked once: a start that fails below must not count as a failure of a server that was healthy for long.
        if self._now() - self._healthy_since > self._config.settled_after_s:
            self._failures = 0
        while not self._stop_requested.is_set():
            self._status, self._restart_reason = "restarting", reason
            delay_s = min(_MAX_BACKOFF_S, 2.0 ** (self._failures - 1)) if self._failures else 0.0
            self._failures += 1
            self._restarts += 1
            logger.error("restarting tritonserver%s: %s", f" in {delay_s:g} s" if delay_s else "", reason)
            await self._stop_process(drain_s=drain_s)
            # A requested reload does not wait for the next attempt with the old contents.
            await self._pause(delay_s, self._reload_requested)
            if self._stop_requested.is_set():
                return
            try:
                await self._start()
            except (ReportedError, OSError) as error:
                reason = str(error)
                continue
            logger.warning("tritonserver is ready again")
            return

    async def _stop_process(self, *, drain_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        stopped, _ = await _race(process.stop(drain_s=drain_s), self._kill_requested.wait())
        if stopped.cancelled():
            await process.stop(drain_s=0)
        else:
            stopped.result()

    async def _pause(self, seconds: float, *events: asyncio.Event) -> None:
        """Sleep; wake up early for a stop, the end of the process and any of ``events``."""
        ended = [] if self._process is None else [self._process.ended()]
        await _race(*(event.wait() for event in (self._stop_requested, *events)), *ended, timeout_s=seconds)


async def _race(*contestants: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> list[asyncio.Task[Any]]:
    """Wait until one of the coroutines is done, or for ``timeout_s``, and cancel the others; return all their tasks."""
    tasks = [asyncio.create_task(contestant) for contestant in contestants]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tasks

"""Keeps one Triton serving: sends it a canary, an image with a known vector, and restarts it if that fails.

Triton's own health endpoints still say "ready" after a model's process has died, so the supervisor does not ask them.
The outcome of a probe decides what it does::

    ProbeOutcome  meaning                                         action
    OK            the canary has the right vector                 none
    SHORT         so it has, but a full batch has no memory       none: "degraded"
    SLOW          no answer in time, or rejected because of load  none while the server finishes requests or computes;
                                                                  otherwise "stuck", and a restart after a while
    BROKEN        an error: dead stub, missing model, wrong       restart at once
                  vector

A server process that has ended is restarted as well. Only starts that fail make the pauses between them grow. A server
that has answered its canary is restarted without a pause, however often it ends: its model works, so a request has
ended it, and a pause would only add to the outage.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.serving.activity_monitor import SAMPLE_EVERY_S, ActivityMonitor
from preprocess_ensemble.serving.probe import Probe, ProbeOutcome, Step

if TYPE_CHECKING:
    from preprocess_ensemble.serving.triton_backend import TritonBackend
    from preprocess_ensemble.serving.triton_process import TritonProcess

logger = logging.getLogger(__name__)
# That it is loading is worth a line of the log, although no warning.
logger.setLevel(logging.INFO)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
"""After a start that failed; each pause is twice as long as the one before."""

_BUSY_FACTOR: Final = 15
"""How many times ``frozen_after_s`` a server may compute without finishing a request. A full batch of a large model on
a busy machine takes minutes, but a defect that spins must end, too."""

_FIRST_SAMPLE_S: Final = 0.1
"""If a canary takes longer, the supervisor starts to sample what the server does."""

_START_POLL_S: Final = 0.2
_SAY_LOADING_EVERY_S: Final = 10.0
_MAX_WRONG_AT_START: Final = 3


class Status(Enum):
    """What the server is doing; the values are those of ``/healthz``."""

    STARTING = "starting"
    """For the first time."""
    READY = "ready"
    OVERLOADED = "overloaded"
    """The canary waits, but requests are being finished or computed."""
    DEGRADED = "degraded"
    """The canary is right, but a full batch fails."""
    STUCK = "stuck"
    """The canary waits, and nothing is being done."""
    FAILING = "failing"
    RESTARTING = "restarting"
    STOPPING = "stopping"


_HEALTHY: Final = frozenset({Status.READY, Status.OVERLOADED})
_MAY_HAVE_REQUESTS: Final = _HEALTHY | {Status.DEGRADED, Status.STUCK}
"""A server is drained only in these states. One that is loading its models would use up the whole time limit, and one
whose model has died answers nothing."""


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
    drain_s: float = 40.0
    """For running requests when the server is stopped on purpose. Ten seconds more than Triton's own limit, after which
    it unloads its models: a kill before that would leave processes behind."""


class CrashedAtStart(ReportedError):
    """A defect ended the server while it started.

    ``by_request``: its models were loaded and had worked before, so a request has ended it and not they.
    """

    def __init__(self, message: str, *, by_request: bool) -> None:
        super().__init__(message)
        self.by_request = by_request


_CRASHES: Final = frozenset(-number for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV))
"""Exit codes of a program that a defect has ended, rather than another program or itself."""


class Supervisor:
    """Runs the server until it is told to stop. One object serves one :meth:`run`; create it inside its event loop."""

    def __init__(self, backend: TritonBackend, config: SupervisorConfig) -> None:
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
        self._status = Status.STARTING
        self._probe = Probe(outcome=ProbeOutcome.BROKEN, step=Step.START, message="the server is starting")
        self._model_id = ""
        self._restarts = 0
        self._restart_reason = ""
        # What decides about restarts.
        self._process: TritonProcess | None = None
        self._model_works = False
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
        found = {"status": self._status.value, "model": self._model_id, "restarts": self._restarts}
        if self._restart_reason:
            found |= {"step": Step.START.value, "message": self._restart_reason}
        elif self._probe.outcome is not ProbeOutcome.OK:
            found |= {"step": self._probe.step.value, "message": self._probe.message}
        return self._status in _HEALTHY, found

    async def run(self, on_ready: Callable[[Probe], None]) -> None:
        """Start the server, call ``on_ready`` once when it is ready, and keep it serving until :meth:`stop`.

        Raises ``ReportedError`` if the first start fails, or, if that one crashed, the second. Later starts are retried
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
                await self._start()
            if not self._stop_requested.is_set():
                on_ready(self._probe)
            while not self._stop_requested.is_set():
                await self._watch_once()
        finally:
            drain_s = self._config.drain_s if self._status in _MAY_HAVE_REQUESTS else 0
            self._status = Status.STOPPING
            await self._stop_process(drain_s=drain_s)

    async def _start(self) -> None:
        """Start a process and wait until its canary is right. Returns early if a stop is requested."""
        if self._reload_requested.is_set():
            self._reload_requested.clear()  # this start reads the repository, which may have another model
            self._model_works = False
        self._stub_ended.clear()  # a stub that ended with the previous server must not interrupt the canary of this one
        self._process = process = await self._backend.start()
        self._activity.reset(process.computed_s(), now=self._now())
        started = said = self._now()
        deadline = started + self._config.start_timeout_s
        logger.info("loading the models")
        wrong = 0
        while not self._stop_requested.is_set():
            if not process.running:
                raise await self._start_error(process)
            if not await self._send_canary(process):
                continue
            if self._probe.is_right:
                self._restart_reason = ""
                self._model_works = True
                self._on_right_canary(process)
                self._stub_ended.clear()
                process.watch_stubs(self._stub_ended.set)
                return
            # Triton opens its ports when all models are loaded, so a wrong answer then stays wrong.
            wrong += self._probe.outcome is ProbeOutcome.BROKEN
            if wrong >= _MAX_WRONG_AT_START:
                raise ReportedError(f"{self._probe.step.value}: {self._probe.message}")
            if self._now() - said >= _SAY_LOADING_EVERY_S:
                said = self._now()
                logger.info("still loading after %.0f s", said - started)
            if self._now() > deadline:
                raise ReportedError(
                    f"tritonserver was not ready within {self._config.start_timeout_s:g} s: {self._probe.message}"
                )
            await self._pause(_START_POLL_S)

    async def _start_error(self, process: TritonProcess) -> ReportedError:
        code = await process.ended()
        message = f"tritonserver ended while it started: {await self._reason_of_end(process)}"
        if code not in _CRASHES:
            return ReportedError(message)
        return CrashedAtStart(message, by_request=process.opened and self._model_works)

    async def _reason_of_end(self, process: TritonProcess) -> str:
        """Return why ``process`` ended. Its stubs are killed first: until then they hold its output open."""
        await self._stop_process(drain_s=0)
        return await process.reason()

    async def _watch_once(self) -> None:
        """Wait for the next canary or the end of the process, and act on the result."""
        process = self._process
        assert process is not None
        await self._pause(self._config.interval_s, self._reload_requested, self._stub_ended)
        if self._stub_ended.is_set():
            # Its model may have been unloaded on purpose. The next canary tells; until then this is not healthy.
            self._stub_ended.clear()
            self._status = Status.FAILING
            message = "The process of a model has ended."
            self._probe = Probe(outcome=ProbeOutcome.BROKEN, step=Step.PROCESS, message=message)
        if self._stop_requested.is_set():
            return
        if self._reload_requested.is_set():
            # Not an unload and a load: under load these have damaged tritonserver's heap (24.10).
            await self._restart("reload requested", drain_s=self._config.drain_s)
            return
        if not process.running:
            self._status, self._restart_reason = Status.RESTARTING, "tritonserver ended"
            await self._restart(f"tritonserver ended ({await self._reason_of_end(process)})")
            return
        if not await self._send_canary(process) or self._stop_requested.is_set() or not process.running:
            return
        match self._probe.outcome:
            case ProbeOutcome.OK | ProbeOutcome.SHORT:
                self._on_right_canary(process)
            case ProbeOutcome.SLOW:
                await self._consider_slow(process)
            case ProbeOutcome.BROKEN:
                # A reload of the models is seconds faster if it works. But with requests waiting, tritonserver (24.10)
                # hung or ended in it after one of three killed stubs, and it never releases an instance whose stub is
                # gone.
                self._status = Status.FAILING
                await self._restart(f"{self._probe.step.value}: {self._probe.message}")

    async def _send_canary(self, process: TritonProcess) -> bool:
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

    async def _keep_sampling(self, process: TritonProcess) -> None:
        await asyncio.sleep(_FIRST_SAMPLE_S)
        while True:
            await self._sample(process)
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def _sample(self, process: TritonProcess) -> bool:
        """Record what the server has done so far; return whether it is working."""
        computed_s = process.computed_s()
        # A frozen server never answers.
        finished, _ = await _race(self._backend.progress(), process.ended(), timeout_s=SAMPLE_EVERY_S)
        return self._activity.sample(computed_s, None if finished.cancelled() else finished.result(), now=self._now())

    def _on_right_canary(self, process: TritonProcess) -> None:
        is_short = self._probe.outcome is ProbeOutcome.SHORT
        if self._status in (Status.OVERLOADED, Status.STUCK):
            logger.warning("the server answers the canary in time again")
        if is_short and self._status is not Status.DEGRADED:
            logger.warning("degraded: %s", self._probe.message)
        self._status = Status.DEGRADED if is_short else Status.READY
        self._model_id = self._probe.model_id
        self._activity.reset(process.computed_s(), now=self._now())

    async def _consider_slow(self, process: TritonProcess) -> None:
        """Tell overload from a frozen server, by finished requests and processor time.

        Two finished requests may be a minute apart if a full batch of a large model runs on a busy machine.
        """
        at_work = await self._sample(process)
        if not process.running:
            return
        # An idle server may also lack processor time that other programs use; either way, no client gets an answer.
        status = Status.OVERLOADED if at_work else Status.STUCK
        if status is not self._status:
            logger.warning("%s: server %s; canary timed out", status.value, "busy" if at_work else "idle")
        self._status = status
        idle_s, unfinished_s = self._activity.idle_s, self._activity.unfinished_s
        limit_s = self._config.frozen_after_s
        if idle_s > limit_s or unfinished_s > _BUSY_FACTOR * limit_s:
            although = "" if idle_s > limit_s else ", although the server computes"
            await self._restart(f"no request finished for {unfinished_s:.0f} s{although}")

    async def _restart(self, reason: str, *, drain_s: float = 0) -> None:
        """Restart the server until it answers its canary, with pauses that grow while its starts fail."""
        pause_s = 0.0
        while not self._stop_requested.is_set():
            self._status, self._restart_reason = Status.RESTARTING, reason
            self._restarts += 1
            logger.error("restarting tritonserver%s: %s", f" in {pause_s:g} s" if pause_s else "", reason)
            await self._stop_process(drain_s=drain_s)
            drain_s = 0  # the next one to stop is a start that failed
            # A requested reload does not wait for the next attempt with the old contents.
            await self._pause(pause_s, self._reload_requested)
            if self._stop_requested.is_set():
                return
            try:
                await self._start()
            except (ReportedError, OSError) as error:
                reason = str(error)
                if not (isinstance(error, CrashedAtStart) and error.by_request):
                    pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * pause_s))
            else:
                if not self._stop_requested.is_set():
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

"""Keeps one Triton serving: sends it a canary, an image with a known vector, and restarts it if that fails.

Triton's own health endpoints may still say "ready" after a model's process has died: the server's in every release, a
model's before release 25.12. So a probe also embeds the canary. Its outcome decides what the supervisor does::

    ProbeOutcome  meaning                                         action
    OK            the canary has the right vector                 none
    SHORT         so it has, but a full batch has no memory       none: "degraded"
    SLOW          no answer in time, or rejected because of load  none while the server finishes requests or computes;
                                                                  otherwise "stuck", and a restart after a while
    BROKEN        an error: dead stub, model not ready, wrong     restart at once
                  vector

A server process that has ended is restarted as well. Only starts that fail make the pauses between them grow. A server
that has answered its canary is restarted without a pause, however often it ends: its model works, so a request has
ended it, and a pause would only add to the outage.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.serving.triton_backend import Probe, ProbeOutcome, Step, TritonBackend
from preprocess_ensemble.serving.triton_process import TritonProcess, race

if TYPE_CHECKING:
    from preprocess_ensemble.serving.config import ServeConfig

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
_SAMPLE_EVERY_S: Final = 1.0

_COMPUTES: Final = 0.02
"""Share of one core. An idle server uses 0.006 of a core. One that has work and gets a fiftieth of its machine still
makes progress."""

DRAIN_S: Final = 40.0
"""For running requests when the server is stopped on purpose. Ten seconds more than Triton's own limit, after which it
unloads its models: a kill before that would leave processes behind."""

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


class _CrashedAtStart(ReportedError):
    """A defect ended the server while it started."""

    by_request = False
    """Whether a request ended it: the model was loaded, and had worked before."""


_CRASHES: Final = frozenset(
    -number for number in signal.Signals if number.name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV")
)
"""Exit codes of a program that a defect has ended, rather than another program or itself."""


class Supervisor:
    """Runs the server until it is told to stop. One object serves one :meth:`run`; create it inside its event loop."""

    def __init__(self, backend: TritonBackend, config: ServeConfig) -> None:
        self._backend = backend
        self._config = config
        # The event loop's own clock, so that timers and limits never disagree.
        self._now = asyncio.get_running_loop().time
        # What was asked for, or has happened to the server.
        self._stop_requested = asyncio.Event()
        self._kill_requested = asyncio.Event()
        self._reload_requested = asyncio.Event()
        self._stub_ended = asyncio.Event()
        # What is reported.
        self._status = Status.STARTING
        self._finding = Probe(outcome=ProbeOutcome.BROKEN, step=Step.START, message="the server is starting")
        self._model_id = ""
        self._restarts = 0
        # What decides about restarts.
        self._process: TritonProcess | None = None
        self._model_works = False
        self._activity = _Activity()

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
        if self._finding.outcome is not ProbeOutcome.OK:
            found |= {"step": self._finding.step.value, "message": self._finding.message}
        return self._status in _HEALTHY, found

    async def run(self, on_ready: Callable[[Probe], None]) -> None:
        """Start the server, call ``on_ready`` once when it is ready, and keep it serving until :meth:`stop`.

        Raises ``ReportedError`` if the first start fails, or, if that one crashed, the second. Later starts are retried
        without limit.
        """
        try:
            try:
                await self._start()
            except _CrashedAtStart as crash:
                if self._stop_requested.is_set():
                    return
                # One of hundreds of starts of tritonserver (24.10) has aborted without a word; the next one worked.
                logger.error("%s; trying once more", crash)
                await self._start()
            if not self._stop_requested.is_set():
                on_ready(self._finding)
            while not self._stop_requested.is_set():
                await self._watch_once()
        finally:
            drain_s = DRAIN_S if self._status in _MAY_HAVE_REQUESTS else 0
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
            if (probe := await self._send_canary(process)) is None:
                continue
            if probe.outcome in (ProbeOutcome.OK, ProbeOutcome.SHORT):
                self._model_works = True
                self._on_right_canary(probe, process)
                process.watch_stubs(self._stub_ended.set)
                return
            # Triton opens its ports when all models are loaded, so a wrong answer then stays wrong.
            wrong += probe.outcome is ProbeOutcome.BROKEN
            if wrong >= _MAX_WRONG_AT_START:
                raise ReportedError(f"{probe.step.value}: {probe.message}")
            if self._now() - said >= _SAY_LOADING_EVERY_S:
                said = self._now()
                logger.info("still loading after %.0f s", said - started)
            if self._now() > deadline:
                raise ReportedError(
                    f"tritonserver was not ready within {self._config.start_timeout_s:g} s: {probe.message}"
                )
            await self._pause(_START_POLL_S)

    async def _start_error(self, process: TritonProcess) -> ReportedError:
        code = await process.ended()
        message = f"tritonserver ended while it started: {await self._reason_of_end(process)}"
        if code not in _CRASHES:
            return ReportedError(message)
        crash = _CrashedAtStart(message)
        crash.by_request = process.opened and self._model_works
        return crash

    async def _reason_of_end(self, process: TritonProcess) -> str:
        """Return why ``process`` ended. Its stubs are killed first: until then they hold its output open."""
        await self._stop_process(drain_s=0)
        return await process.reason()

    async def _watch_once(self) -> None:
        """Wait for the next canary or the end of the process, and act on the result."""
        process = self._process
        assert process is not None
        await self._pause(self._config.canary_interval_s, self._reload_requested, self._stub_ended)
        if self._stub_ended.is_set():
            # Its model may have been unloaded on purpose. The next canary tells; until then this is not healthy.
            self._stub_ended.clear()
            self._fail(Status.FAILING, Step.PROCESS, "The process of a model has ended.")
        if self._stop_requested.is_set():
            return
        if self._reload_requested.is_set():
            # Not an unload and a load: under load these have damaged tritonserver's heap (24.10).
            await self._restart("reload requested", drain_s=DRAIN_S)
            return
        if not process.running:
            self._fail(Status.RESTARTING, Step.START, "tritonserver ended")
            await self._restart(f"tritonserver ended ({await self._reason_of_end(process)})")
            return
        probe = await self._send_canary(process)
        if probe is None or self._stop_requested.is_set() or not process.running:
            return
        self._finding = probe
        match probe.outcome:
            case ProbeOutcome.OK | ProbeOutcome.SHORT:
                self._on_right_canary(probe, process)
            case ProbeOutcome.SLOW:
                await self._consider_slow(process)
            case ProbeOutcome.BROKEN:
                # A reload of the models would be faster. But with requests waiting, tritonserver (24.10) hung or ended
                # in it after one of three killed stubs, and it never releases an instance whose stub is gone.
                await self._restart(f"{probe.step.value}: {probe.message}")

    def _fail(self, status: Status, step: Step, message: str) -> None:
        self._status = status
        self._finding = Probe(outcome=ProbeOutcome.BROKEN, step=step, message=message)

    async def _send_canary(self, process: TritonProcess) -> Probe | None:
        """Send the canary, and sample the server meanwhile.

        Returns None if a stop was requested, or the server or a stub ended, before the answer.
        """
        canary, *_ = await race(
            self._backend.probe(),
            self._keep_sampling(process),
            self._stop_requested.wait(),
            self._stub_ended.wait(),
            process.ended(),
        )
        return None if canary.cancelled() else canary.result()

    async def _keep_sampling(self, process: TritonProcess) -> None:
        await asyncio.sleep(_FIRST_SAMPLE_S)
        while True:
            await self._sample(process)
            await asyncio.sleep(_SAMPLE_EVERY_S)

    async def _sample(self, process: TritonProcess) -> bool:
        """Record what the server has done so far; return whether it is working."""
        computed_s = process.computed_s()
        # A frozen server never answers.
        finished, _ = await race(self._backend.progress(), process.ended(), timeout_s=_SAMPLE_EVERY_S)
        return self._activity.sample(computed_s, None if finished.cancelled() else finished.result(), now=self._now())

    def _on_right_canary(self, probe: Probe, process: TritonProcess) -> None:
        status = Status.DEGRADED if probe.outcome is ProbeOutcome.SHORT else Status.READY
        if self._status in (Status.OVERLOADED, Status.STUCK):
            logger.warning("the server answers the canary in time again")
        if status is Status.DEGRADED and self._status is not Status.DEGRADED:
            logger.warning("degraded: %s", probe.message)
        self._status, self._finding, self._model_id = status, probe, probe.model_id
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
            self._fail(Status.RESTARTING, Step.START, reason)
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
                if not (isinstance(error, _CrashedAtStart) and error.by_request):
                    pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * pause_s))
            else:
                if not self._stop_requested.is_set():
                    logger.warning("tritonserver is ready again")
                return

    async def _stop_process(self, *, drain_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        stopped, _ = await race(process.stop(drain_s=drain_s), self._kill_requested.wait())
        if stopped.cancelled():
            await process.stop(drain_s=0)
        else:
            stopped.result()

    async def _pause(self, seconds: float, *events: asyncio.Event) -> None:
        """Sleep; wake up early for a stop, the end of the process and any of ``events``."""
        ended = [] if self._process is None else [self._process.ended()]
        await race(*(event.wait() for event in (self._stop_requested, *events)), *ended, timeout_s=seconds)


class _Activity:
    """When a server that does not answer its canary last worked, by processor time and finished requests.

    Only recent work counts: the latest sample is compared with the newest one that is at least a second older. So the
    processor time that a server used before it froze makes it look active for two samples at most.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=8)
        """Moment, and processor time until then."""
        self._finished: float | None = None
        self._computed_at = self._finished_at = 0.0

    def reset(self, computed_s: float, *, now: float) -> None:
        """Start again after an answered canary; only the count of finished requests is kept."""
        self._computed_at = self._finished_at = now
        self._samples.clear()
        self._samples.append((now, computed_s))

    def sample(self, computed_s: float, finished: float | None, *, now: float) -> bool:
        """Record what the server has done so far (``finished``: None if it does not say); return if it is working."""
        older = (sample for sample in reversed(self._samples) if now - sample[0] >= _SAMPLE_EVERY_S)
        before_at, before_s = next(older, self._samples[0])
        self._samples.append((now, computed_s))
        if finished is not None and finished != self._finished:
            self._finished, self._finished_at = finished, now
        if computed_s - before_s > _COMPUTES * (now - before_at):
            self._computed_at = now
        return self._computed_at == now or self._finished_at > before_at

    @property
    def unfinished_s(self) -> float:
        """Seconds without a finished request, at the latest sample."""
        return self._samples[-1][0] - self._finished_at

    @property
    def idle_s(self) -> float:
        """Seconds without a finished request and without computing, at the latest sample."""
        return min(self.unfinished_s, self._samples[-1][0] - self._computed_at)

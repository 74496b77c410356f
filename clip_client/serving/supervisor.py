"""Keeps one Triton serving: sends it a canary, an image with a known vector, and restarts it if that fails.

Triton's own health endpoints may still say "ready" after a model's process has died: the server's in every release, a
model's before release 25.12. So a probe also embeds the canary. Its outcome decides what the supervisor does::

    ProbeOutcome  meaning                                         action
    OK            the canary has the right vector                 none
    SHORT         right, but a full batch exceeds shared memory   none: "degraded"
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
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from clip_client._deadline import Deadline
from clip_client._health import Step
from clip_client.serving.config import CONNECTION_AGE_S, ServeConfig
from clip_client.serving.health_endpoint import HEALTHY, Status
from clip_client.serving.port_handover import PortHandover
from clip_client.serving.probed_triton import Probe, ProbedTriton, ProbeOutcome
from clip_client.serving.triton_process import SAMPLE_S, race
from preprocess_ensemble.errors import ReportedError

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0  # limit of pauses after failed starts, each twice the one before
_BUSY_FACTOR: Final = 15
"""Multiple of ``frozen_after_s`` for which a server may compute without finishing a request. A full batch of a large
model on a busy machine takes minutes, but a defect that spins must end, too."""

DRAIN_S: Final = 30.0
"""Wait for running requests when the server is stopped on purpose."""
UNLOAD_S: Final = 10.0  # end of Triton after that: five seconds for running batches, then unloading
_REAPED_S: Final = 0.5
"""Time in which the end of a killed server is known: its models end before the kernel has freed its memory."""
_START_POLL_S: Final = 0.2
_SAY_LOADING_EVERY_S: Final = 10.0
_MAX_WRONG_AT_START: Final = 3
_NO_ANSWER: Final = Probe(outcome=ProbeOutcome.SLOW, message="it gave no answer.")
"""If the server ended, or could not be sampled, before it answered."""

_MAY_HAVE_REQUESTS: Final = HEALTHY | {Status.DEGRADED, Status.STUCK}
"""A server is drained only in these states. One that is loading its models would use up the whole time limit, and one
whose model has died answers nothing."""


class _CrashedAtStart(ReportedError):
    def __init__(self, message: str, *, by_request: bool) -> None:
        super().__init__(message)
        self.by_request = by_request  # whether a request ended it: the model had worked before


class Supervisor:
    """Runs the server until it is told to stop. One object serves one :meth:`run`; create it inside its event loop."""

    def __init__(self, start: Callable[..., Awaitable[ProbedTriton]], config: ServeConfig) -> None:
        """``start`` starts a server; with ``beside=True``, beside one that has the port."""
        self._start_server = start
        self._config = config
        self._stop_requested = asyncio.Event()
        self._kill_requested = asyncio.Event()
        self._reload_requested = asyncio.Event()
        self._stub_ended = asyncio.Event()
        self._status = Status.STARTING
        self._finding = Probe(outcome=ProbeOutcome.BROKEN, step=Step.START, message="the server is starting")
        self._model_id = ""
        self._restarts = 0
        self.metrics_url = ""
        self._server: ProbedTriton | None = None
        self._model_works = False
        self._replaced: ProbedTriton | None = None
        self._retiring: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Drain the server and end. A second call ends the draining."""
        if self._stop_requested.is_set():
            self._kill_requested.set()
        self._stop_requested.set()

    def reload(self) -> None:
        """Load the current contents of the repository, check them, and switch; if that fails, continue as before."""
        self._reload_requested.set()

    def report(self) -> tuple[bool, Mapping[str, Any]]:
        """Return whether images are being embedded, and the latest findings. An overloaded server still embeds."""
        found = {"status": self._status.value, "model": self._model_id, "restarts": self._restarts}
        if self._finding.outcome is not ProbeOutcome.OK:
            found |= {"step": self._finding.step.value, "message": self._finding.message}
        return self._status in HEALTHY and not self._stop_requested.is_set(), found

    async def run(self, on_ready: Callable[[Probe], None]) -> None:
        """Start the server, call ``on_ready`` once when it is ready, and keep it serving until :meth:`stop`.

        Raises ``ReportedError`` if the first start fails; if it crashed, only if the second start fails, too.
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
            if drain_s and self._stop_requested.is_set():
                logger.info("stopping: waiting up to %.0f s for running requests", drain_s)
            await asyncio.gather(self._stop_server(drain_s=drain_s), *filter(None, [self._retiring]))

    async def _start(self) -> None:
        if self._reload_requested.is_set():
            self._reload_requested.clear()  # this start reads the repository, which may have another model
            self._model_works = False
        self._stub_ended.clear()  # a stub of the previous server must not interrupt this canary
        self._server = server = await self._start_server()
        self.metrics_url = server.metrics_url
        if (probe := await self._first_right_canary(server)) is not None:
            self._accept(server, probe)

    def _accept(self, server: ProbedTriton, probe: Probe) -> None:
        """Watch a server that has answered its canary right; the stubs of a server that is replaced end on purpose."""
        self._model_works = True
        self._on_right_canary(probe, server)
        server.process.watch_stubs(lambda: None if server is self._replaced else self._stub_ended.set())

    async def _first_right_canary(self, server: ProbedTriton) -> Probe | None:
        """Wait for a right canary; None on a stop. Raises ReportedError if the server ends, is late or is wrong."""
        start, quiet = Deadline(self._config.start_timeout_s), Deadline(_SAY_LOADING_EVERY_S)
        logger.info("loading the models")
        wrong = 0
        while not self._stop_requested.is_set():
            if not server.process.running:
                raise await self._start_error(server)
            server.process.end_without_stub()
            probe = await self._send_canary(server) or _NO_ANSWER
            if probe.outcome in (ProbeOutcome.OK, ProbeOutcome.SHORT):
                return probe
            # Triton opens its ports when all models are loaded, so a wrong answer then stays wrong.
            wrong += probe.outcome is ProbeOutcome.BROKEN
            if wrong >= _MAX_WRONG_AT_START:
                raise ReportedError(f"{probe.step.value}: {probe.message}")
            if quiet.expired:
                quiet = Deadline(_SAY_LOADING_EVERY_S)
                logger.info("still loading after %.0f s", start.elapsed)
            if start.expired:
                limit = f"{self._config.start_timeout_s:g} s"
                raise ReportedError(f"tritonserver was not ready within {limit}: {probe.message}")
            await self._pause(_START_POLL_S)
        return None

    async def _start_error(self, server: ProbedTriton) -> ReportedError:
        message = f"tritonserver ended while it started: {await _reason_of_end(server)}"
        if server.process.crashed:
            return _CrashedAtStart(message, by_request=server.process.opened and self._model_works)
        return ReportedError(message)

    async def _watch_once(self) -> None:
        assert self._server is not None
        server = self._server
        await self._pause(self._config.canary_interval_s, self._replaceable(), self._stub_ended.wait())
        if self._stub_ended.is_set():
            # Its model may have been unloaded on purpose. The next canary tells; until then this is not healthy.
            self._stub_ended.clear()
            self._fail(Status.FAILING, Step.PROCESS, "The process of a model has ended.")
        if self._stop_requested.is_set():
            return
        if self._reload_requested.is_set() and (self._retiring is None or self._retiring.done()):
            await self._replace(server)
            return
        if not server.process.running:
            self._fail(Status.RESTARTING, Step.START, "tritonserver ended")
            await self._restart(f"tritonserver ended ({await _reason_of_end(server)})")
            return
        # A reload of the models would be faster. But with requests waiting, tritonserver (24.10) hung or ended in it
        # after one of three killed stubs, and it never releases an instance whose stub is gone.
        if reason := await self._check(server):
            await self._restart(reason)

    async def _check(self, server: ProbedTriton) -> str:
        """Send a canary and report its outcome; return the reason for a restart, or an empty text."""
        probe = await self._send_canary(server)
        if probe is None or self._stop_requested.is_set() or not server.process.running:
            return ""
        self._finding = probe
        if probe.outcome is ProbeOutcome.SLOW:
            return await self._consider_slow(server)
        if probe.outcome is ProbeOutcome.BROKEN:
            self._status = Status.FAILING
            has_ended = await race(server.process.ended(), timeout_s=_REAPED_S) is not None
            return "" if has_ended else f"{probe.step.value}: {probe.message}"
        self._on_right_canary(probe, server)
        return ""

    async def _keep_checking(self, server: ProbedTriton) -> None:
        """Only report while its successor loads: the successor will serve sooner than a restarted server."""
        while True:
            await self._check(server)
            await asyncio.sleep(self._config.canary_interval_s)

    def _fail(self, status: Status, step: Step, message: str) -> None:
        self._status = status
        self._finding = Probe(outcome=ProbeOutcome.BROKEN, step=step, message=message)

    async def _send_canary(self, server: ProbedTriton) -> Probe | None:
        async def keep_sampling() -> None:
            while True:
                await asyncio.sleep(SAMPLE_S)
                await server.activity.sample()

        ends = (self._stop_requested.wait(), self._stub_ended.wait(), server.process.ended())
        return await race(server.probe(), keep_sampling(), *ends)

    def _on_right_canary(self, probe: Probe, server: ProbedTriton) -> None:
        status = Status.DEGRADED if probe.outcome is ProbeOutcome.SHORT else Status.READY
        if self._status in (Status.OVERLOADED, Status.STUCK):
            logger.warning("the server answers the test image or text in time again")
        if status is Status.DEGRADED and self._status is not Status.DEGRADED:
            logger.warning("degraded: %s", probe.message)
        self._status, self._finding, self._model_id = status, probe, probe.model_id
        server.activity.reset()

    async def _consider_slow(self, server: ProbedTriton) -> str:
        """Tell overload from freezing: on a busy machine, full batches of a large model may be a minute apart."""
        sampled = await race(server.activity.sample(), server.process.ended())
        if sampled is None or not server.process.running:
            return ""
        idle_s, unfinished_s = sampled
        # An idle server may also lack processor time that other programs use; either way, no client gets an answer.
        status = Status.OVERLOADED if idle_s <= 2 * SAMPLE_S else Status.STUCK
        if status is not self._status:
            found = "busy" if status is Status.OVERLOADED else "idle"
            logger.warning("%s: the test image or text got no answer in time; the server is %s", status.value, found)
        self._status = status
        limit_s = self._config.frozen_after_s
        is_over = idle_s > limit_s or unfinished_s > _BUSY_FACTOR * limit_s
        although = "" if idle_s > limit_s else ", although the server computes"
        return f"no request finished for {unfinished_s:.0f} s{although}" if is_over else ""

    async def _replaceable(self) -> None:
        """Return when a reload is requested and no replaced server is left: three would need the memory of three."""
        await self._reload_requested.wait()
        if self._retiring is not None:
            await asyncio.wait({self._retiring})

    async def _replace(self, old: ProbedTriton, *, is_again: bool = False) -> None:
        """Start a server beside ``old``, check it, and give it the port; try once more if that start crashes.

        The running server does not load new models: under load, that hung tritonserver (24.10) and damaged its heap.
        """
        self._reload_requested.clear()
        self._model_works = False
        try:
            handover = old.hand_over()
        except ReportedError as error:
            logger.warning("the new model is served after a restart, not beside the current one: %s", error)
            await self._restart("reload requested", drain_s=DRAIN_S)
            return
        server, probe, again = None, None, False
        try:
            server = await self._start_server(beside=True)
            ends = (self._stop_requested.wait(), self._stub_ended.wait(), old.process.ended(), self._keep_checking(old))
            probe = await race(self._first_right_canary(server), *ends)
            if probe is not None:
                await server.take_over()
                handover.switch()
        except (ReportedError, OSError) as error:
            probe, again = None, isinstance(error, _CrashedAtStart) and not is_again
            logger.error("reload failed; %s: %s", "trying again" if again else "the current model keeps serving", error)
        if server is None or probe is None:
            handover.close()
            if server is not None:
                await server.stop(drain_s=0)
            if again:
                await self._replace(old, is_again=True)
            return
        self._server, self._replaced, self.metrics_url = server, old, server.metrics_url
        self._accept(server, probe)
        logger.info("switched to %s", probe.model_id)
        self._retiring = asyncio.create_task(self._retire(old, server, handover))

    async def _retire(self, old: ProbedTriton, successor: ProbedTriton, handover: PortHandover) -> None:
        """End a replaced server once its clients have left, it or its successor has ended, or a minute is over."""

        async def stopped() -> None:
            await self._stop_requested.wait()
            await asyncio.sleep(DRAIN_S)

        ends = (successor.process.ended(), self._kill_requested.wait(), stopped(), old.no_connections())
        await race(old.process.ended(), *ends, timeout_s=2 * CONNECTION_AGE_S)
        await old.stop(drain_s=0 if self._kill_requested.is_set() else UNLOAD_S)
        handover.close()

    async def _restart(self, reason: str, *, drain_s: float = 0) -> None:
        pause_s = 0.0
        while not self._stop_requested.is_set():
            self._fail(Status.RESTARTING, Step.START, reason)
            self._restarts += 1
            logger.error("restarting tritonserver%s: %s", f" in {pause_s:g} s" if pause_s else "", reason)
            await self._stop_server(drain_s=drain_s)
            drain_s = 0  # the next one to stop is a start that failed
            await self._pause(pause_s, self._reload_requested.wait())  # a reload brings other contents
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
                    logger.warning("tritonserver is ready again, with model %s", self._model_id)
                return

    async def _stop_server(self, *, drain_s: float) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        await race(self._stop_in_order(server, drain_s), self._kill_requested.wait())
        await server.stop(drain_s=0)

    async def _stop_in_order(self, server: ProbedTriton, drain_s: float) -> None:
        # Triton refuses the next step of an ensemble once it is told to stop, so requests have to be through before.
        if drain_s:
            drained, ends = Deadline(drain_s), (server.process.ended(), self._stub_ended.wait())
            await race(server.answer_all(), *ends, timeout_s=drain_s)
            if drained.expired:
                logger.warning("requests were still running after %.0f s; they are lost", drain_s)
        await server.stop(drain_s=UNLOAD_S if drain_s else 0)

    async def _pause(self, seconds: float, *wakers: Coroutine[Any, Any, Any]) -> None:
        """Sleep; wake up early for a stop, the end of the process and any of ``wakers``."""
        ended = [] if self._server is None else [self._server.process.ended()]
        await race(self._stop_requested.wait(), *wakers, *ended, timeout_s=seconds)


async def _reason_of_end(server: ProbedTriton) -> str:
    """Its stubs are killed first: until then they hold its output open."""
    await server.stop(drain_s=0)
    return await server.process.reason()

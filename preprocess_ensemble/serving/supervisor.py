"""Keeps one Triton serving: watches it by embedding a known image, and restores it when that fails.

Triton's own health endpoints keep saying "ready" after a model's process has died, so they are not asked. What a probe
found decides what is done::

    Finding     what it means                                   what is done
    OK          the known image has the right vector            nothing
    SLOW        no answer in time, or refused for load          nothing while requests are finished or the server
                                                                computes; else "stuck", and in a while restart
    BROKEN      an error: dead stub, model gone, wrong vector   restart at once

and a server process that ended is restarted. Restarts of one that does not stay up are spaced by exponential back-off.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.serving.activity_monitor import LOOK_EVERY_S, ActivityMonitor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

__all__ = ("CONNECT", "Backend", "Finding", "Probe", "StartError", "Supervisor", "SupervisorConfig")

logger = logging.getLogger(__name__)

_MAX_BACKOFF_S: Final = 60.0
_PATIENCE: Final = 15
"""How many times ``frozen_after_s`` a server may compute without finishing a request: one full batch of a large model
on a crowded machine takes minutes, and a defect that spins for ever must end, too."""

_FIRST_LOOK_S: Final = 0.1
"""A canary that takes longer is worth a look at what the server does meanwhile."""

_START_POLL_S: Final = 0.2
_START_REFUSALS: Final = 3

CONNECT: Final = "connect"
"""The step of a probe that no server answered."""


class Finding(Enum):
    """What a probe found."""

    OK = "ok"
    SLOW = "slow"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Result of one canary: the finding, the step that failed and one sentence about it."""

    finding: Finding
    step: str = ""
    message: str = ""
    model_id: str = ""


class Process(Protocol):
    """What the supervisor needs of a server process; ``TritonProcess`` is one."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""

    def computed_s(self) -> float:
        """Processor time of it and its helpers so far."""

    def watch_stubs(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` when a process that serves one of its models ends."""

    def ended(self) -> Coroutine[Any, Any, int]:
        """Wait for its end."""

    async def reason(self) -> str:
        """Why it ended, once it has."""

    async def stop(self, *, drain_s: float) -> None:
        """Stop it and clean up; at once where ``drain_s`` is 0."""


async def _no_shortage() -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How to act on the server."""

    start: Callable[[], Awaitable[Process]]
    probe: Callable[[], Awaitable[Probe]]
    progress: Callable[[], Awaitable[float | None]]
    """Requests for embeddings done so far, by the server's own count; ``None`` if it does not say."""
    shortage: Callable[[], Awaitable[str]] = _no_shortage
    """What the server lacks to answer a full batch, as a sentence with the remedy; empty if it lacks nothing."""


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig:
    """When to look, and when to lose patience."""

    interval_s: float = 3.0
    """Between two canaries."""
    frozen_after_s: float = 20.0
    """A server that neither answers the canary nor finishes any request nor computes for so long is restarted; one that
    computes, fifteen times as late."""
    start_timeout_s: float = 600.0
    """For loading all models; building a TensorRT engine takes minutes."""
    drain_s: float = 30.0
    """For requests that are under way when the server is stopped on purpose."""
    settled_after_s: float = 60.0
    """A server that was well for so long is restarted without delay when it fails."""


class StartError(ReportedError):
    """The server did not become ready; the message is one sentence."""


class Supervisor:
    """Runs the server until it is told to stop. One object serves one :meth:`run`; make it inside its event loop."""

    def __init__(self, backend: Backend, config: SupervisorConfig) -> None:
        self._backend = backend
        self._config = config
        # The event loop's own clock, so that timers and limits never disagree.
        self._now = asyncio.get_running_loop().time
        self._stopping = asyncio.Event()
        self._impatient = asyncio.Event()
        self._renewing = asyncio.Event()
        self._stub_ended = asyncio.Event()
        self._process: Process | None = None
        self._status = "starting"
        self._probe = Probe(finding=Finding.BROKEN, step="start", message="the server is starting")
        self._model_id = ""
        self._restarts = 0
        self._failures = 0
        self._well_since = 0.0
        self._activity = ActivityMonitor()
        self._why_restarting = ""
        self._shortage = ""

    def stop(self) -> None:
        """Drain and end; a second call ends the draining, too."""
        if self._stopping.is_set():
            self._impatient.set()
        self._stopping.set()

    def renew(self) -> None:
        """Have the server drain, end and start again, on what its repository holds now."""
        self._renewing.set()

    def report(self) -> tuple[bool, Mapping[str, Any]]:
        """Whether images are embedded, and what was found last. An overloaded server still embeds."""
        healthy = self._status in ("ready", "overloaded")
        found = {"status": self._status, "model": self._model_id, "restarts": self._restarts}
        if self._why_restarting:
            return healthy, {**found, "step": "start", "message": self._why_restarting}
        if self._probe.finding is not Finding.OK:
            return healthy, {**found, "step": self._probe.step, "message": self._probe.message}
        if self._shortage:
            return healthy, {**found, "step": "shared memory", "message": self._shortage}
        return healthy, found

    async def run(self, on_ready: Callable[[Probe], None]) -> None:
        """Start the server, call ``on_ready`` once when it is, and keep it serving until :meth:`stop`.

        Raises ``StartError`` if the first start fails; later ones are tried again without end.
        """
        try:
            await self._start()
            if not self._stopping.is_set():
                on_ready(self._probe)
            while not self._stopping.is_set():
                await self._watch_once()
        finally:
            was_ready = self._status != "starting"
            self._status = "stopping"
            await self._stop_process(drain_s=self._config.drain_s if was_ready else 0)

    async def _start(self) -> None:
        """Bring up a process until its canary is right. Returns early when told to stop."""
        self._renewing.clear()  # what starts now is new
        self._process = process = await self._backend.start()
        self._activity.is_well(process.computed_s(), now=self._now())
        deadline = self._now() + self._config.start_timeout_s
        refusals = 0
        while not self._stopping.is_set():
            if not process.running:
                raise StartError(f"tritonserver ended while it started: {await process.reason()}")
            if not await self._send_canary(process):
                continue
            if self._probe.finding is Finding.OK:
                await self._set_ready()
                return
            # Triton opens its ports when all models are loaded, so an answer that is wrong then will stay wrong.
            refusals += self._probe.finding is Finding.BROKEN and self._probe.step != CONNECT
            if refusals >= _START_REFUSALS:
                raise StartError(f"{self._probe.step}: {self._probe.message}")
            if self._now() > deadline:
                raise StartError(
                    f"tritonserver was not ready within {self._config.start_timeout_s:g} s: {self._probe.message}"
                )
            await self._pause(_START_POLL_S)

    async def _set_ready(self) -> None:
        assert self._process is not None
        self._why_restarting = ""
        await self._note_canary_came_through(self._process)
        self._well_since = self._now()
        self._stub_ended.clear()
        self._process.watch_stubs(self._stub_ended.set)

    async def _watch_once(self) -> None:
        """Wait for the next canary or the end of the process, and act on what there is."""
        process = self._process
        assert process is not None
        await self._pause(self._config.interval_s, self._renewing, self._stub_ended)
        if self._stub_ended.is_set():
            # Its model may also have been unloaded on purpose; the canary tells, and until then this is not healthy.
            self._stub_ended.clear()
            self._status = "failing"
            self._probe = Probe(finding=Finding.BROKEN, step="process", message="The process of a model has ended.")
        if self._stopping.is_set():
            return
        if self._renewing.is_set():
            # Not an unload and a load: under load these have damaged tritonserver's heap (24.10).
            await self._restart_at_once("told to serve what the repository holds now", drain_s=self._config.drain_s)
            return
        if not process.running:
            await self._restart(f"tritonserver ended ({await process.reason()})")
            return
        if not await self._send_canary(process) or self._stopping.is_set() or not process.running:
            return
        match self._probe.finding:
            case Finding.OK:
                await self._recovered(process)
            case Finding.SLOW:
                await self._consider_slow(process)
            case Finding.BROKEN:
                await self._repair()

    async def _send_canary(self, process: Process) -> bool:
        """Send it, and look at the server while it waits; returns False if an end, or a stop, came before the answer.

        A canary that waits for a dead process would hide its death for as long as it waits.
        """
        canary = asyncio.ensure_future(self._backend.probe())
        looking = asyncio.create_task(self._look_on(process))
        interruptions = _tasks(self._stopping.wait(), self._stub_ended.wait(), process.ended())
        try:
            await asyncio.wait({canary, looking, *interruptions}, return_when=asyncio.FIRST_COMPLETED)
            if not canary.done():
                return False
            self._probe = canary.result()
            return True
        finally:
            for task in (canary, looking, *interruptions):
                task.cancel()
            await asyncio.gather(canary, looking, *interruptions, return_exceptions=True)

    async def _look_on(self, process: Process) -> None:
        await asyncio.sleep(_FIRST_LOOK_S)
        while True:
            computed_s, done = process.computed_s(), await self._progress()
            self._activity.look(computed_s, done, now=self._now())
            await asyncio.sleep(LOOK_EVERY_S)

    async def _progress(self) -> float | None:
        """None from a server that does not say at once; a frozen one never says."""
        asking = asyncio.ensure_future(self._backend.progress())
        try:
            # Not wait_for, which loses a cancellation that comes together with the answer (Python 3.11).
            await asyncio.wait({asking}, timeout=LOOK_EVERY_S)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()

    async def _recovered(self, process: Process) -> None:
        if self._status in ("overloaded", "stuck"):
            logger.warning("the server keeps up again")
        await self._note_canary_came_through(process)

    async def _note_canary_came_through(self, process: Process) -> None:
        shortage = await self._backend.shortage()
        if shortage and not self._shortage:
            logger.warning("degraded: %s", shortage)
        self._shortage = shortage
        self._status = "degraded" if shortage else "ready"
        self._model_id = self._probe.model_id
        self._activity.is_well(process.computed_s(), now=self._now())

    async def _consider_slow(self, process: Process) -> None:
        """A canary that does not come through means overload as long as there is work being done; else it hangs.

        A request that is finished is proof of that. Between two of them may lie a minute, where a full batch of a large
        model runs on a machine that others use, too; then it is processor time that tells slow from frozen.
        """
        computed_s, done = process.computed_s(), await self._progress()
        at_work = self._activity.look(computed_s, done, now=self._now())
        # Without a sign of work it may still be overload, of a machine that others use; but nobody gets an answer now.
        status = "overloaded" if at_work else "stuck"
        if status != self._status:
            what = "the server is at work, but" if at_work else "the server does nothing, and"
            logger.warning("%s: %s the canary does not come through in time", status, what)
        self._status = status
        idle_s, unfinished_s = self._activity.idle_s, self._activity.unfinished_s
        limit_s = self._config.frozen_after_s
        if idle_s > limit_s or unfinished_s > _PATIENCE * limit_s:
            though = "" if idle_s > limit_s else ", though the server computes"
            await self._restart(f"no request was finished for {unfinished_s:.0f} s{though}")

    async def _repair(self) -> None:
        """Restart the server.

        A reload of the models is seconds faster where it works. With requests waiting, tritonserver (24.10) hung or
        ended in it after one killed stub of three, and it never lets go of an instance whose stub is gone.
        """
        self._status = "failing"
        # What the sentence says to users behind the semicolon is what is being done here.
        await self._restart_at_once(f"{self._probe.step}: {self._probe.message.partition(';')[0].rstrip('.')}")

    async def _restart_at_once(self, why: str, *, drain_s: float = 0) -> None:
        """Restart a server that had been well, or is: nothing is gained by waiting for longer and longer."""
        self._failures = 0
        await self._restart(why, drain_s=drain_s)
        self._failures = 0

    async def _restart(self, why: str, *, drain_s: float = 0) -> None:
        # Asked once: a start that fails below must not count as a failure of a server that was well for long.
        if self._now() - self._well_since > self._config.settled_after_s:
            self._failures = 0
        while not self._stopping.is_set():
            self._status, self._why_restarting = "restarting", why
            delay_s = min(_MAX_BACKOFF_S, 2.0 ** (self._failures - 1)) if self._failures else 0.0
            self._failures += 1
            self._restarts += 1
            logger.error("restarting tritonserver%s: %s", f" in {delay_s:g} s" if delay_s else "", why)
            await self._stop_process(drain_s=drain_s)
            # Who says that there is something new need not wait for the next try of the old.
            await self._pause(delay_s, self._renewing)
            if self._stopping.is_set():
                return
            try:
                await self._start()
            except (StartError, OSError) as error:
                why = str(error)
                continue
            logger.warning("tritonserver serves again")
            return

    async def _stop_process(self, *, drain_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        stopped = asyncio.create_task(process.stop(drain_s=drain_s))
        impatient = asyncio.create_task(self._impatient.wait())
        await asyncio.wait({stopped, impatient}, return_when=asyncio.FIRST_COMPLETED)
        impatient.cancel()
        if not stopped.done():
            stopped.cancel()
            await asyncio.wait({stopped})
            await process.stop(drain_s=0)
        elif error := stopped.exception():
            raise error

    async def _pause(self, seconds: float, *events: asyncio.Event) -> None:
        """Sleep, but wake up when told to stop, when the process ends, and at any of ``events``."""
        waiters = _tasks(*(event.wait() for event in (self._stopping, *events)))
        if self._process is not None:
            waiters |= _tasks(self._process.ended())
        _, pending = await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()


def _tasks(*waiting: Coroutine[Any, Any, Any]) -> set[asyncio.Task[Any]]:
    return {asyncio.create_task(one) for one in waiting}

"""A supervisor in simulated time, of a server that does what a script says."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from preprocess_ensemble.serving.config import ServeConfig
from preprocess_ensemble.serving.supervisor import Supervisor
from preprocess_ensemble.serving.triton_backend import Probe, ProbeOutcome, Step
from tests.fixtures.simulated_time import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

OK = Probe(outcome=ProbeOutcome.OK, model_id="m@1")
CONNECTING = Probe(outcome=ProbeOutcome.SLOW, step=Step.CONNECT, message="No server answers.")
SLOW = Probe(outcome=ProbeOutcome.SLOW, message="No answer in time.")
BROKEN = Probe(outcome=ProbeOutcome.BROKEN, message="The model's process died; so it did.")
SHORT = Probe(outcome=ProbeOutcome.SHORT, step=Step.SHARED_MEMORY, message="Too little.", model_id="m@1")
FAST = ServeConfig(repository=Path(), canary_interval_s=0.001, frozen_after_s=0.05, start_timeout_s=5)


class FakeProcess:
    pid = os.getpid()
    opened = True

    def __init__(self) -> None:
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.stops: list[float] = []
        self.computing: Callable[[], float] = lambda: 0.0

    @property
    def running(self) -> bool:
        return not self._end.done()

    def computed_s(self) -> float:
        return self.computing()

    def watch_stubs(self, ended: Callable[[], None]) -> None:
        """The stubs of this process never end."""

    async def ended(self) -> int:
        return await asyncio.shield(self._end)

    async def reason(self) -> str:
        assert self.stops, "its stubs hold its output open until they are killed"
        return f"exit code {await self.ended()}"

    async def stop(self, *, drain_s: float) -> None:
        self.stops.append(drain_s)
        self.die(0)

    def die(self, code: int) -> None:
        if self.running:
            self._end.set_result(code)


@dataclass
class FakeServer:
    """Answers probes from ``script``; when that is used up it goes on with OK and tells the supervisor to stop."""

    script: list[Probe | str]
    counts: list[float | None] = field(default_factory=list)
    """Finished requests, one for each time that the supervisor asks."""
    make: Callable[[], FakeProcess] = FakeProcess
    """Starts a process."""
    processes: list[FakeProcess] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    ready: list[Probe] = field(default_factory=list)
    supervisor: Supervisor = field(init=False)

    def run(self, config: ServeConfig = FAST) -> None:
        """Supervise it until the supervisor stops, for a minute at most."""

        async def supervise() -> None:
            self.supervisor = Supervisor(cast("Any", self), config)
            await asyncio.wait_for(self.supervisor.run(self.ready.append), timeout=60)

        simulate(supervise())

    async def start(self) -> FakeProcess:
        self.processes.append(self.make())
        return self.processes[-1]

    async def probe(self) -> Probe:
        self.statuses.append(self.supervisor.report()[1]["status"])
        if not self.script:
            self.supervisor.stop()
            return OK
        step = self.script.pop(0)
        if isinstance(step, Probe):
            return step
        if step == "reload":
            self.supervisor.reload()
            return OK
        self.processes[-1].die(-signal.SIGABRT if step == "crash" else 1)
        return SLOW

    async def progress(self) -> float | None:
        return self.counts.pop(0) if self.counts else None

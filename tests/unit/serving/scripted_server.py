"""A supervisor in simulated time, of a server that does what a script or the clock says."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self, cast

from clip_client._health import Step
from clip_client.serving.config import ServeConfig
from clip_client.serving.probed_triton import Probe, ProbeOutcome
from clip_client.serving.supervisor import Supervisor
from clip_client.serving.triton_process import Activity
from preprocess_ensemble.errors import ReportedError
from tests.fixtures.simulated_time import simulate

OK = Probe(outcome=ProbeOutcome.OK, model_id="m@1")
CONNECTING = Probe(outcome=ProbeOutcome.SLOW, step=Step.CONNECT, message="No server answers.")
SLOW = Probe(outcome=ProbeOutcome.SLOW, message="No answer in time.")
BROKEN = Probe(outcome=ProbeOutcome.BROKEN, message="The model's process died; so it did.")
WRONG = Probe(outcome=ProbeOutcome.BROKEN, step=Step.HANDSHAKE, message=BROKEN.message)
SHORT = Probe(outcome=ProbeOutcome.SHORT, step=Step.SHARED_MEMORY, message="Too little.", model_id="m@1")
LIMITS: Final = ServeConfig(repository=Path())  # the real ones


def now() -> float:
    return asyncio.get_running_loop().time()


class FakeProcess:
    """A server and its process. What is common to all servers of a test is the FakeServer's."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.opened = server.opened
        self.stops: list[float] = []
        self.stopped_at: float | None = None
        self.stub_ended: Callable[[], None] = lambda: None
        self._started = now()
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.activity = Activity(self.computed_s, lambda: self.server.progress())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    @property
    def process(self) -> Self:
        return self

    @property
    def running(self) -> bool:
        return not self._end.done()

    def computed_s(self) -> float:
        return self.server.computed(now() - self._started)

    def watch_stubs(self, ended: Callable[[], None]) -> None:
        """The stubs of this process end when a test says so."""
        self.stub_ended = ended

    async def probe(self) -> Probe:
        self.server.probed = self
        return await self.server.probe()

    async def ended(self) -> int:
        return await asyncio.shield(self._end)

    async def reason(self) -> str:
        assert self.stops, "its stubs hold its output open until they are killed"
        return f"exit code {await self.ended()}"

    def end_without_stub(self) -> None:
        """Its stubs start."""

    @property
    def crashed(self) -> bool:
        return self._end.result() < 0

    async def stop(self, *, drain_s: float) -> None:
        if self.stopped_at is None:
            self.stopped_at = now()
            self.stops.append(drain_s)
            self.die(0)
        self.at_stop(self)

    def die(self, code: int) -> None:
        if self.running:
            self._end.set_result(code)


@dataclass
class FakeServer:
    """Answers probes from ``script``; when that is used up it goes on with OK and tells the supervisor to stop.

    Without a script, or while a later server is not stopped, it behaves by the clock: a callback gets the seconds since
    the start of this one, or the number of that start, from 0.
    """

    script: list[Probe | str] | None = None
    """``"die"`` and ``"crash"`` end the process, ``"reload"`` requests a reload."""
    canary: Callable[[float, int], Probe] = lambda age, start: OK  # seconds and number -> the answer
    computed: Callable[[float], float] = lambda age: 0.0  # processor time so far
    dies_at: Callable[[int], float | None] = lambda start: None
    """Start -> seconds after which its process ends by itself; None if it does not."""
    exit_code: int = 1
    opened: bool = True
    finished: Callable[[float], float | None] = lambda now: None  # requests finished so far, by the server's own count
    answers_all_after: float = 0
    """Seconds after the question until no request is in flight, or no connection is left."""
    at_stop: Callable[[FakeProcess], object] = lambda process: None  # each time that a process is stopped
    make: Callable[[FakeServer], FakeProcess] = FakeProcess
    processes: list[FakeProcess] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    canaries: list[float] = field(default_factory=list)
    reports: list[tuple[bool, Any]] = field(default_factory=list)  # the state that was reported just before each canary
    ready: list[Probe] = field(default_factory=list)
    may_hand_over: bool = True
    metrics_url: str = ""
    switched: list[float] = field(default_factory=list)  # times at which a process got the port of another
    supervisor: Supervisor = field(init=False)
    probed: FakeProcess = field(init=False)  # the latest one that was sent a canary

    def run(
        self,
        *,
        until: float | None = None,
        at: Mapping[float, Callable[[Self], object]] | None = None,
        config: ServeConfig = LIMITS,
    ) -> Self:
        """Supervise it until the script ends or until this time, at which it is stopped.

        ``at`` maps moments to what happens then.
        """

        async def supervise() -> None:
            loop = asyncio.get_running_loop()
            self.supervisor = Supervisor(cast("Any", self.start), config)
            if until is not None:
                loop.call_at(until, self.supervisor.stop)
            for moment, happens in (at or {}).items():
                loop.call_at(moment, happens, self)
            await asyncio.wait_for(self.supervisor.run(self.ready.append), timeout=100_000)

        simulate(supervise())
        return self

    @property
    def statuses(self) -> list[str]:
        return [report["status"] for _, report in self.reports]

    @property
    def pauses(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.starts)]

    @property
    def stops(self) -> list[list[float]]:
        """Seconds of draining of each process, each time that it was stopped."""
        return [process.stops for process in self.processes]

    @property
    def process(self) -> FakeProcess:
        return self.processes[-1]

    def reload(self) -> None:
        self.supervisor.reload()

    def hand_over(self) -> Self:
        """Take the place of the handover of the port, too."""
        if not self.may_hand_over:
            raise ReportedError("no handover")
        return self

    def switch(self) -> None:
        self.switched.append(now())

    def close(self) -> None:
        """The fake has no sockets to close."""

    async def take_over(self) -> None:
        """The fake has no connections to take over."""

    async def no_connections(self) -> None:
        await asyncio.sleep(self.answers_all_after)

    async def start(self, *, beside: bool = False) -> FakeProcess:
        assert len(self.starts) < 100, "restarted without a pause"
        process = self.make(self)
        if (dies_at := self.dies_at(len(self.starts))) is not None:
            asyncio.get_running_loop().call_later(dies_at, process.die, self.exit_code)
        self.processes.append(process)
        self.starts.append(now())
        return process

    async def probe(self) -> Probe:
        self.canaries.append(now())
        self.reports.append(self.supervisor.report())
        number = self.processes.index(self.probed)
        if self.script is None or any(later.stopped_at is None for later in self.processes[number + 1 :]):
            return self.canary(now() - self.starts[number], number)
        if not self.script:
            self.supervisor.stop()
            return OK
        step = self.script.pop(0)
        if isinstance(step, Probe):
            return step
        if step == "reload":
            self.reload()
            return OK
        self.process.die(-signal.SIGABRT if step == "crash" else 1)
        return SLOW

    async def answer_all(self) -> None:
        await asyncio.sleep(self.answers_all_after)

    async def progress(self) -> float | None:
        return self.finished(now())

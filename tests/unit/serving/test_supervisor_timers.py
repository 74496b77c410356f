"""The supervisor's intervals and limits, with their real values in simulated time."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.serving.config import ServeConfig
from preprocess_ensemble.serving.supervisor import Supervisor
from preprocess_ensemble.serving.triton_backend import Probe, ProbeOutcome
from tests.fixtures.simulated_time import simulate
from tests.unit.serving.scripted_server import BROKEN, CONNECTING, OK, SLOW, FakeProcess

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = ServeConfig(repository=Path())


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class TimedServer:
    """A server that behaves by the clock: each callback gets the seconds since the latest start."""

    canary: Callable[[float], Probe] = lambda _: OK
    computed: Callable[[float], float] = lambda _: 0.0
    """Processor time so far."""
    dies_at: Callable[[int], float | None] = lambda _: None
    """Number of the start, from 0 -> how many seconds later that process ends by itself."""
    exit_code: int = 1
    """Of a process that ends by itself."""
    opened: bool = True
    """Whether its port was open then."""
    finished: float | None = None
    """Requests finished so far, by the server's own count."""
    make: Callable[[], FakeProcess] = FakeProcess
    starts: list[float] = field(default_factory=list)
    canaries: list[float] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    """What was reported just before each canary."""
    process: FakeProcess = field(init=False)
    supervisor: Supervisor = field(init=False)

    async def run(self, *, until: float) -> None:
        """Supervise it, and stop at this time."""
        self.supervisor = Supervisor(cast("Any", self), LIMITS)
        asyncio.get_running_loop().call_at(until, self.supervisor.stop)
        await self.supervisor.run(lambda _: None)

    async def start(self) -> FakeProcess:
        started = now()
        assert len(self.starts) < 100, "restarted without a pause"
        self.process = process = self.make()
        process.opened = self.opened
        process.computing = lambda: self.computed(now() - started)
        dies_at = self.dies_at(len(self.starts))
        if dies_at is not None:
            asyncio.get_running_loop().call_later(dies_at, process.die, self.exit_code)
        self.starts.append(started)
        return process

    async def probe(self) -> Probe:
        self.canaries.append(now())
        self.statuses.append(self.supervisor.report()[1]["status"])
        return self.canary(now() - self.starts[-1])

    async def progress(self) -> float | None:
        return self.finished


def _pauses(server: TimedServer) -> list[float]:
    return [later - earlier for earlier, later in pairwise(server.starts)]


def test_a_start_may_take_ten_minutes_and_no_longer() -> None:
    slow = TimedServer(canary=lambda age: OK if age > 599 else CONNECTING)
    simulate(slow.run(until=610))
    assert slow.starts == [0]

    async def never() -> None:
        with pytest.raises(ReportedError, match="not ready within 600 s: No server answers"):
            await TimedServer(canary=lambda _: CONNECTING).run(until=10_000)
        assert 600 <= now() < 601

    simulate(never())


def test_a_slow_start_says_every_ten_seconds_that_it_is_loading(caplog: pytest.LogCaptureFixture) -> None:
    slow = TimedServer(canary=lambda age: OK if age > 25 else CONNECTING)
    simulate(slow.run(until=100))
    assert caplog.messages == ["loading the models", "still loading after 10 s", "still loading after 20 s"]


@pytest.mark.parametrize(
    "first",
    [
        [BROKEN, BROKEN],
        [SLOW] * 5,
    ],
    ids=["wrong twice", "slow"],
)
def test_a_start_may_fail_twice_before_it_succeeds(first: list[Probe]) -> None:
    answers = iter([*first, OK])
    server = TimedServer(canary=lambda _: next(answers, OK))
    simulate(server.run(until=10))
    assert server.starts == [0]


@pytest.mark.parametrize("well_s", [1.0, 1000.0], ids=["young", "old"])
def test_restarts_of_a_server_that_does_not_start_slow_down_to_one_a_minute(well_s: float) -> None:
    """However long it was healthy before: that justifies one restart without delay, not more."""
    server = TimedServer(
        canary=lambda _: CONNECTING if server.starts[1:] else OK,
        dies_at=lambda number: 0.0 if number else well_s,
    )
    simulate(server.run(until=well_s + 400))
    assert _pauses(server)[:10] == pytest.approx([well_s, 1, 2, 4, 8, 16, 32, 60, 60, 60], abs=0.01)


@pytest.mark.parametrize("code", [1, -signal.SIGFPE, -signal.SIGKILL], ids=["exit code", "crash", "kill"])
@pytest.mark.parametrize("well_s", [0.5, 50])
def test_a_server_that_answered_its_canary_is_restarted_without_a_pause(code: int, well_s: float) -> None:
    """A request that crashes Triton, sent again and again, causes no longer outages than the first time."""
    loading_s = 3.0
    server = TimedServer(
        canary=lambda age: OK if age >= loading_s else CONNECTING,
        dies_at=lambda number: loading_s + well_s if number < 20 else None,
        exit_code=code,
    )
    simulate(server.run(until=2000))
    assert _pauses(server) == pytest.approx([loading_s + well_s] * 20, abs=0.01)


@pytest.mark.parametrize(
    ("opened", "code", "replaced", "pauses"),
    [
        (True, -signal.SIGFPE, False, [0, 0, 0, 0, 0]),
        (False, -signal.SIGFPE, False, [0, 1, 2, 4, 8]),
        (True, 1, False, [0, 1, 2, 4, 8]),
        (True, -signal.SIGFPE, True, [0, 1, 2, 4, 8]),
    ],
    ids=["by a request", "while it loads", "by itself", "another model"],
)
def test_a_crash_by_a_request_during_a_start_is_not_the_models_fault(
    opened: bool, code: int, replaced: bool, pauses: list[float]
) -> None:
    """Hostile requests need not wait until the canary is answered; but a new model has not shown yet that it works."""
    loading_s = 3.0
    server = TimedServer(
        canary=lambda _: CONNECTING if 0 < len(server.starts) - 1 < 6 else OK,
        dies_at=lambda number: loading_s if number < 6 else None,
        exit_code=code,
        opened=opened,
    )

    async def run() -> None:
        if replaced:
            asyncio.get_running_loop().call_at(1.0, lambda: server.supervisor.reload())
        await server.run(until=100)

    simulate(run())
    first = 1.0 if replaced else loading_s
    expected = [first, *(loading_s + pause_s for pause_s in pauses[1:])]
    assert _pauses(server)[:5] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("finished", [None, 7.0], ids=["counts nothing", "counts the same"])
def test_a_frozen_server_is_restarted_twenty_seconds_later(finished: float | None) -> None:
    server = TimedServer(canary=lambda age: OK if age < 100 or server.starts[1:] else SLOW, finished=finished)
    simulate(server.run(until=200))
    last_good = 99
    assert LIMITS.frozen_after_s <= server.starts[1] - last_good <= LIMITS.frozen_after_s + 2 * LIMITS.canary_interval_s


def test_one_lost_canary_after_hours_restarts_nothing() -> None:
    server = TimedServer(canary=lambda age: SLOW if 7200 <= age < 7203 else OK)
    simulate(server.run(until=7300))
    assert server.starts == [0]
    assert server.statuses[-1] == "ready"


def test_a_server_that_computes_without_end_is_restarted_after_five_minutes(caplog: pytest.LogCaptureFixture) -> None:
    """A batch of a large model on a crowded machine may take minutes, but a defect that spins must end."""
    server = TimedServer(
        canary=lambda age: OK if age < 10 or server.starts[1:] else SLOW, computed=lambda age: 0.1 * age
    )
    simulate(server.run(until=400))
    last_good = 9
    assert 300 <= server.starts[1] - last_good <= 300 + 2 * LIMITS.canary_interval_s
    assert set(server.statuses[6:-40]) == {"overloaded"}
    assert "no request finished for 303 s, although the server computes" in caplog.text


def test_the_housekeeping_of_an_idle_server_is_not_computing() -> None:
    server = TimedServer(
        canary=lambda age: OK if age < 10 or server.starts[1:] else SLOW, computed=lambda age: 0.01 * age
    )
    simulate(server.run(until=100))
    assert server.starts[1] < 40
    assert "overloaded" not in server.statuses


@pytest.mark.parametrize("well_s", [0, 60], ids=["at once", "after a minute"])
def test_computing_before_a_freeze_is_no_activity(well_s: float) -> None:
    """Loading takes half a minute of processor time, and every canary some."""
    server = TimedServer(
        canary=lambda age: OK if age < well_s + 1 or server.starts[1:] else SLOW,
        computed=lambda age: 30 + min(age, well_s),
    )
    simulate(server.run(until=120))
    assert len(server.starts) == 2
    assert "overloaded" not in server.statuses


def test_the_end_of_the_process_is_noticed_between_two_canaries() -> None:
    server = TimedServer(dies_at=lambda number: None if number else 10.5)
    simulate(server.run(until=20))
    assert server.starts == pytest.approx([0, 10.5], abs=0.01)


def test_a_death_is_noticed_while_the_supervisor_asks_what_a_busy_server_has_finished() -> None:
    reports: list[tuple[bool, object]] = []

    class Server(TimedServer):
        async def progress(self) -> float | None:
            if now() < 20 or reports:
                return 7 * now()
            asyncio.get_running_loop().call_later(0.01, lambda: reports.append(self.supervisor.report()))
            self.process.die(-signal.SIGSEGV)
            await asyncio.sleep(3600)
            raise AssertionError("the supervisor does not wait so long")

    def canary(age: float) -> Probe:
        if server.starts[1:]:
            return OK if age > 1 else CONNECTING
        return OK if age < 10 else SLOW

    server = Server(canary=canary)
    simulate(server.run(until=25))
    assert server.statuses[4:7] == ["ready", "overloaded", "overloaded"]
    assert reports[0][0] is False


def test_the_end_of_one_stub_sends_one_canary() -> None:
    """Its model may have been unloaded on purpose; the canary goes on at its own pace."""

    class Doomed(FakeProcess):
        def watch_stubs(self, ended: Callable[[], None]) -> None:
            asyncio.get_running_loop().call_at(4.0, ended)

    server = TimedServer(make=Doomed)
    simulate(server.run(until=11))
    assert server.canaries == pytest.approx([0, 3, 4, 7, 10], abs=0.01)


def test_stubs_that_end_with_their_server_send_no_canary_to_the_next_one() -> None:
    class Watched(FakeProcess):
        def watch_stubs(self, ended: Callable[[], None]) -> None:
            self.stub_ended = ended

        async def stop(self, *, drain_s: float) -> None:
            await super().stop(drain_s=drain_s)
            self.stub_ended()

    server = TimedServer(canary=lambda age: OK if age < 1 or server.starts[1:] else BROKEN, make=Watched)
    simulate(server.run(until=11))
    assert server.canaries == pytest.approx([0, 3, 3, 6, 9], abs=0.01)


def test_a_process_that_ends_during_its_canary_is_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    def dying(age: float) -> Probe:
        if age < 1 or server.starts[1:]:
            return OK
        server.process.die(7)
        return BROKEN

    server = TimedServer(canary=dying)
    simulate(server.run(until=20))
    assert len(server.starts) == 2
    assert "restarting tritonserver: tritonserver ended (exit code 7)" in caplog.text


def test_a_restart_that_the_machine_rejects_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    class Server(TimedServer):
        refused = 0

        async def start(self) -> FakeProcess:
            if self.starts and not self.refused:
                self.refused += 1
                raise OSError("No space left on device")
            return await super().start()

    server = Server(dies_at=lambda number: None if number else 5.0)
    simulate(server.run(until=20))
    assert server.starts == pytest.approx([0, 6], abs=0.01)
    assert "in 1 s: No space left on device" in caplog.text


def test_the_report_has_the_model_of_the_last_canary_and_the_number_of_restarts() -> None:
    server = TimedServer(canary=lambda age: Probe(outcome=ProbeOutcome.OK, model_id="new@2" if age > 5 else "old@1"))
    reports: list[object] = []

    async def run() -> None:
        for moment in (1, 10):
            asyncio.get_running_loop().call_at(moment, lambda: reports.append(server.supervisor.report()))
        asyncio.get_running_loop().call_at(11, lambda: server.process.die(1))
        asyncio.get_running_loop().call_at(12, lambda: reports.append(server.supervisor.report()))
        await server.run(until=20)

    simulate(run())
    assert reports == [
        (True, {"status": "ready", "model": "old@1", "restarts": 0}),
        (True, {"status": "ready", "model": "new@2", "restarts": 0}),
        (True, {"status": "ready", "model": "old@1", "restarts": 1}),
    ]


def test_a_server_that_is_stopped_while_it_starts_is_not_announced() -> None:
    announced: list[Probe] = []

    async def run() -> None:
        server = TimedServer(canary=lambda _: CONNECTING)
        supervisor = server.supervisor = Supervisor(cast("Any", server), LIMITS)
        asyncio.get_running_loop().call_at(5, supervisor.stop)
        await supervisor.run(announced.append)
        assert server.process.stops == [0], "there is nothing to drain"

    simulate(run())
    assert announced == []


def test_an_error_while_stopping_is_raised() -> None:
    class Stubborn(FakeProcess):
        async def stop(self, *, drain_s: float) -> None:
            raise RuntimeError("cannot be stopped")

    with pytest.raises(RuntimeError, match="cannot be stopped"):
        simulate(TimedServer(make=Stubborn).run(until=1))


@pytest.mark.parametrize("load", ["idle", "busy"])
@pytest.mark.parametrize("frozen_at", [30.0, 31.9, 33.3, 34.1, 35.2, 37.6])
def test_a_frozen_server_is_healthy_for_no_longer_than_documented(frozen_at: float, load: str) -> None:
    """Whenever it freezes: between two canaries, or while one waits; whatever it did until then."""
    canary_s = 5.0
    unhealthy_at: list[float] = []

    class Freezing(TimedServer):
        async def probe(self) -> Probe:
            sent, answer_s = now(), 4.5 if load == "busy" else 0.1
            await asyncio.sleep(answer_s)
            if now() < frozen_at:
                return OK
            await asyncio.sleep(sent + canary_s - now())
            return SLOW

        async def progress(self) -> float | None:
            if now() < frozen_at:
                return 7 * now()
            await asyncio.sleep(3600)
            raise AssertionError("the supervisor does not wait so long")

    async def watch(server: Freezing) -> None:
        while not unhealthy_at:
            await asyncio.sleep(0.05)
            if now() > frozen_at and not server.supervisor.report()[0]:
                unhealthy_at.append(now())

    async def freeze() -> None:
        server = Freezing(computed=lambda age: min(age, frozen_at) if load == "busy" else 0.0)
        watching = asyncio.create_task(watch(server))
        await server.run(until=70)
        await watching

    simulate(freeze())
    bound_s = LIMITS.canary_interval_s + canary_s + 4
    assert unhealthy_at[0] - frozen_at <= bound_s, "as docs/operations-reference.md says"

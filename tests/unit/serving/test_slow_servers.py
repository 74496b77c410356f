"""The supervisor of a server that is slow or frozen, in simulated time."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from clip_client.serving.probed_triton import Probe
from tests.unit.serving.scripted_server import LIMITS, OK, SLOW, FakeServer, now


def slow_from(age_s: float, until_s: float = float("inf")) -> Callable[[float, int], Probe]:
    """The canaries of a server that answers none between these ages, until it is restarted."""
    return lambda age, start: SLOW if age_s <= age < until_s and not start else OK


@pytest.mark.parametrize(
    ("well_s", "work", "restarted_after_s"),
    [
        (100, {}, LIMITS.frozen_after_s),
        (100, {"finished": lambda now: 7.0}, LIMITS.frozen_after_s),
        # Loading takes half a minute of processor time, and every canary some.
        (1, {"computed": lambda age: 30 + min(age, 0)}, LIMITS.frozen_after_s),
        (61, {"computed": lambda age: 30 + min(age, 60)}, LIMITS.frozen_after_s),
        (11, {"computed": lambda age: 0.01 * age}, LIMITS.frozen_after_s),
        # A batch of a large model on a crowded machine may take minutes, but a defect that spins must end.
        (10, {"computed": lambda age: 0.1 * age}, 300),
    ],
    ids=["nothing", "the same count", "loading", "canaries", "housekeeping", "computes without end"],
)
def test_a_server_that_does_not_answer_is_restarted_after_its_last_sign_of_work(
    well_s: float, work: dict[str, Any], restarted_after_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeServer(canary=slow_from(well_s), **work).run(until=well_s + restarted_after_s + 50)
    last_good = next(at for at in reversed(server.canaries) if at < well_s)
    assert 0 <= server.starts[1] - last_good - restarted_after_s <= 2 * LIMITS.canary_interval_s
    assert len(server.starts) == 2
    is_busy = restarted_after_s > LIMITS.frozen_after_s
    slow = [status for status in server.statuses if status in ("overloaded", "stuck")]
    # The first count that is read may be a new one.
    assert set(slow[1:] if "finished" in work else slow) == {"overloaded" if is_busy else "stuck"}
    assert ("although the server computes" in caplog.text) == is_busy


def test_housekeeping_just_before_a_sample_does_not_look_like_work() -> None:
    """Processor time is counted in hundredths of a second, and a frozen server uses one now and then."""
    canary_s = 5.05
    cycle_s = LIMITS.canary_interval_s + canary_s

    class Slow(FakeServer):
        async def probe(self) -> Probe:
            if now() < 1 or len(self.starts) > 1:
                return OK
            await asyncio.sleep(canary_s)
            return SLOW

    server = Slow(computed=lambda age: 0.01 * ((age + 0.02) // cycle_s)).run(until=60)
    assert server.starts == pytest.approx([0, 3 * cycle_s], abs=0.01)


@pytest.mark.parametrize(
    ("slow_s", "finished", "status"),
    [(3, lambda now: None, "stuck"), (800, lambda now: 7 * now, "overloaded")],
    ids=["one lost canary", "finishes requests"],
)
def test_a_server_that_is_slow_for_a_while_or_finishes_requests_is_not_restarted(
    slow_s: float, finished: Callable[[float], float | None], status: str
) -> None:
    server = FakeServer(canary=slow_from(900, 900 + slow_s), finished=finished).run(until=910 + slow_s)
    assert server.starts == [0]
    assert set(server.statuses) == {"starting", "ready", status}
    assert server.statuses[-1] == "ready"


def test_a_death_is_noticed_while_the_supervisor_asks_what_a_busy_server_has_finished() -> None:
    reports: list[tuple[bool, object]] = []

    class Server(FakeServer):
        async def progress(self) -> float | None:
            if now() < 20 or reports:
                return 7 * now()
            asyncio.get_running_loop().call_later(0.01, lambda: reports.append(self.supervisor.report()))
            self.process.die(-signal.SIGSEGV)
            await asyncio.sleep(3600)
            raise AssertionError("the supervisor does not wait so long")

    server = Server(canary=lambda age, start: OK if (age > 1 if start else age < 10) else SLOW).run(until=25)
    assert server.statuses[4:7] == ["ready", "overloaded", "overloaded"]
    assert reports[0][0] is False

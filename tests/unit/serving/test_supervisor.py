"""The supervisor's decisions, with its real intervals and limits in simulated time.

tests/live/serving/test_serve.py tests it with a real server.
"""

import asyncio
import signal
from dataclasses import replace
from typing import Any

import pytest

from clip_client.serving.probed_triton import Probe
from clip_client.serving.supervisor import UNLOAD_S
from preprocess_ensemble.errors import ReportedError
from tests.unit.serving.scripted_server import BROKEN, CONNECTING, LIMITS, OK, SHORT, SLOW, WRONG, FakeServer, now


@pytest.mark.parametrize("death", ["server", "stub"])
def test_a_death_does_not_wait_for_a_running_canary(death: str) -> None:
    class Server(FakeServer):
        async def probe(self) -> Probe:
            probe = await super().probe()
            if len(self.canaries) == 2:
                if death == "server":
                    self.process.die(1)
                else:
                    self.process.stub_ended()
                await asyncio.Event().wait()
            return probe

    server = Server([OK, OK, BROKEN] if death == "stub" else [OK, OK]).run()
    assert len(server.processes) == 2
    # Between the death of the stub and the answer of the next canary it is not called healthy.
    assert server.statuses[:3] == ["starting", "ready", "failing" if death == "stub" else "restarting"]
    assert server.canaries[1] == server.canaries[2]


def test_the_reason_of_a_restart_is_reported_until_the_server_is_healthy() -> None:
    server = FakeServer(
        canary=lambda age, start: CONNECTING if start and age <= 1 else OK,
        dies_at=lambda start: (5, 0)[start] if start < 2 else None,
        exit_code=7,
    ).run(until=15)
    restarting = [report for healthy, report in server.reports if report["restarts"] == 2 and not healthy]
    found = {(report["status"], report["step"], report["message"]) for report in restarting}
    assert found == {("restarting", "start", "tritonserver ended while it started: exit code 7")}
    assert server.reports[-1] == (True, {"status": "ready", "model": "m@1", "restarts": 2})


def test_a_dead_server_is_unhealthy_while_its_stubs_are_cleared_away() -> None:
    """The stubs hold the output of a loaded server open for seconds; health checks must not send clients there."""
    reports: list[tuple[bool, Any]] = []
    FakeServer([OK, "die", OK], at_stop=lambda process: reports.append(process.server.supervisor.report())).run()
    healthy, report = reports[0]
    assert (healthy, report["status"]) == (False, "restarting")
    assert (report["step"], report["message"]) == ("start", "tritonserver ended")


def test_the_report_has_the_model_of_the_last_canary() -> None:
    server = FakeServer(canary=lambda age, start: replace(OK, model_id="new@2" if age > 5 else "old@1")).run(until=11)
    assert [report["model"] for _, report in server.reports] == ["", "old@1", "old@1", "new@2"]


def test_a_server_without_enough_shared_memory_is_degraded(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer([OK, SHORT, SHORT, OK]).run()
    assert server.statuses == ["starting", "ready", "degraded", "degraded", "ready"]
    healthy, report = server.reports[2]
    assert (healthy, report["step"], report["message"]) == (False, "shared memory", "Too little.")
    assert caplog.text.count("degraded: Too little.") == 1
    assert len(server.processes) == 1


@pytest.mark.parametrize(("first", "code"), [("die", 1), ("crash", -signal.SIGABRT)])
def test_a_first_start_that_fails_is_an_error_and_one_that_crashes_is_tried_once_more(first: str, code: int) -> None:
    server = FakeServer([first, "crash", OK])
    with pytest.raises(ReportedError, match=f"ended while it started: exit code {code}"):
        server.run()
    assert server.stops == [[0]] * (1 if first == "die" else 2)


def test_a_first_start_that_crashes_while_it_is_stopped_is_not_tried_again() -> None:
    server = FakeServer(["crash", OK], at_stop=lambda process: process.server.supervisor.stop()).run()
    assert (len(server.processes), server.ready) == (1, [])


def test_a_start_may_take_its_time_and_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    config = replace(LIMITS, start_timeout_s=60)
    slow = FakeServer(canary=lambda age, start: OK if age > 59 else CONNECTING).run(until=70, config=config)
    assert slow.starts == [0]
    assert caplog.messages[:3] == ["loading the models", "still loading after 10 s", "still loading after 20 s"]
    never = FakeServer(canary=lambda age, start: CONNECTING)
    with pytest.raises(ReportedError, match="not ready within 60 s: No server answers"):
        never.run(until=1000, config=config)
    assert 60 <= never.canaries[-1] < 61


def test_a_server_that_cannot_be_sampled_is_not_waited_for_without_limit() -> None:
    """The test acts as if this process had no file descriptor left."""

    class Slow(FakeServer):
        async def probe(self) -> Probe:
            await asyncio.sleep(5)
            return CONNECTING

    def unreadable(age: float) -> float:
        if age:
            raise OSError("Too many open files")
        return 0

    with pytest.raises(ReportedError, match="was not ready within 600 s: it gave no answer"):
        Slow(computed=unreadable).run(until=1000)


def test_a_model_that_is_wrong_three_times_is_an_error_at_start() -> None:
    FakeServer([WRONG, WRONG, *[SLOW] * 5, OK]).run()
    with pytest.raises(ReportedError, match="handshake: The model's process died"):
        FakeServer([WRONG, WRONG, WRONG]).run()


def test_a_new_model_gets_the_port_once_it_is_right_and_the_old_one_ends_without_clients() -> None:
    loading_s, leave_s = 3.0, 20.0
    server = FakeServer(
        canary=lambda age, start: OK if age >= loading_s or not start else CONNECTING, answers_all_after=leave_s
    ).run(until=60, at={10.0: FakeServer.reload})
    assert [start - server.starts[0] for start in server.starts] == pytest.approx([0, 10], abs=0.01)
    (switched,) = server.switched
    assert switched - server.starts[1] == pytest.approx(loading_s, abs=0.5)
    assert server.processes[0].stopped_at == pytest.approx(switched + leave_s, abs=0.01)
    assert {*server.statuses} == {"starting", "ready"}
    assert server.supervisor.report()[1]["restarts"] == 0


@pytest.mark.parametrize("ends", [False, True], ids=["wrong vectors", "ends"])
def test_a_new_model_that_fails_leaves_the_old_one_serving(ends: bool, caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer(
        canary=lambda age, start: (CONNECTING if ends else WRONG) if start else OK,
        dies_at=lambda start: 2.0 if start and ends else None,
    ).run(until=60, at={10.0: FakeServer.reload})
    old, new = server.stops
    assert (server.switched, old, set(new)) == ([], [UNLOAD_S], {0})
    assert {*server.statuses} == {"starting", "ready"}
    assert "reload failed; the current model keeps serving: " in caplog.text


@pytest.mark.parametrize("answer", [SLOW, BROKEN])
def test_the_old_server_is_checked_while_a_new_model_loads(answer: Probe) -> None:
    healthy: list[bool] = []

    def ask(server: FakeServer) -> None:
        healthy.append(server.supervisor.report()[0])

    server = FakeServer(canary=lambda age, start: CONNECTING if start else OK if age < 30 else answer)
    server.run(until=60, at={10.0: FakeServer.reload, 29.0: ask, 42.0: ask})
    assert healthy == [True, False]
    assert server.starts == pytest.approx([0, 10], abs=0.01), "the new one goes on loading"


def test_without_a_handover_a_new_model_is_served_after_a_drained_restart() -> None:
    server = FakeServer([OK, "reload", OK], may_hand_over=False).run()
    assert (server.switched, server.stops) == ([], [[UNLOAD_S], [UNLOAD_S]])
    assert server.supervisor.report()[1]["restarts"] == 1


@pytest.mark.parametrize(("breaks", "started_at"), [(False, 30), (True, 15.5)], ids=["well", "broken meanwhile"])
def test_a_reload_waits_for_the_replaced_server_but_a_restart_does_not(breaks: bool, started_at: float) -> None:
    """Three servers would need the memory of three."""
    server = FakeServer(
        canary=lambda age, start: BROKEN if start == 1 and age >= 5 and breaks else OK, answers_all_after=20
    ).run(until=60, at={10: FakeServer.reload, 11: FakeServer.reload, 15: lambda server: server.process.stub_ended()})
    assert server.starts == pytest.approx([0, 10, started_at], abs=0.01)


def test_a_reload_ends_the_pause_before_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    """Restarts are retried at growing intervals, but a requested reload starts the server at once."""

    class Server(FakeServer):
        async def start(self, *, beside: bool = False) -> Any:
            process = await super().start()
            if 1 < len(self.processes) < 6:
                process.die(1)
                self.supervisor.reload()
            return process

    server = Server([OK, "die", OK]).run()
    assert len(server.starts) == 6
    assert "restarting tritonserver in 8 s" in caplog.text
    assert server.starts[-1] - server.starts[1] < 0.01, "no pause was waited for"


@pytest.mark.parametrize("well_s", [1.0, 1000.0], ids=["young", "old"])
def test_restarts_of_a_server_that_does_not_start_slow_down_to_one_a_minute(well_s: float) -> None:
    """However long it was healthy before: that justifies one restart without delay, not more."""
    server = FakeServer(
        canary=lambda age, start: CONNECTING if start else OK, dies_at=lambda start: 0.0 if start else well_s
    ).run(until=well_s + 400)
    assert server.pauses[:10] == pytest.approx([well_s, 1, 2, 4, 8, 16, 32, 60, 60, 60], abs=0.01)


@pytest.mark.parametrize(("code", "well_s"), [(1, 0.5), (-signal.SIGFPE, 0.5), (-signal.SIGKILL, 50)])
def test_a_server_that_answered_its_canary_is_restarted_without_a_pause(code: int, well_s: float) -> None:
    """A request that crashes Triton, sent again and again, causes no longer outages than the first time."""
    loading_s = 3.0
    server = FakeServer(
        canary=lambda age, start: OK if age >= loading_s else CONNECTING,
        dies_at=lambda start: loading_s + well_s if start < 10 else None,
        exit_code=code,
    ).run(until=600)
    assert server.pauses == pytest.approx([loading_s + well_s] * 10, abs=0.01)


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
    server = FakeServer(
        canary=lambda age, start: CONNECTING if 0 < start < 6 else OK,
        dies_at=lambda start: loading_s if start < 6 else None,
        exit_code=code,
        opened=opened,
    ).run(until=100, at={1.0: FakeServer.reload} if replaced else {})
    # The other model starts beside the current one, which crashes then, and ends the attempt.
    first = [1.0, loading_s - 1.0] if replaced else [loading_s]
    expected = [*first, *(loading_s + pause_s for pause_s in pauses[1:])]
    assert server.pauses[:5] == pytest.approx(expected[:5], abs=0.01)


def test_a_restart_that_the_machine_rejects_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    class Server(FakeServer):
        refused = 0

        async def start(self, *, beside: bool = False) -> Any:
            if self.starts and not self.refused:
                self.refused += 1
                raise OSError("No space left on device")
            return await super().start()

    server = Server(dies_at=lambda start: None if start else 5.0).run(until=20)
    assert server.starts == pytest.approx([0, 6], abs=0.01)
    assert "in 1 s: No space left on device" in caplog.text


def test_the_end_of_one_stub_sends_one_canary() -> None:
    """Its model may have been unloaded on purpose; the canary goes on at its own pace."""
    server = FakeServer().run(until=11, at={4.0: lambda server: server.process.stub_ended()})
    assert server.canaries == pytest.approx([0, 3, 4, 7, 10], abs=0.01)


def test_stubs_that_end_with_their_server_send_no_canary_to_the_next_one() -> None:
    server = FakeServer(
        canary=lambda age, start: OK if age < 1 or start else BROKEN, at_stop=lambda process: process.stub_ended()
    ).run(until=11)
    assert server.canaries == pytest.approx([0, 3, 3.5, 6.5, 9.5], abs=0.01)


@pytest.mark.parametrize("known_after_s", [0, 0.4])
def test_a_death_during_a_canary_is_the_reason(known_after_s: float, caplog: pytest.LogCaptureFixture) -> None:
    class Dying(FakeServer):
        async def probe(self) -> Probe:
            probe = await super().probe()
            if probe is BROKEN:
                asyncio.get_running_loop().call_later(known_after_s, self.probed.die, 7)
            return probe

    server = Dying(canary=lambda age, start: OK if age < 1 or start else BROKEN).run(until=20)
    assert len(server.starts) == 2
    assert "restarting tritonserver: tritonserver ended (exit code 7)" in caplog.text


@pytest.mark.parametrize("load", ["idle", "busy"])
@pytest.mark.parametrize("frozen_at", [30.0, 31.9, 33.3, 34.1, 35.2, 37.6])
def test_a_frozen_server_is_healthy_for_no_longer_than_documented(frozen_at: float, load: str) -> None:
    """Whenever it freezes: between two canaries, or while one waits; whatever it did until then."""
    canary_s = 5.0

    class Freezing(FakeServer):
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

    bound_s = LIMITS.canary_interval_s + canary_s + 4  # as docs/operations-reference.md says
    found: list[bool] = []
    server = Freezing(computed=lambda age: min(age, frozen_at) if load == "busy" else 0.0)
    server.run(until=70, at={frozen_at + bound_s: lambda server: found.append(server.supervisor.report()[0])})
    assert found == [False]

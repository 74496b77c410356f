"""The supervisor's decisions, with a scripted server.

test_supervisor_timers.py tests its timers, and tests/live/serving/test_serve.py a real server.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.serving.supervisor import DRAIN_S
from preprocess_ensemble.serving.triton_backend import Probe, ProbeOutcome, Step
from tests.unit.serving.scripted_server import BROKEN, CONNECTING, FAST, OK, SHORT, SLOW, FakeProcess, FakeServer

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_healthy_server_is_not_restarted_and_is_drained_at_the_end() -> None:
    server = FakeServer([OK, OK, OK])
    server.run()
    assert server.ready == [OK], "announced once"
    assert [process.stops for process in server.processes] == [[DRAIN_S]]


def test_a_broken_model_restarts_the_server_at_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer([OK, *[BROKEN, OK] * 4])
    server.run()
    assert len(server.processes) == 5
    assert [process.stops for process in server.processes[:-1]] == [[0]] * 4, "there is nothing to drain"
    assert caplog.text.count("restarting tritonserver: canary: The model's process died; so it did.\n") == 4, (
        "none was delayed"
    )


@pytest.mark.parametrize("death", ["server", "stub"])
def test_a_death_does_not_wait_for_a_running_canary(death: str) -> None:
    stub_ended: list[Callable[[], None]] = []

    class Doomed(FakeProcess):
        def watch_stubs(self, ended: Callable[[], None]) -> None:
            stub_ended.append(ended)

    class Server(FakeServer):
        async def start(self) -> FakeProcess:
            self.processes.append(Doomed())
            return self.processes[-1]

        async def probe(self) -> Probe:
            if len(self.statuses) != 1:
                return await super().probe()
            self.statuses.append("waits")
            if death == "server":
                self.processes[0].die(1)
            else:
                stub_ended[0]()
            await asyncio.Event().wait()
            raise AssertionError("nothing sets this")

    server = Server([OK, BROKEN])
    if death == "server":
        server.script = [OK]
    server.run()
    assert len(server.processes) == 2
    # Between the death of the stub and the answer of the next canary it is not called healthy.
    assert server.statuses[:3] == ["starting", "waits", "failing" if death == "stub" else "restarting"]


def test_the_reason_of_a_restart_is_reported_until_the_server_is_healthy() -> None:
    reports: list[tuple[bool, Any]] = []

    class Server(FakeServer):
        async def start(self) -> FakeProcess:
            process = await super().start()
            if len(self.processes) == 2:
                process.die(7)
            if len(self.processes) == 3:
                reports.append(self.supervisor.report())
            return process

        async def probe(self) -> Probe:
            if len(self.processes) == 3:
                reports.append(self.supervisor.report())
            return await super().probe()

    Server([OK, "die", CONNECTING, OK, OK]).run()
    *restarting, well, _ = reports
    assert len(restarting) == 3
    for healthy, report in restarting:
        assert not healthy
        assert (report["status"], report["step"]) == ("restarting", "start")
        assert report["message"] == "tritonserver ended while it started: exit code 7"
    assert well == (True, {"status": "ready", "model": "m@1", "restarts": 2})


def test_a_server_without_enough_shared_memory_is_degraded_and_not_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = FakeServer([OK, SHORT, SHORT, OK])
    reports = []
    probe = server.probe

    async def note() -> Probe:
        reports.append(server.supervisor.report())
        return await probe()

    server.probe = note  # type: ignore[method-assign]
    server.run()
    assert [report["status"] for _, report in reports] == ["starting", "ready", "degraded", "degraded", "ready"]
    assert reports[2][0] is False
    assert (reports[2][1]["step"], reports[2][1]["message"]) == ("shared memory", "Too little.")
    assert caplog.text.count("degraded: Too little.") == 1
    assert len(server.processes) == 1


def test_a_server_that_ends_is_restarted_and_not_announced_again(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer([OK, "die", OK])
    server.run()
    assert (len(server.processes), len(server.ready)) == (2, 1)
    assert "restarting tritonserver: tritonserver ended (exit code 1)" in caplog.text


@pytest.mark.parametrize("script", [[OK, "reload", OK, OK], ["reload", OK, OK]], ids=["at work", "starting"])
def test_a_reload_drains_and_restarts_the_server(script: list[Probe | str]) -> None:
    server = FakeServer(list(script))
    server.run()
    assert [process.stops for process in server.processes] == [[DRAIN_S], [DRAIN_S]]
    assert len(server.ready) == 1


def test_overload_is_reported_and_not_restarted() -> None:
    slow: list[Probe | str] = [SLOW] * 5
    server = FakeServer([OK, *slow, OK, OK], counts=[10, 20, 30, 40, 50])
    # Any wait without progress would be too long.
    server.run(replace(FAST, frozen_after_s=0.0))
    assert len(server.processes) == 1
    assert "overloaded" in server.statuses
    assert server.statuses[-1] == "ready"


def test_a_first_start_that_fails_is_an_error() -> None:
    server = FakeServer(["die"])
    with pytest.raises(ReportedError, match=r"ended while it started: exit code 1"):
        server.run()
    assert server.processes[0].stops == [0]


def test_a_first_start_that_crashes_is_tried_once_more(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer(["crash", OK])
    server.run()
    assert server.ready == [OK]
    assert [process.stops for process in server.processes] == [[0], [DRAIN_S]]
    assert "tritonserver ended while it started: exit code -6; trying once more" in caplog.text
    twice = FakeServer(["crash", "crash", OK])
    with pytest.raises(ReportedError, match="exit code -6"):
        twice.run()
    assert len(twice.processes) == 2


def test_a_first_start_that_crashes_while_it_is_stopped_is_not_tried_again() -> None:
    class Process(FakeProcess):
        async def reason(self) -> str:
            server.supervisor.stop()
            return await super().reason()

    server = FakeServer(["crash", OK], make=Process)
    server.run()
    assert len(server.processes) == 1
    assert not server.ready


def test_a_model_that_loads_but_is_wrong_is_an_error_at_start() -> None:
    wrong = Probe(outcome=ProbeOutcome.BROKEN, step=Step.HANDSHAKE, message="Another contract.")
    with pytest.raises(ReportedError, match="handshake: Another contract"):
        FakeServer([wrong, wrong, wrong]).run()
    server = FakeServer([CONNECTING] * 5)
    server.run()
    assert len(server.processes) == 1, "a server that does not answer yet is waited for"


def test_a_dead_server_is_unhealthy_while_its_stubs_are_cleared_away() -> None:
    """Under load they hold its output open for seconds; health checks must not send clients there."""
    reports: list[tuple[bool, Any]] = []

    class Process(FakeProcess):
        async def stop(self, *, drain_s: float) -> None:
            if server.ready and not reports:
                reports.append(server.supervisor.report())
            await super().stop(drain_s=drain_s)

    server = FakeServer([OK, "die", OK], make=Process)
    server.run()
    ((healthy, report),) = reports
    assert not healthy
    assert (report["status"], report["step"], report["message"]) == ("restarting", "start", "tritonserver ended")


def test_a_stop_between_restarts_drains_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is loading its models would take all the time that running requests may have."""

    class Server(FakeServer):
        async def probe(self) -> Probe:
            if len(self.processes) == 2:
                self.supervisor.stop()
                await asyncio.Event().wait()
            return await super().probe()

    server = Server([OK, "die"])
    server.run()
    assert [process.stops for process in server.processes] == [[0], [0]]
    assert "tritonserver is ready again" not in caplog.text


def test_a_server_that_did_not_start_after_a_reload_is_not_drained() -> None:
    wrong = replace(BROKEN, step=Step.HANDSHAKE)
    server = FakeServer([OK, "reload", wrong, wrong, wrong, OK])
    server.run()
    assert [process.stops for process in server.processes] == [[DRAIN_S], [0], [DRAIN_S]]


@pytest.mark.parametrize("last", [SLOW, SHORT], ids=["stuck", "degraded"])
def test_a_server_that_may_have_requests_is_drained(last: Probe) -> None:
    server = FakeServer([OK, last])
    server.run()
    assert server.processes[0].stops == [DRAIN_S]


def test_a_server_whose_model_has_died_is_not_drained() -> None:
    class Doomed(FakeProcess):
        def watch_stubs(self, ended: Callable[[], None]) -> None:
            ended()

    server = FakeServer([OK], make=Doomed)
    server.run(replace(FAST, canary_interval_s=3600))
    assert server.processes[0].stops == [0]


def test_a_reload_ends_the_pause_before_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    """Restarts are retried at growing intervals, but a requested reload starts the server at once."""

    class Server(FakeServer):
        async def start(self) -> FakeProcess:
            starts.append(asyncio.get_running_loop().time())
            process = await super().start()
            if 1 < len(self.processes) < 6:
                process.die(1)
                self.supervisor.reload()
            return process

    starts: list[float] = []
    server = Server([OK, "die", OK])
    server.run()
    assert len(starts) == 6
    assert "restarting tritonserver in 8 s" in caplog.text
    assert starts[-1] - starts[1] < 0.01, "no pause was waited for"


def test_a_second_stop_ends_the_draining() -> None:
    class Endless(FakeProcess):
        async def stop(self, *, drain_s: float) -> None:
            self.stops.append(drain_s)
            if drain_s:
                server.supervisor.stop()
                await asyncio.Event().wait()
            self.die(0)

    server = FakeServer([OK], make=Endless)
    server.run()
    assert server.processes[0].stops == [DRAIN_S, 0]

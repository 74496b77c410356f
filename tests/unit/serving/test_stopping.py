"""The supervisor stops a server, in simulated time: requests in flight are answered before Triton is told to end."""

import asyncio
from unittest.mock import Mock

import pytest

from clip_client.serving.probed_triton import Probe
from clip_client.serving.supervisor import DRAIN_S, UNLOAD_S
from preprocess_ensemble.errors import ReportedError
from tests.unit.serving.scripted_server import BROKEN, CONNECTING, OK, SHORT, SLOW, FakeProcess, FakeServer


@pytest.mark.parametrize("seconds", [0, 7, DRAIN_S - 1, 1000])
def test_running_requests_are_answered_before_the_server_ends(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    """Triton refuses the steps of an ensemble once it is told to stop. There is a limit, because new ones may come."""
    server = FakeServer(answers_all_after=seconds).run(until=10)
    assert server.process.stopped_at == 10 + min(seconds, DRAIN_S)
    assert caplog.text.count("stopping: waiting up to 30 s for running requests") == 1
    assert ("still running after 30 s; they are lost" in caplog.text) == (seconds > DRAIN_S)


@pytest.mark.parametrize("happens", ["second stop", "stub ends", "server ends"])
def test_draining_ends_early_if_it_is_futile_or_unwanted(happens: str, caplog: pytest.LogCaptureFixture) -> None:
    def happen(server: FakeServer) -> None:
        match happens:
            case "second stop":
                server.supervisor.stop()
            case "stub ends":
                server.process.stub_ended()
            case _:
                server.process.die(1)

    server = FakeServer(answers_all_after=1000).run(until=10, at={12: happen})
    assert server.process.stopped_at == 12
    assert "they are lost" not in caplog.text


def test_health_says_no_from_the_signal_to_stop_on() -> None:
    seen = []

    def look(server: FakeServer) -> None:
        seen.append(server.supervisor.report()[0])
        server.supervisor.stop()
        seen.append(server.supervisor.report()[0])

    FakeServer(answers_all_after=5).run(at={10: look}, until=11)
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("script", "stops"),
    [
        ([OK, OK], [[UNLOAD_S]]),
        ([OK, SLOW], [[UNLOAD_S]]),
        ([OK, SHORT], [[UNLOAD_S]]),
        (["reload", OK], [[UNLOAD_S], [UNLOAD_S]]),
        ([OK, "reload", OK], [[UNLOAD_S], [UNLOAD_S]]),
        ([OK, BROKEN, OK], [[0], [UNLOAD_S]]),
        ([OK, "die", OK], [[0], [UNLOAD_S]]),
        (["crash", OK], [[0], [UNLOAD_S]]),
        ([OK, "reload", "crash", OK], [[UNLOAD_S], [0], [UNLOAD_S]]),
        ([OK, "reload", "crash", "crash", OK], [[UNLOAD_S], [0], [0]]),
    ],
    ids=[
        *("well", "stuck", "degraded", "reload at start", "reload", "broken", "ended", "crash at start"),
        *("new model crashes once", "new model crashes twice"),
    ],
)
def test_what_may_have_requests_is_drained_and_only_the_first_start_is_announced(
    script: list[Probe | str], stops: list[list[float]]
) -> None:
    server = FakeServer(list(script)).run()
    assert server.stops == stops
    assert server.ready == [OK]


@pytest.mark.parametrize("is_restart", [False, True], ids=["first start", "restart"])
def test_a_stop_during_a_start_drains_and_announces_nothing(is_restart: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A server that is loading its models would take all the time that running requests may have."""
    server = FakeServer(
        canary=lambda age, start: OK if is_restart and not start else CONNECTING,
        dies_at=lambda start: 5 if is_restart and not start else None,
    ).run(until=10)
    assert (server.stops, server.ready) == (([[0], [0]], [OK]) if is_restart else ([[0]], []))
    assert "tritonserver is ready again" not in caplog.text
    assert "waiting up to" not in caplog.text


def test_a_start_is_ended_once_the_process_of_a_model_has_ended() -> None:
    """Triton waits for it without limit."""

    class WithoutStub(FakeProcess):
        def end_without_stub(self) -> None:
            self.die(1)

    server = FakeServer(canary=lambda age, start: CONNECTING, make=WithoutStub)
    with pytest.raises(ReportedError, match="tritonserver ended while it started: exit code 1"):
        server.run()


def test_a_server_whose_model_has_died_is_not_drained() -> None:
    assert FakeServer().run(at={4: lambda server: server.process.stub_ended()}, until=4).stops == [[0]]


def test_a_second_stop_ends_the_draining() -> None:
    class Endless(FakeProcess):
        async def stop(self, *, drain_s: float) -> None:
            self.stops.append(drain_s)
            if drain_s:
                self.server.supervisor.stop()
                await asyncio.Event().wait()
            self.die(0)

    assert FakeServer([OK], make=Endless).run().stops == [[UNLOAD_S, 0]]


def test_an_error_while_stopping_is_raised() -> None:
    with pytest.raises(RuntimeError, match="cannot be stopped"):
        FakeServer(at_stop=Mock(side_effect=RuntimeError("cannot be stopped"))).run(until=1)

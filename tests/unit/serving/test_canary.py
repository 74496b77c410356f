"""What the canary of ``clip-serve`` asks of a server, and what it concludes from the answers."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from clip_client.testing import PNG_1X1, FakeTriton, Reply
from preprocess_ensemble.serving import triton_backend
from preprocess_ensemble.serving.config import ServeConfig
from preprocess_ensemble.serving.triton_backend import Probe, ProbeOutcome, Step, TritonBackend
from preprocess_ensemble.serving.triton_process import TritonProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NO_MEMORY = Reply(status=grpc.StatusCode.INTERNAL, details="Failed to increase the shared memory pool size")


class Listening(FakeTriton):
    """Notes the questions besides inferences."""

    def __init__(self, *, has_text: bool = False) -> None:
        super().__init__(host="127.0.0.1", max_batch_size=4, has_text=has_text)
        self.questions: list[str] = []

    async def ServerLive(self, request: Any, context: Any) -> Any:
        self.questions.append("ServerLive")
        return await super().ServerLive(request, context)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        self.questions.append("ModelReady")
        return await super().ModelReady(request, context)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        self.questions.append("ModelConfig")
        return await super().ModelConfig(request, context)


@contextlib.asynccontextmanager
async def _probing(
    server: FakeTriton,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *,
    program: str = "sleep 600",
    timeout_s: float = 30,
) -> AsyncIterator[TritonBackend]:
    """The canary's side of ``server``; ``program`` takes the place of tritonserver's process."""

    async def start(_: ServeConfig) -> TritonProcess:
        return await TritonProcess.run(program.split(), os.environ, secret="s3cret")

    monkeypatch.setattr(TritonProcess, "start", start)
    config = ServeConfig(repository=folder, grpc_port=server.port, canary_timeout_s=timeout_s)
    async with contextlib.aclosing(TritonBackend(config)) as backend:
        process = await backend.start()
        try:
            if program == "true":
                await process.ended()
            yield backend
        finally:
            await process.stop(drain_s=0)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "free_bytes", lambda _: 0)


async def test_a_check_is_one_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with Listening() as server, _probing(server, monkeypatch, tmp_path) as backend:
        right = Probe(outcome=ProbeOutcome.OK, model_id="fake/random:0@00000000")
        assert [await backend.probe() for _ in range(5)] == [right] * 5
        assert [request.images for request in server.requests] == [(PNG_1X1,)] * 5
        assert (server.handshakes, server.questions.count("ModelConfig")) == (1, 1), "once for each start of the server"
        assert server.questions.count("ModelReady") == 3 * 5
        await backend.reconnect()
        assert await backend.probe() == right
        assert server.handshakes == 2


@pytest.mark.parametrize(
    ("reply", "outcome", "message"),
    [
        (Reply(delay_s=float("inf")), ProbeOutcome.SLOW, "did not answer in time"),
        (
            Reply(status=grpc.StatusCode.UNAVAILABLE, details="Exceeds maximum queue size"),
            ProbeOutcome.SLOW,
            "overloaded",
        ),
        (
            Reply(status=grpc.StatusCode.INTERNAL, details="Stub process 'x' is not healthy."),
            ProbeOutcome.BROKEN,
            "The process of a model has ended or hangs.",
        ),
        (Reply(fingerprint=(1, 2)), ProbeOutcome.BROKEN, "not the model of the passport"),
        (Reply(row_errors={0: (8, "An internal error.")}), ProbeOutcome.BROKEN, "could not embed the canary image"),
    ],
    ids=["no answer", "full", "dead stub", "another model", "canary refused"],
)
async def test_what_an_answer_means(
    reply: Reply, outcome: ProbeOutcome, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timeout_s = 3 if reply.delay_s else 30
    async with Listening() as server, _probing(server, monkeypatch, tmp_path, timeout_s=timeout_s) as backend:
        assert (await backend.probe()).outcome is ProbeOutcome.OK
        server.script(reply)
        probe = await backend.probe()
        assert (probe.outcome, probe.step) == (outcome, Step.CANARY)
        assert message in probe.message


async def test_a_text_tower_has_a_canary_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counted = []
    monkeypatch.setattr(triton_backend, "finished_requests", lambda _, ensemble: counted.append(ensemble))
    async with Listening(has_text=True) as server, _probing(server, monkeypatch, tmp_path) as backend:
        assert (await backend.probe()).outcome is ProbeOutcome.OK
        assert [request.model for request in server.requests] == ["clip_image", "clip_text"]
        server.script(Reply(), Reply(row_errors={0: (8, "An internal error.")}))
        probe = await backend.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.BROKEN, Step.TEXT_CANARY)
        assert "could not embed the canary text" in probe.message
        # Images that are embedded do not show that the text tower makes progress.
        await backend.progress()
        server.script(Reply(row_errors={0: (8, "An internal error.")}))
        assert (await backend.probe()).step is Step.CANARY
        await backend.progress()
        assert counted == ["clip_text", "clip_image"]


async def test_a_closed_port_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with Listening() as server, _probing(server, monkeypatch, tmp_path) as backend:
        await server.stop()
        assert (await backend.probe()).step is Step.CONNECT
        await server.start()
        assert (await backend.probe()).outcome is ProbeOutcome.OK
        await server.stop()
        probe = await backend.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.SLOW, Step.CONNECT)


async def test_a_model_that_is_not_ready_is_broken_although_the_canary_is_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Since release 25.12, a model is not ready after its process has ended; in the Triton of pip it stays ready."""
    async with Listening() as server, _probing(server, monkeypatch, tmp_path) as backend:
        server.ready_models.remove("clip_encoder")
        probe = await backend.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.BROKEN, Step.READY)
        assert probe.message == "A model is not ready any more: its process has ended."
        server.ready_models.clear()
        assert (await backend.probe()).step is Step.CANARY


@pytest.mark.usefixtures("no_memory")
async def test_a_full_batch_decides_whether_memory_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is tried until it succeeds: Triton keeps the memory that it has once."""
    async with Listening() as server, _probing(server, monkeypatch, tmp_path) as backend:
        server.script(Reply(), NO_MEMORY)
        probe = await backend.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.SHORT, Step.SHARED_MEMORY)
        assert "make /dev/shm larger" in probe.message
        outcomes = [(await backend.probe()).outcome for _ in range(3)]
        assert outcomes == [ProbeOutcome.OK] * 3
        assert [len(request.images) for request in server.requests] == [1, 4, 1, 4, 1, 1]


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize(
    "reply",
    [Reply(delay_s=float("inf")), Reply(status=grpc.StatusCode.UNAVAILABLE, details="Exceeds maximum queue size")],
    ids=["no answer", "full"],
)
async def test_a_busy_server_is_not_short_of_memory(
    reply: Reply, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timeout_s = 3 if reply.delay_s else 30
    async with Listening() as server, _probing(server, monkeypatch, tmp_path, timeout_s=timeout_s) as backend:
        server.script(Reply(), reply)
        assert (await backend.probe()).outcome is ProbeOutcome.OK


async def test_a_server_that_ends_behind_its_answer_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The supervisor notices the end by itself; an exception here would end the supervisor."""
    async with Listening() as server, _probing(server, monkeypatch, tmp_path, program="true") as backend:
        assert (await backend.probe()).outcome is ProbeOutcome.OK


async def test_each_model_of_the_repository_has_a_canary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("clip", "other"):
        (tmp_path / f"{name}_encoder" / "1").mkdir(parents=True)
        (tmp_path / f"{name}_encoder" / "1" / "model.json").touch()
    async with Listening() as server, _probing(server, monkeypatch, tmp_path) as backend:
        probe = await backend.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.BROKEN, Step.HANDSHAKE)
        assert probe.message.startswith("Model other: ")
        assert server.requests[0].model == "clip_image"

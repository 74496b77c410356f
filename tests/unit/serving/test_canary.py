"""The requests of the canary of ``clip-serve``, and its conclusions from the answers."""

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from clip_client import ClientConfig, ModelNotReady
from clip_client._endpoint import parse_url
from clip_client._health import Step
from clip_client._transports.grpc import transport_factory
from clip_client.serving import probed_triton
from clip_client.serving.config import ServeConfig
from clip_client.serving.probed_triton import Probe, ProbedTriton, ProbeOutcome, read_metrics
from clip_client.serving.triton_process import TritonProcess
from clip_client.testing import PNG_1X1, FakeTriton, Reply
from tests.fixtures.fakes import NEVER, listening
from tests.fixtures.waiting import until

Probing = Callable[..., AbstractAsyncContextManager[ProbedTriton]]
NO_MEMORY = Reply(status=grpc.StatusCode.INTERNAL, details="Failed to increase the shared memory pool size")
FULL = Reply(status=grpc.StatusCode.UNAVAILABLE, details="Exceeds maximum queue size")
DEAD_STUB = Reply(status=grpc.StatusCode.INTERNAL, details="Stub process 'x' is not healthy.")
REFUSED = Reply(row_errors={0: (8, "An internal error.")})


class Listening(FakeTriton):
    """Counts the questions besides inferences."""

    def __init__(self, *, has_text: bool = False) -> None:
        super().__init__(host="127.0.0.1", max_batch_size=4, has_text=has_text)
        self.questions: Counter[str] = Counter()

    async def ModelReady(self, request: Any, context: Any) -> Any:
        self.questions["ModelReady"] += 1
        return await super().ModelReady(request, context)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        self.questions["ModelConfig"] += 1
        return await super().ModelConfig(request, context)


class Unloading(Listening):
    """Keeps what it unloads until the requests before are answered, as Triton does."""

    def __init__(self) -> None:
        super().__init__(has_text=True)
        self.unloaded: list[str] = []

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        if "triton-grpc-protocol-clip-admin" not in dict(context.invocation_metadata()):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted")
        self.unloaded.append(request.model_name)
        self.ready_models.discard(request.model_name)
        return service_pb2.RepositoryModelUnloadResponse()

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        self.questions["RepositoryIndex"] += 1
        index = await super().RepositoryIndex(request, context)
        for name in self.unloaded:
            index.models.add(name=name, state="UNLOADING" if self.in_flight else "UNAVAILABLE")
        return index


@pytest.fixture
def probing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Probing:
    """The canary's side of a server; ``program`` takes the place of tritonserver's process."""

    @contextlib.asynccontextmanager
    async def probing(
        server: FakeTriton, *, program: str = "sleep 600", timeout_s: float = 30, own_port: bool = True
    ) -> AsyncIterator[ProbedTriton]:
        async def start(_: ServeConfig) -> TritonProcess:
            return await TritonProcess.run(program.split(), os.environ, secret="s3cret")

        monkeypatch.setattr(TritonProcess, "start", start)
        if own_port:
            monkeypatch.setattr(probed_triton, "listening_addresses", lambda pid, port: None)
        config = ServeConfig(repository=tmp_path, grpc_port=server.port, canary_timeout_s=timeout_s)
        triton = await ProbedTriton.start(config)
        try:
            if program == "true":
                await triton.process.ended()
            yield triton
        finally:
            await triton.stop(drain_s=0)

    return probing


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probed_triton, "free_bytes", lambda _: 0)


async def test_a_check_is_one_request(probing: Probing) -> None:
    async with Listening() as server, probing(server) as triton:
        right = Probe(outcome=ProbeOutcome.OK, model_id="fake/random:0@00000000")
        assert [await triton.probe() for _ in range(5)] == [right] * 5
        assert [request.images for request in server.requests] == [(PNG_1X1,)] * 5
        assert (server.handshakes, server.questions["ModelConfig"]) == (1, 1), "once for each start of the server"
        assert server.questions["ModelReady"] == 3 * 5
        await triton.take_over()
        assert await triton.probe() == right
        assert server.handshakes == 2


@pytest.mark.parametrize(
    ("reply", "outcome", "message"),
    [
        (NEVER, ProbeOutcome.SLOW, "did not answer in time"),
        (FULL, ProbeOutcome.SLOW, "overloaded"),
        (DEAD_STUB, ProbeOutcome.BROKEN, "The process of a model has ended or hangs."),
        (Reply(fingerprint=(1, 2)), ProbeOutcome.BROKEN, "not the model that the server describes"),
        (REFUSED, ProbeOutcome.BROKEN, "could not embed the canary image"),
    ],
    ids=["no answer", "full", "dead stub", "another model", "canary refused"],
)
async def test_what_an_answer_means(reply: Reply, outcome: ProbeOutcome, message: str, probing: Probing) -> None:
    async with Listening() as server, probing(server, timeout_s=2 if reply is NEVER else 30) as triton:
        assert (await triton.probe()).outcome is ProbeOutcome.OK
        server.script(reply)
        probe = await triton.probe()
        assert (probe.outcome, probe.step) == (outcome, Step.CANARY)
        assert message in probe.message


async def test_a_text_tower_has_a_canary_of_its_own(probing: Probing, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    monkeypatch.setattr(probed_triton, "read_metrics", lambda _, names: counted.extend(names))
    async with Listening(has_text=True) as server, probing(server) as triton:
        assert (await triton.probe()).outcome is ProbeOutcome.OK
        assert [request.model for request in server.requests] == ["clip_image", "clip_text"]
        server.script(Reply(), REFUSED)
        probe = await triton.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.BROKEN, Step.TEXT_CANARY)
        assert "could not embed the canary text" in probe.message
        # Images that are embedded do not show that the text tower makes progress.
        await triton.progress()
        server.script(REFUSED)
        assert (await triton.probe()).step is Step.CANARY
        await triton.progress()
        assert [name.partition('"')[2] for name in counted] == ['clip_text"', 'clip_image"']


async def test_each_model_of_the_repository_has_a_canary(probing: Probing, tmp_path: Path) -> None:
    for name in ("clip", "other"):
        (tmp_path / f"{name}_encoder" / "1").mkdir(parents=True)
        (tmp_path / f"{name}_encoder" / "1" / "model.json").touch()
    async with Listening() as server, probing(server) as triton:
        probe = await triton.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.BROKEN, Step.HANDSHAKE)
        assert probe.message.startswith("Model other: ")
        assert server.requests[0].model == "clip_image"


async def test_a_closed_port_is_waited_for(probing: Probing) -> None:
    async with Listening() as server, probing(server) as triton:
        await server.stop()
        assert (await triton.probe()).step is Step.CONNECT
        await server.start()
        assert (await triton.probe()).outcome is ProbeOutcome.OK
        await server.stop()
        probe = await triton.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.SLOW, Step.CONNECT)


LISTEN = """
import pathlib, signal, socket, sys
listener = socket.socket(socket.AF_INET6)  # as gRPC does
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("::ffff:127.0.0.1", int(sys.argv[1])))
listener.listen()
pathlib.Path(sys.argv[2]).touch()
signal.pause()
"""


@pytest.mark.parametrize("listens_too", [False, True])
async def test_another_program_at_its_port_is_never_taken_for_the_server(
    listens_too: bool, probing: Probing, tmp_path: Path
) -> None:
    """A request may get to either of two servers that start together."""
    (script := tmp_path / "listen.py").write_text(LISTEN)
    async with Listening() as server:
        listen = f"{sys.executable} -S {script} {server.port} {tmp_path / 'up'}"
        async with probing(server, program=listen if listens_too else "sleep 600", own_port=False) as triton:
            await until(lambda: (tmp_path / "up").exists() or not listens_too)
            probe = await triton.probe()
            assert (probe.outcome, probe.step) == (ProbeOutcome.BROKEN, Step.CONNECT)
            assert probe.message.startswith(
                f"Another program has opened port {server.port}: stop it, or choose another"
            )
            assert not server.requests


async def test_a_model_that_is_not_ready_is_broken_although_the_canary_is_right(probing: Probing) -> None:
    """Since release 25.12, a model is not ready after its process has ended; in the Triton of pip it stays ready."""
    async with Listening() as server, probing(server) as triton:
        server.ready_models.remove("clip_encoder")
        probe = await triton.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.BROKEN, Step.READY)
        assert probe.message == "A model is not ready any more: its process has ended."
        server.ready_models.clear()
        assert (await triton.probe()).step is Step.CANARY


@pytest.mark.usefixtures("no_memory")
async def test_a_full_batch_decides_whether_memory_is_short(probing: Probing) -> None:
    """The full batch is tried until it succeeds: Triton keeps the memory that it has got."""
    async with Listening() as server, probing(server) as triton:
        server.script(Reply(), NO_MEMORY)
        probe = await triton.probe()
        assert (probe.outcome, probe.step) == (ProbeOutcome.SHORT, Step.SHARED_MEMORY)
        assert "make /dev/shm larger" in probe.message
        outcomes = [(await triton.probe()).outcome for _ in range(3)]
        assert outcomes == [ProbeOutcome.OK] * 3
        assert [len(request.images) for request in server.requests] == [1, 4, 1, 4, 1, 1]


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize("reply", [NEVER, FULL], ids=["no answer", "full"])
async def test_a_busy_server_is_not_short_of_memory(reply: Reply, probing: Probing) -> None:
    async with Listening() as server, probing(server, timeout_s=2 if reply is NEVER else 30) as triton:
        server.script(Reply(), reply)
        assert (await triton.probe()).outcome is ProbeOutcome.OK


async def test_a_server_that_ends_behind_its_answer_is_no_error(probing: Probing) -> None:
    """The supervisor notices the end by itself; an exception here would end the supervisor."""
    async with Listening() as server, probing(server, program="true") as triton:
        assert (await triton.probe()).outcome is ProbeOutcome.OK


async def test_a_draining_server_refuses_requests_and_waits_for_those_before(probing: Probing) -> None:
    """The models of its user come last: their processes end, which ends the draining."""
    async with Unloading() as server, probing(server) as triton:
        transport = transport_factory(ClientConfig(urls=(server.url,)))(parse_url(server.url), None)
        server.ready_models.add("mine")
        server.script(NEVER)
        accepted = asyncio.create_task(transport.infer([PNG_1X1], request_id="1", timeout_s=60))
        await until(lambda: server.in_flight)
        draining = asyncio.create_task(triton.answer_all())
        await until(lambda: server.questions["RepositoryIndex"] > 4 or draining.done())
        with pytest.raises(ModelNotReady):
            await transport.infer([PNG_1X1], request_id="2", timeout_s=60)
        assert (draining.done(), set(server.unloaded)) == (False, {"clip_image", "clip_text"})
        accepted.cancel()
        await draining
        assert set(server.unloaded) == {"clip_image", "clip_text", "mine"}
        await transport.close()


async def test_metrics_that_are_cut_off_are_ignored() -> None:
    async def half_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nnv_")

    async with listening(half_an_answer) as address:
        assert await asyncio.to_thread(read_metrics, f"http://{address}/metrics", ["nv_inference_count"]) is None

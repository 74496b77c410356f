"""The answers of a real Triton to failures, row by row of the error table.

tests/fake_server shows every row over the wire. Those that are missing here come from proxies, other services, networks
that break in the middle of a message, and calls which this client never makes.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf import text_format
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy
from tritonclient.utils import InferenceServerException

from benchmarks.fixtures.server import QUIET, free_port, python_with_shared_memory, serving
from clip_client import (
    ClientConfig,
    ClipClient,
    ClipError,
    DeadlineExceeded,
    ModelNotReady,
    Overloaded,
    ProtocolMismatch,
    Unauthorized,
    Unavailable,
)
from clip_client._transports.grpc import TritonTransport, transport_factory
from clip_client._transports.grpc_errors import ErrorRow, find_row
from tests.fixtures.images import image_files
from tests.fixtures.waiting import until
from tests.live.bare import Triton, bare_triton
from tests.live.raw import infer

TIMEOUT_S: Final = 30.0

OBEDIENT_MODEL: Final = '''
"""The real preprocessor, but it raises for one image, waits for another until it may go on, and has one defect."""

import time
from pathlib import Path

import triton_python_backend_utils as pb_utils

from PIL import QoiImagePlugin

from preprocess_ensemble.triton_model import TritonPythonModel as RealModel


def defect(self):
    raise AttributeError("not foreseen")


QoiImagePlugin.QoiImageFile.load_prepare = defect


class TritonPythonModel(RealModel):
    def execute(self, requests):
        for request in requests:
            for image in pb_utils.get_input_tensor_by_name(request, "image").as_numpy().ravel():
                word, _, folder = image.decode("latin-1").partition(" ")
                if word == "raise":
                    raise RuntimeError("told to")
                if word == "wait":
                    Path(folder, "waiting").touch()
                    while not Path(folder, "go").exists():
                        time.sleep(0.01)
        return super().execute(requests)
'''


def rows(*texts: tuple[str, str]) -> list[ErrorRow]:
    return [find_row(grpc.StatusCode[code], text) for code, text in texts]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[ErrorRow]:
    """The rows that the client looked up, in order."""
    looked_up: list[ErrorRow] = []

    def look_up(code: grpc.StatusCode, details: str) -> ErrorRow:
        looked_up.append(find_row(code, details))
        return looked_up[-1]

    monkeypatch.setattr("clip_client._transports.grpc.find_row", look_up)
    return looked_up


@asynccontextmanager
async def _transport_to(url: str, **settings: Any) -> AsyncIterator[TritonTransport]:
    """One connection, without the retries of the client above it."""
    config = ClientConfig(urls=(url,), **settings)
    transport = transport_factory(config)(config.endpoints[0], None)
    try:
        yield transport
    finally:
        await transport.close()


async def _embed(transport: TritonTransport, image: bytes, timeout_s: float = TIMEOUT_S) -> type[ClipError] | None:
    """Send one request; return the class of the error that it ended with."""
    try:
        await transport.infer([image], request_id="a-request", timeout_s=timeout_s)
    except ClipError as error:
        return type(error)
    return None


@pytest.fixture(scope="module")
def obedient_repository(tiny_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("obedient") / "models"
    shutil.copytree(tiny_repository, repository)
    (repository / "clip_preprocess" / "1" / "model.py").write_text(OBEDIENT_MODEL)
    return repository


@pytest.fixture(scope="module")
def triton(obedient_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """A server for the tests that do not change it."""
    options = ("--model-control-mode=explicit", "--load-model=*")
    with bare_triton(obedient_repository, tmp_path_factory.mktemp("logs"), *options) as running:
        yield running


async def test_a_defect_is_found_in_the_servers_log_by_the_id_that_the_client_has(triton: Triton) -> None:
    async with ClipClient(triton.url, transfer="original") as clip:
        batch = await clip.embed([b"", image_files.encoded(image_files.picture(), "QOI")])
    error = batch.errors[1]
    assert error.code == "INTERNAL"
    assert error.request_id
    await until(lambda: f"of request {error.request_id} failed" in triton.log.read_text(encoding="utf-8"))
    log = triton.log.read_text(encoding="utf-8")
    assert "AttributeError: not foreseen" in log
    assert "qoif" not in log, "nothing of the image"
    assert "not foreseen" not in str(error)


async def test_a_request_that_fails(triton: Triton, found: list[ErrorRow], tmp_path: Path) -> None:
    async with _transport_to(triton.url) as transport:
        assert await _embed(transport, b"raise") is ClipError
        with pytest.raises(ProtocolMismatch):
            await transport.infer([b"x"] * 100, request_id="a-request", timeout_s=TIMEOUT_S)
        assert await _embed(transport, f"wait {tmp_path}".encode(), timeout_s=0.2) is DeadlineExceeded
        (tmp_path / "go").touch()
        assert await _embed(transport, b"x") is None
    with pytest.raises(InferenceServerException) as alone:
        await asyncio.to_thread(infer, triton.url, "clip_image", [b"x"], outputs=["error"])
    found += rows(("INVALID_ARGUMENT", alone.value.message()))
    assert found == rows(
        ("INTERNAL", "RuntimeError: told to"),
        ("INVALID_ARGUMENT", "inference request batch-size must be <= 32"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded"),
        ("INVALID_ARGUMENT", "unexpected deadlock"),
    )


async def test_models_that_are_not_there(triton: Triton, found: list[ErrorRow]) -> None:
    with InferenceServerClient(triton.url) as admin:
        await asyncio.to_thread(admin.unload_model, "clip_image")
        try:
            async with _transport_to(triton.url) as transport:
                assert await _embed(transport, b"x") is ModelNotReady
            assert found == rows(
                ("NOT_FOUND", "Request for unknown model: 'clip_preprocess' has no available versions")
            )
            await asyncio.to_thread(admin.unload_model, "clip_preprocess")
            async with ClipClient(triton.url, timeout_s=TIMEOUT_S) as clip:
                with pytest.raises(ProtocolMismatch, match="--model-repository triton_models"):
                    await clip.embed(b"x")
        finally:
            await asyncio.to_thread(admin.load_model, "clip_preprocess")
            await asyncio.to_thread(admin.load_model, "clip_image")


async def test_addresses_that_are_wrong(triton: Triton, found: list[ErrorRow]) -> None:
    wrong = [triton.http_url, f"grpcs://{triton.url}", f"localhost:{free_port()}", "no-such-host.invalid:8001"]
    for url in wrong:
        async with _transport_to(url) as transport:
            assert await _embed(transport, b"x") is not None
    assert found == rows(
        ("UNAVAILABLE", "failed to connect to all addresses; last error: Socket closed"),
        ("UNAVAILABLE", "WRONG_VERSION_NUMBER"),
        ("UNAVAILABLE", "Connection refused"),
        ("UNAVAILABLE", "DNS resolution failed"),
    )


async def test_a_server_refuses_and_then_dies(obedient_repository: Path, found: list[ErrorRow], tmp_path: Path) -> None:
    repository = tmp_path / "models"
    shutil.copytree(obedient_repository, repository)
    path = repository / "clip_preprocess" / "config.pbtxt"
    config = text_format.Parse(path.read_text(), ModelConfig())
    policy = config.dynamic_batching.default_queue_policy
    policy.max_queue_size, policy.timeout_action = 2, ModelQueuePolicy.REJECT
    policy.default_timeout_microseconds = 500_000
    path.write_text(text_format.MessageToString(config))
    for name in ("first", "last"):
        (tmp_path / name).mkdir()
    options = ("--grpc-restricted-protocol=inference:authorization=right", "--exit-timeout-secs=60")

    async def waiting(folder: Path) -> asyncio.Task[type[ClipError] | None]:
        """A request that has reached its model, and waits there for the file ``go``."""
        task = asyncio.create_task(_embed(transport, f"wait {folder}".encode()))
        await until((folder / "waiting").exists)
        return task

    with bare_triton(repository, tmp_path, *options) as server:
        async with _transport_to(server.url, token="wrong") as transport:
            assert await _embed(transport, b"x") is Unauthorized
        async with _transport_to(server.url, token="right") as transport:
            first = await waiting(tmp_path / "first")
            others = [asyncio.create_task(_embed(transport, b"x")) for _ in range(3)]
            await until(lambda: any(task.done() for task in others))
            # The other two are in the queue, and the time that they may wait there passes.
            await asyncio.sleep(0.6)
            (tmp_path / "first" / "go").touch()
            assert sorted(map(str, await asyncio.gather(*others))) == sorted(
                map(str, (DeadlineExceeded, DeadlineExceeded, Overloaded))
            )
            assert await first is None
            server.stub("clip_encoder").kill()
            assert await _embed(transport, b"x") is Unavailable
            last = await waiting(tmp_path / "last")
            server.process.send_signal(signal.SIGTERM)
            # Until Triton acts on the signal, requests queue behind the one that waits.
            while await _embed(transport, b"x", timeout_s=0.2) is DeadlineExceeded:
                found.pop()
            server.process.kill()
            assert await last is Unavailable
    assert found == rows(
        ("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-authorization'"),
        ("UNAVAILABLE", "Exceeds maximum queue size"),
        ("UNAVAILABLE", "Request timeout expired"),
        ("UNAVAILABLE", "Request timeout expired"),
        ("INTERNAL", "Stub process 'clip_encoder_0_0' is not healthy"),
        ("UNAVAILABLE", "Server is stopping, scheduler for model has stopped accepting new inference requests"),
        ("UNAVAILABLE", "Stream removed (Socket closed)"),
    )


def _fill_disk(file: Path) -> None:
    with file.open("wb", buffering=0) as opened, contextlib.suppress(OSError):
        while True:
            opened.write(bytes(2**16))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a server a /dev/shm of its own")
async def test_a_server_with_full_shared_memory(tiny_repository: Path, found: list[ErrorRow], tmp_path: Path) -> None:
    python = python_with_shared_memory(tmp_path, mebibytes=64)
    with serving(tiny_repository, *QUIET, python=python) as server:
        await asyncio.to_thread(_fill_disk, Path(f"/proc/{server.process.pid}/root/dev/shm/filler"))
        async with _transport_to(server.grpc_url) as transport:
            with pytest.raises(ClipError, match="too little shared memory"):
                await transport.infer([bytes(2**16)] * 32, request_id="a-request", timeout_s=TIMEOUT_S)
    assert found == rows(("INTERNAL", "shared memory"))

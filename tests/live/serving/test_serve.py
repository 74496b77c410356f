"""``clip-serve`` with a real tritonserver: how it starts, how it ends, and what it does about deaths between."""

import asyncio
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput, aio
from tritonclient.utils import InferenceServerException

from benchmarks.fixtures.sample_photos import coarse_noise
from benchmarks.fixtures.server import QUIET, Server, command_line, free_port, serving
from clip_client import ClipClient, ProtocolMismatch
from preprocess_ensemble.tritonserver.cleanup import LINKS_SUFFIX, SHARED_MEMORY, region_prefix
from tests.fixtures.models.exports import export
from tests.fixtures.waiting import wait_until
from tests.live.processes import health, still_running


def _is_restored(server: Server, restarts: int) -> bool:
    """Whether it is ready after more than so many restarts; :func:`_check_restarts` says how many more are right."""
    status, report = health(server)
    return status == 200 and report["status"] == "ready" and report["restarts"] > restarts


_CRASHED = r"boost::interprocess::lock_exception|signal \d+|the process of a model has ended: it left no message"
"""Reasons that are logged if a start of Triton (24.10) crashes, as the first start after a restart sometimes does."""


def _check_restarts(log: str, breaks: int, restarts: int) -> None:
    """Each break has caused one restart without a pause, and only starts that crashed have caused others."""
    assert log.count("restarting tritonserver: ") == breaks
    assert len(re.findall(rf"restarting tritonserver in .*ended while it started: ({_CRASHED})$", log, re.M)) == (
        restarts - breaks
    )


def _family(server: Server) -> list[psutil.Process]:
    return [psutil.Process(server.process.pid), server.triton, *server.triton.children()]


def _regions(prefix: str) -> list[str]:
    return [path.name for path in SHARED_MEMORY.glob(f"{prefix}*")]


def test_a_dead_stub_needs_no_canary_to_be_noticed_and_tritonserver_dies_with_clip_serve(
    tiny_repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(tiny_repository, *QUIET, health=True) as server:
        first = server.triton.pid
        server.stub("clip_encoder").kill()
        wait_until(partial(_is_restored, server, 0), "restarted")
        _check_restarts(capfd.readouterr().err, 1, health(server)[1]["restarts"])
        assert server.triton.pid != first
        family, prefix = _family(server), region_prefix(server.triton.pid)
        assert _regions(prefix)
        server.stub("clip_preprocess").suspend()  # it cannot end by itself
        server.process.kill()
        server.process.wait()
    wait_until(lambda: not still_running(family), "every process gone")
    assert not _regions(prefix)


def _classify_text(server: Server) -> None:
    """One valid request that ends Triton 2.51 (SIGFPE): it divides by the size of a number, and text has none."""
    image = InferInput("image", [1, 1], "BYTES")
    image.set_data_from_numpy(np.array([[b"x"]], dtype=object))
    outputs = [InferRequestedOutput(name, class_count=3) for name in ("embedding", "error")]
    with InferenceServerClient(server.grpc_url) as client, pytest.raises(InferenceServerException):
        client.infer("clip_image", [image], outputs=outputs)


BREAKS: dict[str, Callable[[Server], None]] = {
    "tritonserver killed": lambda server: server.triton.kill(),
    "tritonserver stopped": lambda server: server.triton.suspend(),
    "preprocessor killed": lambda server: server.stub("clip_preprocess").kill(),
    "preprocessor stopped": lambda server: server.stub("clip_preprocess").suspend(),
    "encoder killed": lambda server: server.stub("clip_encoder").kill(),
    "encoder stopped": lambda server: server.stub("clip_encoder").suspend(),
    "classification of text": _classify_text,
    "classification again": _classify_text,
}


@pytest.fixture
def no_core_files() -> Iterator[None]:
    """A process that crashes would write its memory, images included, into the working directory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@pytest.mark.long
@pytest.mark.usefixtures("no_core_files")
def test_whatever_ends_or_hangs_is_noticed_and_restored(
    tiny_repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The time until it is noticed is tested in simulated time: tests/unit/serving/test_slow_servers.py."""
    options = ("--canary-interval-s", "0.5", "--frozen-after-s", "1", "--canary-timeout-s", "2")
    with serving(tiny_repository, *options, health=True) as server:
        for what, break_it in BREAKS.items():
            restarts = health(server)[1]["restarts"]
            prefix = region_prefix(server.triton.pid)
            break_it(server)
            wait_until(lambda: health(server)[0] == 503, f"{what}: noticed")
            wait_until(partial(_is_restored, server, restarts), f"{what}: restored")
            assert not _regions(prefix), what
            new = region_prefix(server.triton.pid)
            assert {oct((SHARED_MEMORY / name).stat().st_mode & 0o777) for name in _regions(new)} == {"0o600"}, what
        family, restarts = _family(server), health(server)[1]["restarts"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert not still_running(family)
    assert not _regions(new)
    _check_restarts(capfd.readouterr().err, len(BREAKS), restarts)


@pytest.mark.long
async def test_models_are_swapped_without_a_lost_request(
    tiny_repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Clients of Triton that never send again what is refused; one that fails leaves the old model serving."""
    repository = shutil.copytree(tiny_repository, tmp_path / "models")
    model = repository / "clip_encoder" / "1" / "model.onnx"
    photo, answered = coarse_noise(1)[0], Counter[tuple[int, ...]]()
    is_over = asyncio.Event()

    async def send(url: str) -> None:
        image = InferInput("image", [1, 1], "BYTES")
        image.set_data_from_numpy(np.array([[photo]], dtype=object))
        async with aio.InferenceServerClient(url) as client:
            while not is_over.is_set():
                answer = await client.infer("clip_image", [image])
                assert not answer.as_numpy("status").any()
                answered[tuple(answer.as_numpy("fingerprint")[0].tolist())] += 1

    with serving(repository, *QUIET, "--", "--grpc-max-connection-age=500", health=True) as server:
        async with ClipClient(server.grpc_url) as clip:
            first = await clip.model()
            callers = [asyncio.create_task(send(server.grpc_url)) for _ in range(4)]
            old, intact = server.triton, model.read_bytes()
            model.unlink()  # it is a link to a file that others have
            model.write_bytes(b"not a model")
            server.process.send_signal(signal.SIGUSR1)
            failed = "reload failed; the current model keeps serving: tritonserver ended while it started: "
            says = partial(re.search, f"{failed}(clip_encoder|{_CRASHED})")
            await asyncio.to_thread(wait_until, lambda: says(capfd.readouterr().err), "the damaged model failed")
            assert {old.pid} == {child.pid for child in psutil.Process(server.process.pid).children()}
            model.write_bytes(intact)
            export(repository, weights="random:5", force=True)
            server.process.send_signal(signal.SIGUSR1)
            await asyncio.to_thread(old.wait, 60)
            is_over.set()
            await asyncio.gather(*callers)
            with pytest.raises(ProtocolMismatch, match="call again"):
                await clip.embed(photo)
            second = await clip.model()
            assert second.id != first.id
            assert (await clip.embed(photo)).model_id == second.id
        assert set(answered) == {first.fingerprint, second.fingerprint}
        assert health(server) == (200, {"status": "ready", "model": second.id, "restarts": 0})


def test_model_control_and_statistics_are_closed_and_what_stands_in_ps_opens_nothing(server: Server) -> None:
    serve = psutil.Process(server.process.pid)
    # As any user of this machine sees them.
    words = [word for process in (serve, *serve.children(recursive=True)) for word in process.cmdline()]
    secrets = [word.rpartition("clip-admin=")[2] for word in words if "clip-admin=" in word]
    assert len(secrets) == 2, "of gRPC and of HTTP"
    assert {character for secret in secrets for character in secret} == {"x"}
    header = {"triton-grpc-protocol-clip-admin": secrets[0]}
    with InferenceServerClient(server.grpc_url) as client:
        for call, arguments in (
            (client.unload_model, {"model_name": "clip_image"}),
            (client.unload_model, {"model_name": "clip_image", "headers": header}),
            (client.register_system_shared_memory, {"name": "x", "key": "/x", "byte_size": 8}),
            (client.update_log_settings, {"settings": {"log_verbose_level": 9}}),
            (client.get_inference_statistics, {"model_name": "clip_image"}),
        ):
            with pytest.raises(InferenceServerException, match="restricted"):
                call(**arguments)
    request = urllib.request.Request(f"{server.http_url}/v2/repository/models/clip_image/unload", method="POST")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=60)
    error.value.close()
    assert error.value.code == 403


def _without_code(repository: Path) -> None:
    (repository / "mine" / "1").mkdir(parents=True)
    tensor = '[{ name: "x" data_type: TYPE_FP32 dims: [1] }]'
    config = f'backend: "python" max_batch_size: 1 input {tensor} output {tensor}'
    (repository / "mine" / "config.pbtxt").write_text(config, encoding="utf-8")


NO_PROCESSES = "bash: fork: Resource temporarily unavailable"


def _without_processes(repository: Path) -> None:
    """The shell that is to start a model's process says that none is left."""
    bash = repository.with_name("bash")
    bash.write_text(f"#!/bin/sh\necho '{NO_PROCESSES}' >&2\nexit 254\n", encoding="utf-8")
    bash.chmod(0o755)


def _damaged(repository: Path) -> None:
    (repository / "clip_encoder" / "1" / "model.onnx").write_bytes(b"not a model")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        # Triton 2.51 waits for these two without limit.
        (_without_code, "ended while it started: Python model file not found in 'REPOSITORY/mine/1/model.py'"),
        (_without_processes, f"the process of a model has ended: {NO_PROCESSES} (the limit on processes and threads"),
        (_damaged, "clip_encoder could not be loaded: ONNX Runtime cannot load"),
    ],
    ids=["process that cannot start", "no process", "damaged file"],
)
def test_a_model_that_cannot_be_loaded_is_the_reason(
    damage: Callable[[Path], None], sentence: str, tiny_repository: Path, tmp_path: Path
) -> None:
    repository = shutil.copytree(tiny_repository, tmp_path / "models")
    damage(repository)
    ports = [f"--{name}-port={free_port()}" for name in ("grpc", "metrics")]
    command = [sys.executable, "-m", "clip_client.serving.command", *ports, f"--repository={repository}"]
    command.append(f"--log-file={tmp_path / 'log'}")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert sentence in done.stderr.splitlines()[-1].replace(str(repository), "REPOSITORY"), done.stderr
    assert LINKS_SUFFIX not in (tmp_path / "log").read_text(encoding="utf-8"), "it names the repository"
    assert not [process for process in psutil.process_iter() if str(repository) in " ".join(command_line(process))]

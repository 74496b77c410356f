"""``clip-serve`` with a real tritonserver: how it starts, how it ends, and what it does about deaths between."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from PIL import Image
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from benchmarks.fixtures.server import (
    QUIET,
    TINY_CLIP,
    Server,
    command_line,
    free_port,
    python_with_shared_memory,
    serving,
)
from clip_client import SyncClipClient
from preprocess_ensemble.serving.cleanup import SHARED_MEMORY, region_prefix
from tests.fixtures.waiting import wait_until
from tests.live.processes import still_running
from tests.live.raw import infer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def _health(server: Server) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(server.health_url, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def _is_restored(server: Server, restarts: int) -> bool:
    status, report = _health(server)
    return status == 200 and report["status"] == "ready" and report["restarts"] == restarts


def _family(server: Server) -> list[psutil.Process]:
    return [psutil.Process(server.process.pid), server.triton, *server.triton.children()]


def _regions(prefix: str) -> list[str]:
    return [path.name for path in SHARED_MEMORY.glob(f"{prefix}*")]


def test_a_dead_stub_needs_no_canary_to_be_noticed_and_tritonserver_dies_with_clip_serve(tiny_repository: Path) -> None:
    with serving(tiny_repository, *QUIET, health=True) as server:
        first = server.triton.pid
        server.stub("clip_encoder").kill()
        wait_until(partial(_is_restored, server, 1), "restarted")
        assert server.triton.pid != first
        family, prefix = _family(server), region_prefix(server.triton.pid)
        assert _regions(prefix)
        triton = server.triton
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not still_running([triton]), "tritonserver gone")
    # The stubs end by themselves, but for one that was just handing over an answer. The next start ends that one.
    subprocess.run(
        [sys.executable, "-m", "preprocess_ensemble.serving.launcher", "--help"], capture_output=True, check=False
    )
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


@pytest.mark.usefixtures("no_core_files")
def test_whatever_ends_or_hangs_is_noticed_and_restored(
    tiny_repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """How soon it is noticed is tested in simulated time: tests/unit/serving/test_supervisor.py."""
    options = ("--canary-interval-s", "0.5", "--frozen-after-s", "1", "--canary-timeout-s", "2")
    with serving(tiny_repository, *options, health=True) as server:
        for restarts, (what, break_it) in enumerate(BREAKS.items(), 1):
            prefix = region_prefix(server.triton.pid)
            break_it(server)
            wait_until(lambda: _health(server)[0] == 503, f"{what}: noticed")
            wait_until(partial(_is_restored, server, restarts), f"{what}: restored")
            assert not _regions(prefix), what
            new = region_prefix(server.triton.pid)
            assert {oct((SHARED_MEMORY / name).stat().st_mode & 0o777) for name in _regions(new)} == {"0o600"}, what
        family = _family(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert not still_running(family)
    assert not _regions(new)
    log = capfd.readouterr().err
    assert log.count("restarting tritonserver: ") == len(BREAKS), "none was delayed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a server a /dev/shm of its own")
def test_a_server_that_answers_full_batches_is_not_degraded(tiny_repository: Path, tmp_path: Path) -> None:
    """The estimate of what a full batch needs is just above this; with 13 MiB such a batch fails."""
    python = python_with_shared_memory(tmp_path, mebibytes=14)
    with serving(tiny_repository, "--canary-interval-s", "0.2", python=python, health=True) as server:
        assert _health(server)[1]["status"] == "ready"
        infer(server.grpc_url, "clip_image", [bytes(2**16)] * 32, outputs=["embedding"])
        assert _health(server)[1]["status"] == "ready"


def test_another_user_cannot_read_the_images_of_clients(server: Server) -> None:
    # Larger than the region is at first, so that it grows.
    infer(server.grpc_url, "clip_image", [bytes(2**17)] * 32, outputs=["embedding"])
    regions = [SHARED_MEMORY / name for name in _regions(region_prefix(server.triton.pid))]
    assert len(regions) == 2, "one for each model that runs in Python"
    assert sum(region.stat().st_size for region in regions) > 4 * 2**20
    assert {oct(region.stat().st_mode & 0o777) for region in regions} == {"0o600"}
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for region in regions:
        tried = subprocess.run(["/bin/cat", region], user="nobody", capture_output=True, check=False)
        assert tried.stdout == b""
        assert b"Permission denied" in tried.stderr


def test_rows_of_nan_are_no_json_over_http_and_binary_output_is_the_remedy(server: Server) -> None:
    photo = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(photo, "PNG")

    def ask(*, binary: bool) -> tuple[bytes, bytes]:
        """The JSON of the answer and what follows it. Of the two images one fails."""
        images = [photo.getvalue(), b"no image"]
        rows = b"".join(struct.pack("<I", len(image)) + image for image in images)
        size = {"binary_data_size": len(rows)}
        document = {
            "inputs": [{"name": "image", "shape": [2, 1], "datatype": "BYTES", "parameters": size}],
            "outputs": [{"name": "embedding", "parameters": {"binary_data": binary}}],
        }
        head = json.dumps(document).encode()
        url = f"{server.http_url}/v2/models/clip_image/infer"
        headers = {"Inference-Header-Content-Length": str(len(head))}
        with urllib.request.urlopen(urllib.request.Request(url, data=head + rows, headers=headers)) as response:
            answer, length = response.read(), response.headers.get("Inference-Header-Content-Length")
        return answer[: length and int(length)], answer[int(length) :] if length else b""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    with pytest.raises(ValueError, match="NaN is no JSON"):
        json.loads(ask(binary=False)[0], parse_constant=refuse)
    document, numbers = ask(binary=True)
    (output,) = json.loads(document, parse_constant=refuse)["outputs"]
    good, failed = np.frombuffer(numbers, np.float32).reshape(output["shape"])
    assert np.linalg.norm(good) == pytest.approx(1, abs=1e-5)
    assert np.isnan(failed).all()


def test_model_control_is_closed_to_others(server: Server) -> None:
    with InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.unload_model("clip_image")
        with pytest.raises(InferenceServerException, match="restricted"):
            client.register_system_shared_memory("x", "/x", 8)
        with pytest.raises(InferenceServerException, match="restricted"):
            client.update_log_settings({"log_verbose_level": 9})
    request = urllib.request.Request(f"{server.http_url}/v2/repository/models/clip_image/unload", method="POST")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=60)
    error.value.close()
    assert error.value.code == 403


def _failed(*options: str) -> str:
    """Run clip-serve, which must end with exit code 1 and one sentence; return the sentence."""
    ports = [f"--{name}-port={free_port()}" for name in ("grpc", "metrics")]
    command = [sys.executable, "-m", "preprocess_ensemble.serving.command", *ports, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_an_empty_repository_gets_the_named_model(tmp_path: Path, photos: Path) -> None:
    named = ("--model", str(TINY_CLIP), "--pretrained", "random:0")
    with serving(tmp_path / "models", *named, *QUIET) as server, SyncClipClient(server.grpc_url) as clip:
        clip.embed([photos / "coffee.jpg"]).raise_for_errors()


def test_a_model_whose_process_cannot_start_is_the_reason(tiny_repository: Path, tmp_path: Path) -> None:
    """Triton 2.51 waits for it without limit."""
    repository = tmp_path / "models"
    shutil.copytree(tiny_repository, repository)
    (repository / "mine" / "1").mkdir(parents=True)
    tensor = '[{ name: "x" data_type: TYPE_FP32 dims: [1] }]'
    config = f'backend: "python" max_batch_size: 1 input {tensor} output {tensor}'
    (repository / "mine" / "config.pbtxt").write_text(config, encoding="utf-8")
    sentence = _failed(f"--repository={repository}")
    assert "tritonserver ended while it started: Python model file not found in" in sentence
    assert "/mine/1/model.py" in sentence


def test_a_model_that_does_not_load_is_the_reason(tiny_repository: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    shutil.copytree(tiny_repository, repository)
    (repository / "clip_encoder" / "1" / "model.onnx").write_bytes(b"not a model")
    sentence = _failed(f"--repository={repository}", f"--log-file={tmp_path / 'log'}")
    assert "clip_encoder could not be loaded: ONNX Runtime cannot load" in sentence
    assert "failed to load all models" in (tmp_path / "log").read_text(encoding="utf-8")
    assert not [process for process in psutil.process_iter() if str(repository) in " ".join(command_line(process))]

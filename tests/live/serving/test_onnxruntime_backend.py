"""The Python-based ``onnxruntime`` backend inside a real tritonserver, with models of a few nodes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from benchmarks.fixtures.server import free_port
from clip_client import SyncClipClient
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.serving.tensorrt import stage_repository
from tests.fixtures.models import tiny_onnx
from tests.fixtures.waiting import wait_until
from tests.live.bare import launched, wait_until_live

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AFFINE_IO = """
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "z" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [4] }
"""
GATHER_IO = """
max_batch_size: 4
input { name: "x" data_type: TYPE_INT64 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
ONE = "instance_group { kind: KIND_AUTO count: 1 }"
GOOD = {
    # The batcher waits for more requests, so that requests that are sent together run together.
    "batched": f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 200000 }} {AFFINE_IO}",
    "unbatched": AFFINE_IO.replace("[4]", "[2, 4]"),
    "gathering": GATHER_IO,
    # Batches of a few sizes through fixed buffers, as with CUDA graphs.
    "bucketed": (
        f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 200000 }} {AFFINE_IO}"
        'parameters { key: "batch_buckets" value { string_value: "4" } }'
    ),
    "elsewhere": f'max_batch_size: 8 default_model_filename: "../../batched/1/model.onnx" {AFFINE_IO}',
}
# tests/unit/backends/test_onnxruntime_session.py has all refusals; here one must reach Triton's index.
BAD = f"max_batch_size: 8 {AFFINE_IO}".replace('"y"', '"w"')


@dataclass(frozen=True, kw_only=True)
class Backend:
    url: str
    client: InferenceServerClient
    log: Path

    def wait_for_log(self, words: str) -> None:
        """Return once the log has these words: a stub's log lines may arrive later than its answers."""
        wait_until(lambda: words in self.log.read_text(encoding="utf-8"), f"the log has: {words}")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory, tiny_repository: Path) -> Iterator[Backend]:
    """A tritonserver with all models above and those of ``clip-serve --tensorrt``, which loads those it can."""
    repository = tmp_path_factory.mktemp("models")
    for name, config in {**GOOD, "bad": BAD}.items():
        _write_model(repository / name, config)
    staged = tmp_path_factory.mktemp("staged")
    stage_repository(tiny_repository, staged, cache=staged / "cache", precision="fp16")
    encoder = staged / ENCODER / "config.pbtxt"
    encoder.write_text(encoder.read_text().replace("KIND_GPU", "KIND_AUTO"))
    ports = {name: free_port() for name in ("grpc", "http", "metrics")}
    command = [sys.executable, "-m", "preprocess_ensemble.serving.launcher", f"--model-repository={repository}"]
    command += [f"--model-repository={staged}"]
    command += [f"--{name}-port={port}" for name, port in ports.items()]
    command += [f"--{name}-address=127.0.0.1" for name in ports]
    # Otherwise Triton starts one more process per model, to ask it for the rest of its configuration.
    command += ["--exit-on-error=false", "--disable-auto-complete-config"]
    log = repository / "log"
    url = f"127.0.0.1:{ports['grpc']}"
    with launched(command, log) as process, InferenceServerClient(url) as client:
        wait_until_live(process, ports["http"], log, ready=False)
        yield Backend(url=url, client=client, log=log)


def _write_model(directory: Path, config: str) -> None:
    name = directory.name
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(f'backend: "onnxruntime" {ONE} {config}', encoding="utf-8")
    file = directory / "1" / "model.onnx"
    if name == "gathering":
        tiny_onnx.gather(file)
    elif name != "elsewhere":
        tiny_onnx.affine(file, batch=2 if name == "unbatched" else "batch")


def _tensor(name: str, array: np.ndarray[Any, Any]) -> InferInput:
    tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def _x(rows: int, value: float = 1.0) -> np.ndarray[Any, Any]:
    return np.full((rows, 4), value, np.float32)


@pytest.mark.parametrize("model", [name for name in GOOD if name != "gathering"])
def test_answers(backend: Backend, model: str) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    result = backend.client.infer(model, [_tensor("x", x)])
    np.testing.assert_array_equal(result.as_numpy("y"), x * 2 + 1)
    np.testing.assert_array_equal(result.as_numpy("z"), -x)


def _executions(backend: Backend, model: str) -> int:
    statistics = backend.client.get_inference_statistics(model, as_json=True)["model_stats"][0]
    return int(statistics.get("execution_count", 0))


@pytest.mark.parametrize("model", ["batched", "bucketed"])
def test_requests_are_run_together_and_get_their_own_rows(backend: Backend, model: str) -> None:
    """Requests of different sizes, and with different outputs, in one run of the session."""
    before = _executions(backend, model)
    answers: list[Any] = []
    wanted = {1: ["y"], 2: ["z"], 3: ["y", "z"]}
    for rows, names in wanted.items():
        backend.client.async_infer(
            model,
            [_tensor("x", _x(rows, rows))],
            lambda result, error: answers.append(error or result),
            outputs=[InferRequestedOutput(name) for name in names],
        )
    wait_until(lambda: len(answers) == len(wanted), "all are answered")
    # The first request may run alone, before the others arrive.
    assert _executions(backend, model) - before < len(wanted)
    for result in answers:
        outputs = {output.name for output in result.get_response().outputs}
        rows = len(result.as_numpy(next(iter(outputs))))
        assert outputs == set(wanted[rows])
        if "y" in outputs:
            np.testing.assert_array_equal(result.as_numpy("y"), _x(rows, rows * 2 + 1))
        if "z" in outputs:
            np.testing.assert_array_equal(result.as_numpy("z"), _x(rows, -rows))


def test_a_failed_run_tells_the_client_nothing_of_the_server(backend: Backend) -> None:
    with pytest.raises(InferenceServerException) as error:
        backend.client.infer("gathering", [_tensor("x", np.array([[9]]))])
    assert error.value.status() == "StatusCode.INTERNAL"
    assert error.value.message() == "gathering could not run this batch; the server's log has the reason."
    backend.wait_for_log("Gather")
    result = backend.client.infer("gathering", [_tensor("x", np.array([[2]]))])
    assert result.as_numpy("y") == [[30]], "the next request is served"


def test_what_must_not_load(backend: Backend) -> None:
    index = backend.client.get_model_repository_index(as_json=True)["models"]
    entry = next(each for each in index if each["name"] == "bad")
    assert entry.get("state") != "READY"
    assert "lists the output 'w'" in entry["reason"]


def test_the_log_says_what_was_set(backend: Backend) -> None:
    backend.wait_for_log("CPUExecutionProvider, ORT_ENABLE_ALL, ORT_SEQUENTIAL, intra-op threads by default")


def test_what_clip_serve_stages_for_tensorrt_has_the_vector_of_the_canary(backend: Backend) -> None:
    """On the CPU, where an accelerator for GPUs is ignored; links, names and the passport are what is tried."""
    with SyncClipClient(backend.url) as clip:
        assert clip.health().ok

"""The Python-based ``onnxruntime`` backend inside a real tritonserver, with models of a few nodes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.fixtures.models import tiny_onnx
from tests.fixtures.waiting import wait_until
from tests.live.bare import bare_triton

AFFINE_IO = """
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "z" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [4] }
"""
# The batcher waits for more requests, so that requests that are sent together run together.
BATCHED = f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 200000 }} {AFFINE_IO}"
MODELS = {
    "batched": BATCHED,
    "unbatched": AFFINE_IO.replace("[4]", "[2, 4]"),
    "gathering": (
        'max_batch_size: 4 input { name: "x" data_type: TYPE_INT64 dims: [1] }'
        'output { name: "y" data_type: TYPE_FP32 dims: [1] }'
    ),
    # tests/unit/backends/test_onnxruntime_session.py has all refusals; here one must reach Triton's index.
    "wrong": f"max_batch_size: 8 {AFFINE_IO}".replace('"y"', '"w"'),
}


@dataclass(frozen=True, kw_only=True)
class Backend:
    client: InferenceServerClient
    log: Path


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """A tritonserver with all models above, which loads those it can."""
    repository = tmp_path_factory.mktemp("models")
    for name, config in MODELS.items():
        file = repository / name / "1" / "model.onnx"
        if name == "gathering":
            tiny_onnx.gather(file)
        else:
            tiny_onnx.affine(file, batch=2 if name == "unbatched" else "batch")
        common = 'backend: "onnxruntime" instance_group { kind: KIND_AUTO count: 1 }'
        (repository / name / "config.pbtxt").write_text(f"{common} {config}", encoding="utf-8")
    with (
        bare_triton(repository, repository, "--exit-on-error=false", ready=False) as server,
        InferenceServerClient(server.url) as client,
    ):
        yield Backend(client=client, log=server.log)


def _tensor(array: np.ndarray[Any, Any]) -> InferInput:
    tensor = InferInput("x", list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def _x(rows: int, value: float = 1.0) -> np.ndarray[Any, Any]:
    return np.full((rows, 4), value, np.float32)


def _executions(backend: Backend, model: str) -> int:
    statistics = backend.client.get_inference_statistics(model, as_json=True)["model_stats"][0]
    return int(statistics.get("execution_count", 0))


def test_requests_are_run_together_and_get_their_own_rows(backend: Backend) -> None:
    """Requests of different sizes, and with different outputs, in one run of the session."""
    before = _executions(backend, "batched")
    answers: list[Any] = []
    wanted = {1: ["y"], 2: ["z"], 3: ["y", "z"]}
    for rows, names in wanted.items():
        backend.client.async_infer(
            "batched",
            [_tensor(_x(rows, rows))],
            lambda result, error: answers.append(error or result),
            outputs=[InferRequestedOutput(name) for name in names],
        )
    wait_until(lambda: len(answers) == len(wanted), "all are answered")
    # The first request may run alone, before the others arrive.
    assert _executions(backend, "batched") - before < len(wanted)
    for result in answers:
        found = {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}
        rows = len(next(iter(found.values())))
        assert set(found) == set(wanted[rows])
        for name, array in found.items():
            np.testing.assert_array_equal(array, _x(rows, rows * 2 + 1 if name == "y" else -rows))


def test_a_model_without_a_batch_dimension_answers(backend: Backend) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    result = backend.client.infer("unbatched", [_tensor(x)])
    np.testing.assert_array_equal(result.as_numpy("y"), x * 2 + 1)
    np.testing.assert_array_equal(result.as_numpy("z"), -x)


def test_a_failed_run_tells_the_client_nothing_of_the_server(backend: Backend) -> None:
    with pytest.raises(InferenceServerException) as error:
        backend.client.infer("gathering", [_tensor(np.array([[9]]))])
    assert error.value.status() == "StatusCode.INTERNAL"
    assert error.value.message() == "gathering could not run this batch; the server's log has the reason."
    # A stub's log lines may arrive later than its answers.
    wait_until(lambda: "Gather" in backend.log.read_text(encoding="utf-8"), "the log has the reason")
    result = backend.client.infer("gathering", [_tensor(np.array([[2]]))])
    assert result.as_numpy("y") == [[30]], "the next request is served"


def test_what_must_not_load_has_its_reason_in_the_index(backend: Backend) -> None:
    index = backend.client.get_model_repository_index(as_json=True)["models"]
    entry = next(each for each in index if each["name"] == "wrong")
    assert entry.get("state") != "READY"
    assert "lists the output 'w'" in entry["reason"]

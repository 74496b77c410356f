"""The Python-based ``onnxruntime`` backend inside a real tritonserver, with models of a few nodes."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from preprocess_ensemble.testing.server import free_port
from tests.fixtures.models import tiny_onnx
from tests.live.bare import launched, wait_until_live

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

AFFINE_IO = """
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "z" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [4] }
"""
ONE = "instance_group { kind: KIND_AUTO count: 1 }"
TENSORRT = (
    'execution_accelerators { gpu_execution_accelerator { name: "tensorrt" parameters { key: "q" value: "1" } } }'
)
OPENVINO = 'execution_accelerators { cpu_execution_accelerator { name: "openvino" } }'

GOOD = {
    # The batcher waits for more requests, so that requests that are sent together run together.
    "batched": f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 200000 }} {AFFINE_IO}",
    "unbatched": AFFINE_IO.replace("[4]", "[2, 4]"),
    "without_io": "",
    "gathering": "",
    # An instance on the CPU ignores an accelerator for a GPU.
    "accelerated": f"max_batch_size: 8 optimization {{ {TENSORRT} }} {AFFINE_IO}",
    # Batches of a few sizes through fixed buffers, as with CUDA graphs.
    "bucketed": (
        f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 200000 }} {AFFINE_IO}"
        'parameters { key: "batch_buckets" value { string_value: "4" } }'
    ),
    "elsewhere": f'max_batch_size: 8 default_model_filename: "../../batched/1/model.onnx" {AFFINE_IO}',
}
BAD = {
    "no_file": (f"max_batch_size: 8 {AFFINE_IO}", "There is no model file"),
    "broken_file": (f"max_batch_size: 8 {AFFINE_IO}", "ONNX Runtime cannot load"),
    "wrong_type": (
        f"max_batch_size: 8 {AFFINE_IO}".replace("TYPE_FP32", "TYPE_UINT8", 1),
        "config.pbtxt says TYPE_UINT8 for 'x', but in the ONNX model it is TYPE_FP32.",
    ),
    "wrong_name": (f"max_batch_size: 8 {AFFINE_IO}".replace('"y"', '"w"'), "lists the output 'w'"),
    "input_twice": (
        f'max_batch_size: 8 {AFFINE_IO} input {{ name: "x" data_type: TYPE_FP32 dims: [4] }}',
        "'x' more than once",
    ),
    "optional": (
        f"max_batch_size: 8 {AFFINE_IO}".replace("dims: [4]", "dims: [4] optional: true", 1),
        "sets optional for the input 'x'",
    ),
    # The tests run with CLIP_PRECISION=fp32.
    "openvino": (f"max_batch_size: 8 optimization {{ {OPENVINO} }} {AFFINE_IO}", "and also for the precision fp32"),
    "wrong_mode": (
        f'max_batch_size: 8 {AFFINE_IO} parameters {{ key: "execution_mode" value {{ string_value: "3" }} }}',
        "The parameter execution_mode must be a number from 0 to 1",
    ),
}


FILLED_IN = frozenset({"without_io", "gathering"})
"""Models whose configurations are incomplete; a server that asks the backend for the rest loads them."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    clients: Mapping[bool, InferenceServerClient]
    logs: Mapping[bool, Path]

    def client(self, model: str) -> InferenceServerClient:
        return self.clients[model in FILLED_IN]

    def wait_for_log(self, model: str, words: str) -> None:
        """Return once the log has these words: a stub's log lines may arrive later than its answers."""
        log = self.logs[model in FILLED_IN]
        deadline = time.monotonic() + 120
        while words not in log.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline, f"not in the log: {words}"
            time.sleep(0.01)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """Two tritonservers with all models above, which load those they can."""
    configs = {**GOOD, **{name: config for name, (config, _) in BAD.items()}}
    clients: dict[bool, InferenceServerClient] = {}
    logs: dict[bool, Path] = {}
    with ExitStack() as stack:
        starting = []
        for asked in (False, True):
            repository = tmp_path_factory.mktemp("models")
            for name, config in configs.items():
                if (name in FILLED_IN) == asked:
                    _write_model(repository / name, config)
            ports = {name: free_port() for name in ("grpc", "http", "metrics")}
            command = [sys.executable, "-m", "preprocess_ensemble.serving.launcher", f"--model-repository={repository}"]
            command += [f"--{name}-port={port}" for name, port in ports.items()]
            command += [f"--{name}-address=127.0.0.1" for name in ports]
            # Asking the backend starts one more process per model.
            command += ["--exit-on-error=false", *(() if asked else ("--disable-auto-complete-config",))]
            logs[asked] = repository / "log"
            starting.append((stack.enter_context(launched(command, logs[asked])), ports["http"], logs[asked]))
            clients[asked] = stack.enter_context(InferenceServerClient(f"127.0.0.1:{ports['grpc']}"))
        for process, http_port, log in starting:
            wait_until_live(process, http_port, log, ready=False)
        yield Backend(clients=clients, logs=logs)


def _write_model(directory: Path, config: str) -> None:
    name = directory.name
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(f'backend: "onnxruntime" {ONE} {config}', encoding="utf-8")
    file = directory / "1" / "model.onnx"
    if name == "gathering":
        tiny_onnx.gather(file)
    elif name == "broken_file":
        file.write_bytes(b"not a model")
    elif name not in ("no_file", "elsewhere"):
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
    result = backend.client(model).infer(model, [_tensor("x", x)])
    np.testing.assert_array_equal(result.as_numpy("y"), x * 2 + 1)
    np.testing.assert_array_equal(result.as_numpy("z"), -x)


def test_only_requested_outputs_are_returned(backend: Backend) -> None:
    result = backend.client("batched").infer("batched", [_tensor("x", _x(1))], outputs=[InferRequestedOutput("z")])
    assert [output.name for output in result.get_response().outputs] == ["z"]


def _executions(backend: Backend, model: str) -> int:
    statistics = backend.client(model).get_inference_statistics(model, as_json=True)["model_stats"][0]
    return int(statistics.get("execution_count", 0))


@pytest.mark.parametrize("model", ["batched", "bucketed"])
def test_requests_are_run_together_and_get_their_own_rows(backend: Backend, model: str) -> None:
    """Requests of different sizes, and with different outputs, in one run of the session."""
    before = _executions(backend, model)
    answers: list[Any] = []
    wanted = {1: ["y"], 2: ["z"], 3: ["y", "z"]}
    for rows, names in wanted.items():
        backend.client(model).async_infer(
            model,
            [_tensor("x", _x(rows, rows))],
            lambda result, error: answers.append(error or result),
            outputs=[InferRequestedOutput(name) for name in names],
        )
    deadline = time.monotonic() + 120
    while len(answers) < len(wanted) and time.monotonic() < deadline:
        time.sleep(0.01)
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


def test_inputs_outputs_and_batching_are_filled_in(backend: Backend) -> None:
    config = backend.client("without_io").get_model_config("without_io", as_json=True)["config"]
    assert config["max_batch_size"] == 4
    assert [(io["name"], io["data_type"], io["dims"]) for io in config["input"]] == [("x", "TYPE_FP32", ["4"])]
    assert [io["name"] for io in config["output"]] == ["y", "z"]
    assert "dynamic_batching" in config


def test_a_failed_run_tells_the_client_nothing_of_the_server(backend: Backend) -> None:
    with pytest.raises(InferenceServerException) as error:
        backend.client("gathering").infer("gathering", [_tensor("x", np.array([[9]]))])
    assert error.value.status() == "StatusCode.INTERNAL"
    assert error.value.message() == "gathering could not run this batch; the server's log has the reason."
    backend.wait_for_log("gathering", "Gather")
    result = backend.client("gathering").infer("gathering", [_tensor("x", np.array([[2]]))])
    assert result.as_numpy("y") == [[30]], "the next request is served"


@pytest.mark.parametrize("model", BAD)
def test_what_must_not_load(backend: Backend, model: str) -> None:
    index = backend.client(model).get_model_repository_index(as_json=True)["models"]
    entry = next(each for each in index if each["name"] == model)
    assert entry.get("state") != "READY"
    assert BAD[model][1] in entry["reason"]


def test_the_log_says_what_was_set(backend: Backend) -> None:
    backend.wait_for_log("batched", "batched_0_0: ONNX Runtime")
    backend.wait_for_log("batched", "CPUExecutionProvider, ORT_ENABLE_ALL, ORT_SEQUENTIAL, intra-op threads by default")

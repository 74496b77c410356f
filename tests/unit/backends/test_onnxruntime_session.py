"""A model configuration becomes a session: options, providers, files and tensors, batches; and what is refused."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess_ensemble.backends.onnxruntime.batch import BufferedRunner, bucket, joined, runner_for, split
from preprocess_ensemble.backends.onnxruntime.session import model_file, open_planned_session
from preprocess_ensemble.backends.onnxruntime.session_plan import ModelLoadError, Provider, plan_session
from preprocess_ensemble.backends.onnxruntime.signature import check_signature, read_signature
from tests.fixtures.models import tiny_onnx
from tests.fixtures.models.tiny_onnx import accelerators, parameters


@pytest.fixture(autouse=True)
def all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide from the sessions that the tests may use only some of the machine's cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: len(os.sched_getaffinity(0)))


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_onnx.affine(tmp_path_factory.mktemp("repository") / "m" / "1" / "model.onnx")


def opened(affine: Path, config: dict[str, Any]) -> onnxruntime.SessionOptions:
    return open_planned_session(affine, plan_session(config, kind="CPU", device_id=0)).get_session_options()


@pytest.mark.parametrize(
    ("graph", "name", "identities"),
    [({}, "ALL", 0), ({"level": 0}, "ALL", 0), ({"level": -1}, "BASIC", 0), ({"level": 1}, "EXTENDED", 0),
     ({"level": 2}, None, 1)],
)  # fmt: skip
def test_the_level_decides_whether_the_graph_is_optimized(
    affine: Path, graph: dict[str, int], name: str | None, identities: int, tmp_path: Path
) -> None:
    plan = plan_session({"optimization": {"graph": graph}}, kind="CPU", device_id=0)
    plan.options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    plan.options.log_severity_level = 3
    level = open_planned_session(affine, plan).get_session_options().graph_optimization_level.name
    assert level == (f"ORT_ENABLE_{name}" if name else "ORT_DISABLE_ALL")
    operators = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert operators.count("Identity") == identities


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"anything": "at all"}, {}),
        ({"intra_op_thread_count": "2"}, {"intra_op_num_threads": 2}),
        ({"inter_op_thread_count": "3"}, {"inter_op_num_threads": 3}),
        ({"execution_mode": "1"}, {"execution_mode": onnxruntime.ExecutionMode.ORT_PARALLEL}),
        ({"enable_mem_arena": "0"}, {"enable_cpu_mem_arena": False}),
        ({"enable_mem_pattern": "false"}, {"enable_mem_pattern": False}),
        ({"enable_mem_pattern": "Off", "enable_mem_arena": "on"}, {"enable_mem_pattern": False}),
        ({"enable_mem_pattern": "1", "enable_mem_arena": "True"}, {}),
    ],
)
def test_parameters_reach_the_session(affine: Path, values: dict[str, str], expected: dict[str, Any]) -> None:
    options = opened(affine, parameters(**values))
    defaults = {"intra_op_num_threads": 0, "inter_op_num_threads": 0, "enable_cpu_mem_arena": True,
                "enable_mem_pattern": True, "execution_mode": onnxruntime.ExecutionMode.ORT_SEQUENTIAL}  # fmt: skip
    assert {name: getattr(options, name) for name in defaults} == {**defaults, **expected}


def test_a_pinned_process_has_a_thread_for_each_of_its_cores(affine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert opened(affine, {}).intra_op_num_threads == 3
    assert opened(affine, parameters(intra_op_thread_count="2")).intra_op_num_threads == 2


def test_arena_shrinkage_reaches_every_run(affine: Path) -> None:
    def run(devices: str) -> None:
        plan = plan_session(parameters(**{"memory.enable_memory_arena_shrinkage": devices}), kind="CPU", device_id=0)
        session = open_planned_session(affine, plan)
        runner = runner_for(session, read_signature(session), plan)
        runner.run([{"x": np.zeros((1, 4), np.float32)}], ["y"])

    run("cpu:0")
    with pytest.raises(Exception, match="gpu:7"):
        run("gpu:7")


CUDA_KEYS = accelerators("gpu", "cuda", use_tf32="0") | parameters(
    cudnn_conv_algo_search="1", gpu_mem_limit="1000", arena_extend_strategy="1", do_copy_in_default_stream="0"
)
AS_CUDA_OPTIONS = {
    "use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC", "gpu_mem_limit": "1000",
    "arena_extend_strategy": "kSameAsRequested", "do_copy_in_default_stream": "0",
}  # fmt: skip
CACHE = {"trt_engine_cache_path": "/cache", "trt_profile_max_shapes": "pixels:32x224x224x3"}
TENSORRT_KEYS = {
    "precision_mode": "FP16", "max_workspace_size_bytes": "1073741824", "trt_engine_cache_enable": "true",
    "int8_calibration_table_name": "table", "int8_use_native_calibration_table": "true",
}  # fmt: skip
AS_TENSORRT_OPTIONS = {
    "trt_fp16_enable": "1", "trt_max_workspace_size": "1073741824", "trt_engine_cache_enable": "1",
    "trt_int8_calibration_table_name": "table", "trt_int8_use_native_calibration_table": "1", **CACHE,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "kind", "providers"),
    [
        (accelerators("gpu", "no-such-accelerator", any_key="1"), "CPU", []),
        ({}, "GPU", [("CUDA", {}, False)]),
        (parameters(precision="fp32"), "GPU", [("CUDA", {"use_tf32": "0"}, False)]),
        (parameters(precision="fp32") | accelerators("gpu", "cuda", use_tf32="1"), "GPU",
         [("CUDA", {"use_tf32": "1"}, True)]),
        (CUDA_KEYS, "GPU", [("CUDA", AS_CUDA_OPTIONS, True)]),
        (accelerators("gpu", "tensorrt", **TENSORRT_KEYS, **CACHE), "GPU",
         [("Tensorrt", AS_TENSORRT_OPTIONS, True), ("CUDA", {}, False)]),
    ],
    ids=["ignored on a CPU", "CUDA by default", "fp32 is not TF32", "TF32 in fp32", "CUDA", "TensorRT, then CUDA"],
)  # fmt: skip
def test_providers(
    config: dict[str, Any], kind: str, providers: list[tuple[str, Any, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLIP_PRECISION")
    plan = plan_session(config, kind=kind, device_id=3)
    expected = [
        Provider(name=f"{name}ExecutionProvider", options={**keys, "device_id": "3"}, required=required)
        for name, keys, required in providers
    ]
    assert plan.providers == (*expected, Provider(name="CPUExecutionProvider"))
    assert plan.device == ("cuda" if kind == "GPU" else "cpu")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (parameters(execution_mode="2"), "execution_mode must be"),
        (parameters(intra_op_thread_count="many"), "intra_op_thread_count must be"),
        (parameters(intra_op_thread_count="99999999999"), "intra_op_thread_count must be"),
        (parameters(inter_op_thread_count="-2147483649"), "inter_op_thread_count must be"),
        (parameters(inter_op_thread_count="1.5"), "inter_op_thread_count must be"),
        (parameters(enable_mem_arena="yes"), "enable_mem_arena must be"),
        (parameters(enable_mem_pattern=""), "enable_mem_pattern must be"),
        (parameters(arena_extend_strategy="2"), "arena_extend_strategy must be a number from 0 to 1"),
        (accelerators("gpu", "tensorrt", trt_fp16_enable="1"), "no parameter 'trt_fp16_enable'"),
        (accelerators("gpu", "tensorrt", precision_mode="FP8"), "precision_mode 'FP8' is unknown"),
        (accelerators("gpu", "tensorrt", trt_cuda_graph_enable="on"), "trt_cuda_graph_enable must be a boolean"),
        (accelerators("gpu", "tensorrt", trt_cuda_graph_enable="1"), "trt_cuda_graph_enable makes TensorRT replay"),
        (accelerators("gpu", "auto_mixed"), "GPU execution accelerator 'auto_mixed' is unknown"),
        ({"model_operations": {"op_library_filename": ["no-such-library.so"]}}, "no-such-library"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_session_cannot_have_is_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelLoadError, match=sentence):
        plan_session(config, kind="GPU", device_id=0)


@pytest.mark.parametrize(
    ("provider", "name"), [("TensorrtExecutionProvider", "tensorrt"), ("CUDAExecutionProvider", "cuda")]
)
def test_a_provider_that_was_asked_for_must_be_there(provider: str, name: str, affine: Path) -> None:
    if provider in onnxruntime.get_available_providers():
        pytest.skip(f"this ONNX Runtime has {provider}")
    with pytest.raises(ModelLoadError, match=f"asks for {provider}"):
        open_planned_session(affine, plan_session(accelerators("gpu", name), kind="GPU", device_id=0))


def test_a_gpu_that_the_configuration_does_not_name_may_be_missing(affine: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    session = open_planned_session(affine, plan_session({}, kind="GPU", device_id=0))
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_missing_and_broken_files_name_the_remedy(tmp_path: Path) -> None:
    plan = plan_session({}, kind="CPU", device_id=0)
    file = model_file({}, model_directory=tmp_path / "second_text_encoder", version="1")
    with pytest.raises(ModelLoadError, match=f"no model file.*clip-export --repository {tmp_path} --name second` with"):
        open_planned_session(file, plan)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a model")
    with pytest.raises(ModelLoadError, match=f"cannot load.*clip-export --repository {tmp_path}"):
        open_planned_session(file, plan)


def test_the_model_may_be_in_a_folder_of_another_name(tmp_path: Path) -> None:
    (tmp_path / "1" / "folder").mkdir(parents=True)
    named = {"default_model_filename": "folder"}
    assert model_file(named, model_directory=tmp_path, version="1") == tmp_path / "1" / "folder" / "model.onnx"


X: dict[str, Any] = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}
Y: dict[str, Any] = {"name": "y", "data_type": "TYPE_FP32", "dims": [4]}
CONFIG: dict[str, Any] = {"max_batch_size": 8, "input": [X], "output": [Y]}


def check(folder: Path, sizes: dict[str, Any], change: dict[str, Any]) -> None:
    session = open_planned_session(
        tiny_onnx.affine(folder / "model.onnx", **sizes), plan_session({}, kind="CPU", device_id=0)
    )
    check_signature({**CONFIG, **change}, read_signature(session))


@pytest.mark.parametrize(
    ("sizes", "change"),
    [
        ({}, {}),
        ({}, {"input": [{**X, "dims": ["4"]}]}),
        ({}, {"input": [{**X, "dims": [2, 2], "reshape": {"shape": [4]}}]}),
        ({"width": "width"}, {"output": [{**Y, "dims": [-1]}]}),
        ({"batch": 2}, {"max_batch_size": 0, "input": [{**X, "dims": [2, 4], "optional": True}],
                        "output": [{**Y, "dims": [2, 4]}]}),
    ],
    ids=["equal", "as text", "reshaped", "a narrower input", "optional without batches"],
)  # fmt: skip
def test_a_right_configuration_passes(tmp_path: Path, sizes: dict[str, Any], change: dict[str, Any]) -> None:
    check(tmp_path, sizes, change)


@pytest.mark.parametrize(
    ("sizes", "change", "sentence"),
    [
        ({}, {"input": [{**X, "name": "w"}]}, r"input 'w'.*has only \['x'\]"),
        ({}, {"output": [{**Y, "name": "w"}]}, r"output 'w'.*has only \['y', 'z'\]"),
        ({}, {"input": []}, r"needs the inputs \['x'\]"),
        ({}, {"input": [{**X, "data_type": "TYPE_UINT8"}]}, "TYPE_UINT8 for 'x'.*it is TYPE_FP32"),
        ({}, {"output": [{**Y, "dims": [5]}]}, r"\[-1, 5\] for 'y'.*it is \[-1, 4\]"),
        ({}, {"output": [{**Y, "dims": [-1]}]}, r"\[-1, -1\] for 'y'.*it is \[-1, 4\]"),
        ({}, {"max_batch_size": 0}, r"\[4\] for 'x'.*it is \[-1, 4\]"),
        ({}, {"input": [X, X]}, "lists the input 'x' more than once"),
        ({}, {"input": [{**X, "optional": True}]}, "sets optional for the input 'x'"),
        ({}, {"sequence_batching": {"direct": {}}}, "does not support sequence_batching"),
        ({}, {"batch_input": [{"kind": 0}]}, "does not support batch_input"),
        ({"width": "width"}, {}, r"\[-1, 4\] for 'y'.*it is \[-1, -1\]"),
        ({"batch": 1}, {}, r"first dimension of 'x'.*not dynamic"),
    ],
)
def test_a_wrong_configuration_is_refused_by_both_names(
    tmp_path: Path, sizes: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelLoadError, match=sentence):
        check(tmp_path, sizes, change)


GRAPHS = accelerators("gpu", "cuda", enable_cuda_graph="1")


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_split_undoes_joined(rows: list[int]) -> None:
    rng = np.random.default_rng(sum(rows))
    requests = [{"a": rng.random((count, 3)), "b": rng.integers(0, 9, (count, 1))} for count in rows]
    whole = joined(requests)
    for request, part in zip(requests, split(whole, rows), strict=True):
        for name in ("a", "b"):
            np.testing.assert_array_equal(part[name], request[name])
    assert len(requests) > 1 or whole["a"] is requests[0]["a"], "a single request is not copied"


def test_batches_are_padded_up_to_a_bucket_and_cut_again(affine: Path) -> None:
    """GPU code with CPU memory: the session only gets the bucket's number of rows, and callers get their own rows."""
    plan = replace(plan_session({}, kind="CPU", device_id=0), buckets=(2, 4, 8))
    session: Any = Recorded(open_planned_session(affine, plan))
    runner = BufferedRunner(session, read_signature(session.real), plan)
    assert session.rows == [2, 2, 2, 4, 4, 4, 8, 8, 8], "each graph is captured before the first request"
    session.rows.clear()
    session.graphs.clear()
    kept = []
    for rows in (8, 3, 1, 5, 4):
        requests = [{"x": np.full((1, 4), 10.0 * rows + n, np.float32)} for n in range(rows)]
        outputs = runner.run(requests, ["z", "y"])
        kept.append((np.concatenate([request["x"] for request in requests]), outputs))
    assert session.rows == [8, 4, 2, 8, 4]
    assert session.graphs == session.rows, "a graph is told by its number of rows"
    for x, outputs in kept:
        np.testing.assert_array_equal(outputs["y"], x * 2 + 1, "later batches leave earlier answers alone")
        np.testing.assert_array_equal(outputs["z"], -x)


class Recorded:
    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.real = session
        self.rows: list[int] = []
        self.graphs: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def run_with_iobinding(self, binding: Any, options: onnxruntime.RunOptions) -> None:
        self.graphs.append(int(options.get_run_config_entry("gpu_graph_id")))
        self.real.run_with_iobinding(binding, options)
        self.rows.append(binding.get_outputs()[0].shape()[0])


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.integers(1, 64), st.integers(1, 64))
def test_buckets_hold_every_batch_and_waste_less_than_half(most: int, rows: int) -> None:
    plan = plan_session({"max_batch_size": most, **GRAPHS}, kind="GPU", device_id=0)
    assert plan.buckets[-1] == most
    if rows <= most:
        assert rows <= bucket(rows, plan.buckets) < 2 * rows or rows == 1
    else:
        assert bucket(rows, plan.buckets) == rows


@pytest.mark.parametrize(
    ("config", "kind", "buckets"),
    [(GRAPHS, "GPU", (1, 2, 4, 8, 16, 24)), (accelerators("gpu", "cuda", enable_cuda_graph="0"), "GPU", ()),
     (accelerators("gpu", "cuda"), "GPU", ()), (GRAPHS, "CPU", ())],
)  # fmt: skip
def test_buckets_of_a_plan(config: dict[str, Any], kind: str, buckets: tuple[int, ...]) -> None:
    plan = plan_session({"max_batch_size": 24, **config}, kind=kind, device_id=0)
    assert plan.buckets == buckets


def test_a_bucket_that_cannot_run_fails_the_load(tmp_path: Path) -> None:
    file = tiny_onnx.gather(tmp_path / "model.onnx", table=())
    plan = replace(plan_session({}, kind="CPU", device_id=0), buckets=(1,))
    session = open_planned_session(file, plan)
    with pytest.raises(ModelLoadError, match=r"A batch of 1 cannot be run.*remove enable_cuda_graph"):
        BufferedRunner(session, read_signature(session), plan)

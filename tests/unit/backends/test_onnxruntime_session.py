from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from preprocess_ensemble.backends.onnxruntime.batch import runner_for
from preprocess_ensemble.backends.onnxruntime.model_config import ModelLoadError
from preprocess_ensemble.backends.onnxruntime.providers import Provider
from preprocess_ensemble.backends.onnxruntime.session import model_file, open_planned_session
from preprocess_ensemble.backends.onnxruntime.session_plan import SessionPlan, plan_session
from preprocess_ensemble.backends.onnxruntime.signature import (
    Signature,
    check_signature,
    read_signature,
)
from tests.fixtures.models import tiny_onnx
from tests.fixtures.models.model_configs import accelerators, parameters
from tests.paths import ROOT


@pytest.fixture(autouse=True)
def all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide from the sessions that the tests may use only some of the machine's cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: len(os.sched_getaffinity(0)))


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_onnx.affine(tmp_path_factory.mktemp("repository") / "m" / "1" / "model.onnx")


def opened(affine: Path, config: dict[str, Any]) -> onnxruntime.SessionOptions:
    """Return the options that a session with this configuration reports."""
    return open_planned_session(affine, plan_session(config, kind="CPU", device_id=0)).get_session_options()


def optimized_operators(affine: Path, config: dict[str, Any], tmp_path: Path) -> list[str]:
    plan = plan_session(config, kind="CPU", device_id=0)
    plan.options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    plan.options.log_severity_level = 3
    open_planned_session(affine, plan)
    return [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]


def test_level_2_leaves_the_graph_as_it_is(affine: Path, tmp_path: Path) -> None:
    assert optimized_operators(affine, {"optimization": {"graph": {"level": 2}}}, tmp_path).count("Identity") == 1


@pytest.mark.parametrize(("level", "name"), [(0, "ALL"), (-1, "BASIC"), (1, "EXTENDED")])
def test_the_other_levels_optimize(affine: Path, level: int, name: str, tmp_path: Path) -> None:
    config = {"optimization": {"graph": {"level": level}}}
    assert opened(affine, config).graph_optimization_level.name == f"ORT_ENABLE_{name}"
    assert optimized_operators(affine, config, tmp_path).count("Identity") == 0


def test_no_level_optimizes_all(affine: Path) -> None:
    assert opened(affine, {}).graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


def threads_of_a_session(affine: Path, **values: str) -> int:
    """Count the threads that a session starts, in a process in which nothing else starts any."""
    script = f"""
import os
from pathlib import Path
from preprocess_ensemble.backends.onnxruntime.session import open_planned_session
from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
before = len(os.listdir("/proc/self/task"))
session = open_planned_session(Path({str(affine)!r}), plan_session({parameters(**values)!r}, kind="CPU", device_id=0))
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_thread_counts_make_that_many_threads(affine: Path) -> None:
    # The thread that calls run is the first of the pool, so a pool of n adds n - 1.
    assert threads_of_a_session(affine, intra_op_thread_count="1") == 0
    assert threads_of_a_session(affine, intra_op_thread_count="4") == 3
    parallel = {"intra_op_thread_count": "1", "execution_mode": "1"}
    alone = threads_of_a_session(affine, **parallel, inter_op_thread_count="1")
    assert threads_of_a_session(affine, **parallel, inter_op_thread_count="3") == alone + 2


def test_threads_are_left_to_onnx_runtime_unless_set(affine: Path) -> None:
    options = opened(affine, {})
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (0, 0)
    options = opened(affine, parameters(intra_op_thread_count="2", inter_op_thread_count="3"))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)


def test_a_pinned_process_has_a_thread_for_each_of_its_cores(affine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert opened(affine, {}).intra_op_num_threads == 3
    assert opened(affine, parameters(intra_op_thread_count="2")).intra_op_num_threads == 2


def test_execution_mode(affine: Path) -> None:
    assert opened(affine, {}).execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert opened(affine, parameters(execution_mode="1")).execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL


@pytest.mark.parametrize(
    ("key", "attribute"), [("enable_mem_arena", "enable_cpu_mem_arena"), ("enable_mem_pattern", "enable_mem_pattern")]
)
@pytest.mark.parametrize(
    ("text", "value"),
    [("0", False), ("false", False), ("Off", False), ("1", True), ("True", True), ("on", True)],
)
def test_memory_switches(affine: Path, key: str, attribute: str, text: str, value: bool) -> None:
    assert getattr(opened(affine, {}), attribute) is True
    assert getattr(opened(affine, parameters(**{key: text})), attribute) is value


def test_arena_shrinkage_reaches_every_run(affine: Path) -> None:
    def run(devices: str) -> None:
        plan = plan_session(parameters(**{"memory.enable_memory_arena_shrinkage": devices}), kind="CPU", device_id=0)
        session = open_planned_session(affine, plan)
        runner = runner_for(session, read_signature(session), plan)
        runner.run([{"x": np.zeros((1, 4), np.float32)}], ["y"])

    run("cpu:0")
    with pytest.raises(Exception, match="gpu:7"):
        run("gpu:7")


def test_a_missing_library_of_operators_fails_the_load(affine: Path) -> None:
    with pytest.raises(ModelLoadError, match="no-such-library"):
        plan_session({"model_operations": {"op_library_filename": ["no-such-library.so"]}}, kind="CPU", device_id=0)


def test_a_parameter_that_the_backend_does_not_know_is_ignored(affine: Path) -> None:
    assert opened(affine, parameters(anything="at all")).intra_op_num_threads == 0
    # Newer releases of the C++ backend know this key; 24.10 does not.
    key = "session.use_device_allocator_for_initializers"
    with pytest.raises(RuntimeError, match=key):
        opened(affine, parameters(**{key: "1"})).get_session_config_entry(key)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("execution_mode", "2"),
        ("intra_op_thread_count", "many"),
        ("intra_op_thread_count", "99999999999"),
        ("inter_op_thread_count", "-2147483649"),
        ("inter_op_thread_count", "1.5"),
        ("enable_mem_arena", "yes"),
        ("enable_mem_pattern", ""),
    ],
)
def test_a_wrong_value_is_refused(key: str, text: str) -> None:
    with pytest.raises(ModelLoadError, match=f"The parameter {key} must be"):
        plan_session(parameters(**{key: text}), kind="CPU", device_id=0)


def names(plan: SessionPlan) -> list[str]:
    return [provider.name for provider in plan.providers]


def test_the_cpu_provider_alone_on_a_cpu() -> None:
    plan = plan_session(accelerators("gpu", "no-such-accelerator", any_key="1"), kind="CPU", device_id=0)
    assert names(plan) == ["CPUExecutionProvider"], "GPU accelerators are ignored on a CPU instance"
    assert plan.device == "cpu"


def test_cuda_on_a_gpu() -> None:
    plan = plan_session({}, kind="GPU", device_id=3)
    assert names(plan) == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert plan.device == "cuda"
    assert plan.providers[0] == Provider(name="CUDAExecutionProvider", options={"device_id": "3"})


def test_cuda_keys() -> None:
    config = {
        **accelerators("gpu", "cuda", use_tf32="0"),
        **parameters(
            cudnn_conv_algo_search="1", gpu_mem_limit="1000", arena_extend_strategy="1", do_copy_in_default_stream="0"
        ),
    }
    cuda = plan_session(config, kind="GPU", device_id=0).providers[0]
    assert cuda.required
    assert cuda.options == {
        "use_tf32": "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": "1000",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "0",
        "device_id": "0",
    }
    with pytest.raises(ModelLoadError, match="arena_extend_strategy must be a number from 0 to 1"):
        plan_session(parameters(arena_extend_strategy="2"), kind="GPU", device_id=0)


def test_tensorrt_keys() -> None:
    config = accelerators(
        "gpu",
        "tensorrt",
        precision_mode="FP16",
        max_workspace_size_bytes="1073741824",
        trt_engine_cache_enable="true",
        trt_engine_cache_path="/cache",
        trt_profile_max_shapes="pixels:32x224x224x3",
    )
    plan = plan_session(config, kind="GPU", device_id=1)
    assert names(plan) == ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    assert plan.providers[0].required
    assert plan.providers[0].options == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1073741824",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/cache",
        "trt_profile_max_shapes": "pixels:32x224x224x3",
        "device_id": "1",
    }


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (accelerators("gpu", "tensorrt", trt_fp16_enable="1"), "no parameter 'trt_fp16_enable'"),
        (accelerators("gpu", "tensorrt", precision_mode="FP8"), "precision_mode 'FP8' is unknown"),
        (accelerators("gpu", "tensorrt", trt_cuda_graph_enable="on"), "trt_cuda_graph_enable must be a boolean"),
        (accelerators("gpu", "auto_mixed"), "GPU execution accelerator 'auto_mixed' is unknown"),
        (accelerators("cpu", "onednn"), "CPU execution accelerator 'onednn' is unknown"),
    ],
)
def test_refused_accelerators(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelLoadError, match=sentence):
        plan_session(config, kind="GPU", device_id=0)


@pytest.mark.parametrize(
    ("provider", "config", "kind"),
    [
        ("TensorrtExecutionProvider", accelerators("gpu", "tensorrt"), "GPU"),
        ("CUDAExecutionProvider", accelerators("gpu", "cuda"), "GPU"),
    ],
)
def test_a_provider_that_was_asked_for_must_be_there(
    provider: str, config: dict[str, Any], kind: str, affine: Path
) -> None:
    if provider in onnxruntime.get_available_providers():
        pytest.skip(f"this ONNX Runtime has {provider}")
    with pytest.raises(ModelLoadError, match=f"asks for {provider}"):
        open_planned_session(affine, plan_session(config, kind=kind, device_id=0))


def test_a_gpu_that_the_configuration_does_not_name_may_be_missing(affine: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    session = open_planned_session(affine, plan_session({}, kind="GPU", device_id=0))
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_missing_and_broken_files_name_the_remedy(tmp_path: Path) -> None:
    plan = plan_session({}, kind="CPU", device_id=0)
    file = tmp_path / "clip_encoder" / "1" / "model.onnx"
    with pytest.raises(ModelLoadError, match=f"no model file.*clip-export --repository {tmp_path}"):
        open_planned_session(file, plan)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a model")
    with pytest.raises(ModelLoadError, match=f"cannot load.*clip-export --repository {tmp_path}"):
        open_planned_session(file, plan)


def test_model_file(tmp_path: Path) -> None:
    assert model_file({}, model_directory=tmp_path, version="2") == tmp_path / "2" / "model.onnx"
    (tmp_path / "1" / "folder").mkdir(parents=True)
    named = {"default_model_filename": "folder"}
    assert model_file(named, model_directory=tmp_path, version="1") == tmp_path / "1" / "folder" / "model.onnx"


CONFIG: dict[str, Any] = {
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
}


def signature_of(file: Path) -> Signature:
    return read_signature(open_planned_session(file, plan_session({}, kind="CPU", device_id=0)))


def test_a_right_configuration_passes(affine: Path) -> None:
    check_signature(CONFIG, signature_of(affine))
    check_signature({**CONFIG, "input": [{**CONFIG["input"][0], "dims": ["4"]}]}, signature_of(affine))
    check_signature(
        {**CONFIG, "input": [{**CONFIG["input"][0], "dims": [2, 2], "reshape": {"shape": [4]}}]}, signature_of(affine)
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"input": [{"name": "w", "data_type": "TYPE_FP32", "dims": [4]}]}, r"input 'w'.*has only \['x'\]"),
        ({"output": [{"name": "w", "data_type": "TYPE_FP32", "dims": [4]}]}, r"output 'w'.*has only \['y', 'z'\]"),
        ({"input": []}, r"needs the inputs \['x'\]"),
        ({"input": [{"name": "x", "data_type": "TYPE_UINT8", "dims": [4]}]}, "TYPE_UINT8 for 'x'.*it is TYPE_FP32"),
        ({"output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [5]}]}, r"\[-1, 5\] for 'y'.*it is \[-1, 4\]"),
        ({"output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}]}, r"\[-1, -1\] for 'y'.*it is \[-1, 4\]"),
        ({"max_batch_size": 0}, r"\[4\] for 'x'.*it is \[-1, 4\]"),
        ({"input": 2 * CONFIG["input"]}, "lists the input 'x' more than once"),
        ({"input": [{**CONFIG["input"][0], "optional": True}]}, "sets optional for the input 'x'"),
        ({"sequence_batching": {"direct": {}}}, "does not support sequence_batching"),
        ({"batch_input": [{"kind": 0}]}, "does not support batch_input"),
    ],
)
def test_a_wrong_configuration_is_refused_by_both_names(change: dict[str, Any], sentence: str, affine: Path) -> None:
    with pytest.raises(ModelLoadError, match=sentence):
        check_signature({**CONFIG, **change}, signature_of(affine))


def test_an_input_may_be_narrower_than_the_model_and_an_output_not(tmp_path: Path) -> None:
    signature = signature_of(tiny_onnx.affine(tmp_path / "model.onnx", width="width"))
    any_width = [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}]
    check_signature({**CONFIG, "output": any_width}, signature)
    with pytest.raises(ModelLoadError, match=r"\[-1, 4\] for 'y'.*it is \[-1, -1\]"):
        check_signature(CONFIG, signature)


def test_an_input_of_a_model_without_batches_may_be_optional(tmp_path: Path) -> None:
    signature = signature_of(tiny_onnx.affine(tmp_path / "model.onnx", batch=2))
    tensors = {
        key: [{"name": name, "data_type": "TYPE_FP32", "dims": [2, 4], "optional": key == "input"}]
        for key, name in (("input", "x"), ("output", "y"))
    }
    check_signature({"max_batch_size": 0, **tensors}, signature)


def test_a_fixed_batch_dimension_is_refused(tmp_path: Path) -> None:
    signature = signature_of(tiny_onnx.affine(tmp_path / "model.onnx", batch=1))
    with pytest.raises(ModelLoadError, match=r"first dimension of 'x'.*not dynamic"):
        check_signature(CONFIG, signature)

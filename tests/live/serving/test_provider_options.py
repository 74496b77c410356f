"""Every option of an accelerator: set as an operator would, read back from the open session, and its effect
tested if a result can show it. A provider that cannot be used here is skipped."""

from __future__ import annotations

import shutil
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper

from benchmarks.fixtures.server import serving
from clip_client import SyncClipClient
from preprocess_ensemble.backends.onnxruntime.session import open_planned_session, select_model
from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.model_repository.config import read_config
from preprocess_ensemble.runtimes.processor import has_bf16
from preprocess_ensemble.serving.tensorrt import TensorrtMissing, check_tensorrt, usable_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROVIDERS: Final = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
ROUNDED: Final = 10.0
"""Rounded inputs (TF32, bf16) multiply the error of an fp32 product at least by this; a factor of 100 is usual."""
SMALL_BYTES: Final = 32 * 2**20


def product_model() -> bytes:
    """An ONNX model that multiplies two matrices, ``a`` and ``b`` in and ``y`` out."""
    matrices = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}0", f"{name}1"]) for name in "aby"]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "product", matrices[:2], matrices[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


@dataclass(frozen=True)
class Option:
    """One option: what an operator writes, and what ONNX Runtime must report."""

    device: str
    expected: Mapping[str, str]
    """Of the provider's options; empty if the provider lists none."""
    _: KW_ONLY
    keys: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the execution accelerator."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the model."""
    effect: Callable[[Option, Path], bool] | None = None
    """Tests whether the option has its effect; None if no result shows it."""

    @property
    def name(self) -> str:
        """Such as ``cuda: use_tf32=1``."""
        written = {**self.keys, **self.parameters}
        return f"{self.device}: {', '.join(f'{key}={value}' for key, value in written.items()) or 'device'}"

    def open(self, cache: Path, **changed: str) -> Any:
        """Open a session as the server's backend does; ``changed`` replaces keys, ``CACHE`` stands for ``cache``."""
        keys = {key: text.replace("CACHE", str(cache)) for key, text in {**self.keys, **changed}.items()}
        config: dict[str, Any] = {"parameters": {key: {"string_value": text} for key, text in self.parameters.items()}}
        kind = "gpu" if self.device in ("cuda", "tensorrt") else "cpu"
        accelerators = [{"name": self.device, "parameters": keys}]
        config["optimization"] = {"execution_accelerators": {f"{kind}_execution_accelerator": accelerators}}
        path = cache / "model.onnx"
        path.write_bytes(product_model())
        plan = plan_session(config, kind=kind.upper(), device_id=0)
        session = open_planned_session(path, plan)
        return select_model(session, path, plan).model.session if self.device == "openvino" else session

    def read_back(self, cache: Path) -> dict[str, str]:
        """Return what an open session reports for the keys of ``expected``; OpenVINO reports nothing."""
        session = self.open(cache)
        if self.device == "openvino":
            return {}
        options = session.get_provider_options()[PROVIDERS[self.device]]
        return {key: options.get(key, "not listed") for key in self.expected}


def _product_error(session: Any) -> float:
    a, b = np.random.default_rng(1).standard_normal((2, 512, 512), np.float32)
    (product,) = session.run(["y"], {"a": a, "b": b})
    return float(np.abs(product - a.astype(np.float64) @ b.astype(np.float64)).max())


def _rounds(option: Option, cache: Path) -> bool:
    """The error of a product is larger than at full precision."""
    full = {"use_tf32": "0"} if option.device == "cuda" else {"precision": "FP32"}
    return _product_error(option.open(cache)) > ROUNDED * _product_error(option.open(cache, **full))


def _is_exact(option: Option, cache: Path) -> bool:
    """A product of 512 terms is as exact as fp32 allows."""
    return _product_error(option.open(cache)) < 1e-3


def _refuses_what_is_too_large(option: Option, cache: Path) -> bool:
    """Two matrices of twice the limit do not fit."""
    side = int((2 * SMALL_BYTES / 4) ** 0.5)
    large = np.zeros((side, side), np.float32)
    try:
        option.open(cache).run(["y"], {"a": large, "b": large})
    except Exception as error:  # ONNX Runtime's exceptions share no public base class.
        return "alloc" in str(error).lower()
    return False


def _replays(option: Option, cache: Path) -> bool:
    """A captured graph reads the current content of its buffers."""
    session = option.open(cache)
    binding, options = session.io_binding(), onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "1")
    ones = np.ones((8, 8), np.float32)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(ones, "cuda", 0) for name in "aby"}
    for name in "ab":
        binding.bind_ortvalue_input(name, values[name])
    binding.bind_ortvalue_output("y", values["y"])
    for _ in range(4):
        session.run_with_iobinding(binding, options)
    values["a"].update_inplace(3 * ones)
    session.run_with_iobinding(binding, options)
    return bool((values["y"].numpy() == 24).all())


def _keeps_engines(option: Option, cache: Path) -> bool:
    """After a run the cache holds an engine, and the next session builds no second one."""
    x = np.ones((4, 64), np.float32)
    for _ in range(2):
        option.open(cache).run(["y"], {"a": x, "b": np.ones((64, 64), np.float32)})
    return len(list(cache.glob("*.engine"))) == 1


def _cuda(expected: str, key: str, written: str, effect: Callable[[Option, Path], bool] | None = None) -> Option:
    accelerator = key in ("use_tf32", "enable_cuda_graph")
    return Option("cuda", {key: expected}, effect=effect, **{"keys" if accelerator else "parameters": {key: written}})


_SHAPES: Final = {
    f"trt_profile_{end}_shapes": f"a:{rows}x64,b:64x64" for end, rows in (("min", 1), ("opt", 4), ("max", 8))
}
_CACHE: Final = {"trt_engine_cache_path": "CACHE", **_SHAPES}
_TUNED: Final = {"trt_builder_optimization_level": "2", "trt_cuda_graph_enable": "1"}
OPTIONS: Final = (
    Option("cuda", {"device_id": "0"}),
    _cuda("1", "use_tf32", "1", _rounds),
    _cuda("0", "use_tf32", "0", _is_exact),
    _cuda("1", "enable_cuda_graph", "1", _replays),
    _cuda(str(SMALL_BYTES), "gpu_mem_limit", str(SMALL_BYTES), _refuses_what_is_too_large),
    _cuda("kNextPowerOfTwo", "arena_extend_strategy", "0"),
    _cuda("kSameAsRequested", "arena_extend_strategy", "1"),
    _cuda("EXHAUSTIVE", "cudnn_conv_algo_search", "0"),
    _cuda("HEURISTIC", "cudnn_conv_algo_search", "1"),
    _cuda("DEFAULT", "cudnn_conv_algo_search", "2"),
    _cuda("0", "do_copy_in_default_stream", "0"),
    Option(
        "tensorrt",
        {"device_id": "0", "trt_fp16_enable": "1", "trt_max_workspace_size": str(2**30)},
        keys={"precision_mode": "FP16", "max_workspace_size_bytes": str(2**30)},
    ),
    Option(
        "tensorrt",
        {"trt_engine_cache_enable": "1", **_CACHE},
        keys={"trt_engine_cache_enable": "true", **_CACHE},
        effect=_keeps_engines,
    ),
    Option(
        "tensorrt",
        {"trt_timing_cache_enable": "1", **_TUNED},
        keys={"trt_timing_cache_enable": "true", **_TUNED},
    ),
    # OpenVINO chooses bf16 if the CPU has it, so an fp32 result shows the option too.
    Option("openvino", {}, keys={"precision": "FP32", "num_threads": "1"}, effect=_is_exact),
    Option("openvino", {}, keys={"precision": "BF16"}, effect=_rounds),
)


def skip_without(device: str) -> None:
    """Skip the test if the options of a device cannot be tried here."""
    if device == "openvino":
        pytest.importorskip("openvino")
    elif PROVIDERS[device] not in onnxruntime.get_available_providers():
        pytest.skip(f"this ONNX Runtime has no {PROVIDERS[device]}")
    if device == "tensorrt":
        try:
            check_tensorrt()
        except TensorrtMissing as missing:
            pytest.skip(str(missing))
    if device == "cuda" and not usable_gpus():
        pytest.skip("the driver shows no NVIDIA GPU")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_arrives(option: Option, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with an NVIDIA card, install onnxruntime-gpu in place of onnxruntime and run this file."""
    if "BF16" in option.keys.values() and not has_bf16():
        pytest.skip("this processor has neither avx512_bf16 nor amx_bf16")
    skip_without(option.device)
    monkeypatch.delenv("CLIP_PRECISION")
    expected = {key: text.replace("CACHE", str(tmp_path)) for key, text in option.expected.items()}
    assert option.read_back(tmp_path) == expected
    assert option.effect is None or option.effect(option, tmp_path), "the option is listed, and changes nothing"


def test_the_log_of_a_server_on_a_card_names_what_cuda_was_told(tiny_repository: Path, tmp_path: Path) -> None:
    skip_without("cuda")
    copy = shutil.copytree(tiny_repository, tmp_path / "models")
    config = read_config(copy / ENCODER / "config.pbtxt")
    config.instance_group[0].kind = 1  # KIND_GPU
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="cuda")
    accelerator.parameters.update({"use_tf32": "1", "enable_cuda_graph": "1"})
    (copy / ENCODER / "config.pbtxt").write_text(text_format.MessageToString(config))
    log = tmp_path / "log"
    with serving(copy, "--log-file", str(log)):
        (line,) = (line for line in log.read_text().splitlines() if "CUDAExecutionProvider: " in line)
    assert {"device_id=0", "use_tf32=1", "enable_cuda_graph=1"} <= set(line.rpartition(": ")[2].split(", "))


def test_clip_serve_on_tensorrt_has_one_engine_for_every_batch(tiny_repository: Path, tmp_path: Path) -> None:
    skip_without("tensorrt")
    for _ in range(2):
        with (
            serving(tiny_repository, "--tensorrt", f"--tensorrt-cache={tmp_path}") as server,
            SyncClipClient(server.grpc_url) as clip,
        ):
            assert clip.health().ok
        engines = [path.name for path in tmp_path.rglob("*.engine")]
        assert engines, "the cache is used"
        assert len(engines) == len({name.split("_sm")[0] for name in engines})

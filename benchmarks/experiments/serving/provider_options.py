"""Does every option of an execution provider take effect? ``python -m benchmarks provider_options``.

Each option is set as an operator would set it and read back from the open session. If a result can show the effect of
an option, the effect is tested too.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiments.serving.peak_throughput import FLOAT, bound_run, one_node, opened
from benchmarks.experiments.serving.precision import NO_BF16
from benchmarks.harness.experiment import Run, experiment, option
from preprocess_ensemble.runtimes.processor import has_bf16

PROVIDERS: Final = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
DEVICES: Final = (*PROVIDERS, "openvino")
ROUNDED: Final = 10.0
"""Rounded inputs (TF32, bf16) multiply the error of an fp32 product at least by this; a factor of 100 is usual."""
SMALL_BYTES: Final = 32 * 2**20


@dataclass(frozen=True)
class Option:
    """One option: what an operator writes, and what ONNX Runtime must report."""

    device: str
    expected: Mapping[str, str]
    """Of the provider's options; on the CPU, of the session's. Empty if the provider lists none."""
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

    def unusable(self) -> str | None:
        """One sentence that says why this option cannot be tried here; None if it can."""
        if "BF16" in self.keys.values() and not has_bf16():
            return NO_BF16
        return unusable(self.device)

    def open(self, cache: Path, **changed: str) -> Any:
        """Open a session as the server's backend does; ``changed`` replaces keys, ``CACHE`` stands for ``cache``."""
        keys = {key: text.replace("CACHE", str(cache)) for key, text in {**self.keys, **changed}.items()}
        return opened(cache, one_node("MatMul", "ab", FLOAT), self.device, keys, self.parameters)

    def check(self) -> dict[str, Any]:
        """Read the option back and test its effect; ``ok`` says whether both are right."""
        with tempfile.TemporaryDirectory() as scratch:
            cache = Path(scratch)
            session = self.open(cache)
            expected = {key: text.replace("CACHE", scratch) for key, text in self.expected.items()}
            if self.device == "openvino":
                read = {}
            elif self.device == "cpu":
                read = {key: str(getattr(session.get_session_options(), key)) for key in expected}
            else:
                options = session.get_provider_options()[PROVIDERS[self.device]]
                read = {key: options.get(key, "not listed") for key in expected}
            works = self.effect(self, cache) if self.effect is not None else None
        return {"read_back": read, "expected": expected, "effect": works, "ok": read == expected and works is not False}


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
    ones = np.ones((8, 8), np.float32)
    shapes = {"y": ((8, 8), np.float32)}
    run, values = bound_run(option.open(cache), {"a": ones, "b": ones}, shapes, "cuda", graph="1")
    for _ in range(4):
        run()
    values["a"].update_inplace(3 * ones)
    run()
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
    Option("cpu", {"intra_op_num_threads": "1"}, parameters={"intra_op_thread_count": "1"}),
    Option("cpu", {"inter_op_num_threads": "2"}, parameters={"inter_op_thread_count": "2"}),
    Option("cpu", {"enable_cpu_mem_arena": "False"}, parameters={"enable_mem_arena": "0"}),
    Option("cpu", {"enable_mem_pattern": "False"}, parameters={"enable_mem_pattern": "0"}),
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


def unusable(device: str) -> str | None:
    """One sentence that says why the options of a device cannot be tried here; None if they can."""
    import onnxruntime

    from preprocess_ensemble.serving.tensorrt import TensorrtMissing, check_tensorrt, usable_gpus

    if device == "openvino":
        return None if importlib.util.find_spec("openvino") else "openvino is not installed"
    if PROVIDERS[device] not in onnxruntime.get_available_providers():
        return f"this ONNX Runtime has no {PROVIDERS[device]}"
    if device == "tensorrt":
        try:
            check_tensorrt()
        except TensorrtMissing as missing:
            return str(missing)
    if device == "cuda" and not usable_gpus():
        return "the driver shows no NVIDIA GPU"
    return None


@experiment(option("--device", nargs="+", choices=DEVICES, default=list(DEVICES), help="default: all"))
def measure(run: Run) -> dict[str, Any]:
    """Check all options of the devices and print one line of JSON."""
    found: dict[str, Any] = {}
    for device in run.options.device:
        if reason := unusable(device):
            found[device] = {"unproved": reason}
            continue
        for one in OPTIONS:
            if one.device == device:
                if reason := one.unusable():
                    found[one.name] = {"unproved": reason}
                    continue
                try:
                    found[one.name] = one.check()
                except Exception as error:  # The next option may work.
                    found[one.name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))
    return {"summary": found}

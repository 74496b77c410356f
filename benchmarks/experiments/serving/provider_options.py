"""Does every option of an execution provider take effect? ``python -m benchmarks provider_options``.

Each option is set as an operator would set it and read back from the open session. If a result can show its effect, the
effect is tested too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.experiments.serving.peak_throughput import FLOAT, one_node
from benchmarks.harness.results import write_result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnxruntime

PROVIDERS: Final = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
ROUNDED: Final = 10.0
"""Rounded inputs (TF32, bf16) multiply the error of an fp32 product at least by this; a factor of 100 is usual."""
SMALL_BYTES: Final = 32 * 2**20
GRAPH: Final = "1"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: what an operator writes, and what ONNX Runtime must report."""

    device: str
    keys: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the execution accelerator."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the model."""
    expected: Mapping[str, str]
    """Of the provider's options; on the CPU, of the session's. Empty if the provider lists none."""
    effect: Callable[[Option, Path], bool] | None = None
    """Tests whether the option has its effect; None if no result shows it."""

    @property
    def name(self) -> str:
        """Such as ``cuda: use_tf32=1``."""
        written = {**self.keys, **self.parameters}
        return f"{self.device}: {', '.join(f'{key}={value}' for key, value in written.items()) or 'device'}"

    def open(self, cache: Path, **changed: str) -> onnxruntime.InferenceSession:
        """Open a session as the server's backend does; ``changed`` replaces keys, ``CACHE`` stands for ``cache``."""
        from preprocess_ensemble.backends.onnxruntime.session import open_session
        from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session

        keys = {key: text.replace("CACHE", str(cache)) for key, text in {**self.keys, **changed}.items()}
        config: dict[str, Any] = {
            "parameters": {key: {"string_value": text} for key, text in self.parameters.items()},
        }
        kind = "cpu" if self.device in ("cpu", "openvino") else "gpu"
        if self.device != "cpu":
            accelerator = {"name": self.device, "parameters": keys}
            config["optimization"] = {"execution_accelerators": {f"{kind}_execution_accelerator": [accelerator]}}
        model = cache / "model.onnx"
        model.write_bytes(one_node("MatMul", "ab", FLOAT))
        return open_session(model, plan_session(config, kind=kind.upper(), device_id=0))

    def check(self) -> dict[str, Any]:
        """Read the option back and test its effect; ``ok`` says whether both are right."""
        with tempfile.TemporaryDirectory() as scratch:
            cache = Path(scratch)
            session = self.open(cache)
            expected = {key: text.replace("CACHE", scratch) for key, text in self.expected.items()}
            if self.device == "cpu":
                read = {key: str(getattr(session.get_session_options(), key)) for key in expected}
            else:
                options = session.get_provider_options()[PROVIDERS[self.device]]
                read = {key: options.get(key, "not listed") for key in expected}
            works = self.effect(self, cache) if self.effect is not None else None
        return {"read_back": read, "expected": expected, "effect": works, "ok": read == expected and works is not False}


def _product_error(session: onnxruntime.InferenceSession) -> float:
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
    import onnxruntime

    session = option.open(cache)
    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((8, 8), np.float32), "cuda", 0) for name in "aby"}
    for name in "ab":
        binding.bind_ortvalue_input(name, values[name])
    binding.bind_ortvalue_output("y", values["y"])
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", GRAPH)
    for _ in range(4):
        session.run_with_iobinding(binding, options)
    values["a"].update_inplace(np.full((8, 8), 3.0, np.float32))
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
    place = {"keys" if accelerator else "parameters": {key: written}}
    return Option(device="cuda", expected={key: expected}, effect=effect, **place)


_SHAPES: Final = {
    f"trt_profile_{end}_shapes": f"a:{rows}x64,b:64x64" for end, rows in (("min", 1), ("opt", 4), ("max", 8))
}
OPTIONS: Final = (
    Option(device="cpu", parameters={"intra_op_thread_count": "1"}, expected={"intra_op_num_threads": "1"}),
    Option(device="cpu", parameters={"inter_op_thread_count": "2"}, expected={"inter_op_num_threads": "2"}),
    Option(device="cpu", parameters={"enable_mem_arena": "0"}, expected={"enable_cpu_mem_arena": "False"}),
    Option(device="cpu", parameters={"enable_mem_pattern": "0"}, expected={"enable_mem_pattern": "False"}),
    Option(device="cuda", expected={"device_id": "0"}),
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
        device="tensorrt",
        keys={"precision_mode": "FP16", "max_workspace_size_bytes": "1073741824"},
        expected={"device_id": "0", "trt_fp16_enable": "1", "trt_max_workspace_size": "1073741824"},
    ),
    Option(
        device="tensorrt",
        keys={"trt_engine_cache_enable": "true", "trt_engine_cache_path": "CACHE", **_SHAPES},
        expected={"trt_engine_cache_enable": "1", "trt_engine_cache_path": "CACHE", **_SHAPES},
        effect=_keeps_engines,
    ),
    Option(
        device="tensorrt",
        keys={"trt_timing_cache_enable": "true", "trt_builder_optimization_level": "2", "trt_cuda_graph_enable": "1"},
        expected={"trt_timing_cache_enable": "1", "trt_builder_optimization_level": "2", "trt_cuda_graph_enable": "1"},
    ),
    # OpenVINO's provider lists no options. It chooses bf16 if the CPU has it, so an fp32 result shows the option too.
    Option(device="openvino", keys={"precision": "FP32", "num_threads": "1"}, expected={}, effect=_is_exact),
    Option(device="openvino", keys={"precision": "BF16"}, expected={}, effect=_rounds),
)


def unusable(device: str) -> str | None:
    """One sentence that says why the options of a device cannot be tried here; None if they can."""
    import onnxruntime

    from preprocess_ensemble.serving.tensorrt import TensorrtMissing, check_tensorrt, usable_gpus

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


def main() -> int:
    """Check all options of the devices and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", nargs="+", choices=tuple(PROVIDERS), default=list(PROVIDERS), help="default: all")
    parser.add_argument("--results", type=Path, help="also keep the result as JSON in this folder")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for device in arguments.device:
        if reason := unusable(device):
            found[device] = {"unproved": reason}
            continue
        for option in (one for one in OPTIONS if one.device == device):
            try:
                found[option.name] = option.check()
            except Exception as error:  # The next option may work.
                found[option.name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))
    if arguments.results:
        write_result("provider_options", {"summary": found}, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())

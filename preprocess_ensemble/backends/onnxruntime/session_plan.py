"""Translate Triton's model configuration into a plan for an ONNX Runtime session.

Keys and refusals are those of NVIDIA's C++ ONNX Runtime backend (r24.10), so one ``config.pbtxt`` serves both backends.
Exception: this backend has no execution accelerators for a CPU. There its own parameter ``precision`` selects the
runtime. Both backends ignore unknown parameters; in both, an unknown key of an execution accelerator fails the load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import onnxruntime

from preprocess_ensemble.contract import Precision
from preprocess_ensemble.errors import ReportedError, first_line
from preprocess_ensemble.runtimes.model import RuntimeUnusable, parse_precision, precision_of_environment
from preprocess_ensemble.runtimes.onnx_session import CPU, CUDA, TENSORRT, session_options

ModelConfig = Mapping[str, Any]  # Triton's JSON, with the field names of ``model_config.proto``

Value = TypeVar("Value")
Default = TypeVar("Default")


class ModelLoadError(ReportedError):
    """The model cannot be served with this configuration; the message is one sentence."""


def _checked(
    parameters: Mapping[str, str], key: str, read: Callable[[str], Value], default: Default
) -> Value | Default:
    if key not in parameters:
        return default
    try:
        return read(parameters[key])
    except ValueError as error:
        raise ModelLoadError(f"The parameter {key} must be {error}, not {parameters[key]!r}.") from None


def _switch(text: str) -> bool:
    if text.lower() not in ("1", "true", "on", "0", "false", "off"):
        raise ValueError("a boolean (true, false, on, off, 1 or 0)")
    return text.lower() in ("1", "true", "on")


def _boolean(text: str) -> str:
    """Check a boolean for an execution provider, which refuses ``on`` and ``off``; return ``"1"`` or ``"0"``."""
    if text.lower() in ("on", "off"):
        raise ValueError("a boolean (true, false, 1 or 0)")
    return "1" if _switch(text) else "0"


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("an integer") from None


def _int32(text: str) -> int:
    number = _integer(text)
    if not -(2**31) <= number < 2**31:
        raise ValueError("an integer of 32 bits")
    return number


def _threads(text: str) -> int:
    return max(0, _int32(text))


def _one_of(*values: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in map(str, range(len(values))):
            raise ValueError(f"a number from 0 to {len(values) - 1}")
        return values[int(text)]

    return check


_TENSORRT_CHECKS: Final[Mapping[Callable[[str], object], str]] = {
    _boolean: """
        int8_use_native_calibration_table trt_build_heuristics_enable trt_context_memory_sharing_enable
        trt_cuda_graph_enable trt_detailed_build_log trt_dla_enable trt_dump_ep_context_model trt_dump_subgraphs
        trt_engine_cache_enable trt_force_sequential_engine_build trt_force_timing_cache trt_layer_norm_fp32_fallback
        trt_sparsity_enable trt_timing_cache_enable
    """,
    _integer: "max_workspace_size_bytes",
    _int32: """
        trt_auxiliary_streams trt_builder_optimization_level trt_dla_core trt_ep_context_embed_mode
        trt_max_partition_iterations trt_min_subgraph_size
    """,
    str: """
        int8_calibration_table_name trt_engine_cache_path trt_engine_cache_prefix trt_ep_context_file_path
        trt_extra_plugin_lib_paths trt_profile_max_shapes trt_profile_min_shapes trt_profile_opt_shapes
        trt_tactic_sources trt_timing_cache_path
    """,
}
"""Check of a value -> Triton's keys for the TensorRT accelerator with such values."""
_TENSORRT_NAMES: Final = {"max_workspace_size_bytes": "trt_max_workspace_size"}  # others get "trt_" in front

_TENSORRT_KEYS: Final = {key: check for check, keys in _TENSORRT_CHECKS.items() for key in keys.split()}

_TENSORRT_MODES: Final = {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "INT8": {"trt_int8_enable": "1"}}

_CUDA_PARAMETERS: Final[Mapping[str, Callable[[str], object]]] = {
    "cudnn_conv_algo_search": _one_of("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "gpu_mem_limit": _integer,
    "arena_extend_strategy": _one_of("kNextPowerOfTwo", "kSameAsRequested"),
    "do_copy_in_default_stream": _boolean,
}
"""Name in the model's ``parameters`` that the C++ backend passes to the CUDA provider -> check of its value."""

_GRAPH_LEVELS: Final = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_GRAPHS: Final = "enable_cuda_graph"
_TENSORRT_GRAPHS: Final = "trt_cuda_graph_enable"
_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"


@dataclass(frozen=True, kw_only=True)
class Provider:
    """An execution provider by ONNX Runtime's name; ``required`` if the configuration names it."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """Settings of a session: its options, providers in order of preference, and entries for the options of each run."""

    options: onnxruntime.SessionOptions
    providers: tuple[Provider, ...]
    run_entries: Mapping[str, str]
    buckets: tuple[int, ...]
    """Numbers of rows that may be run, ascending, one for each CUDA graph, which replays one number; else empty."""
    compute_precision: Precision

    @property
    def device(self) -> str:
        return "cuda" if self.providers[0].name in (TENSORRT, CUDA) else "cpu"


def plan_session(config: ModelConfig, *, kind: str, device_id: int) -> SessionPlan:
    """Translate ``config`` for an instance that Triton placed on ``kind`` (``"CPU"`` or ``"GPU"``) ``device_id``.

    Raises ``ModelLoadError`` for settings that the C++ backend refuses, and for the few settings that only instances in
    one process can share.
    """
    parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
    options = session_options(_checked(parameters, "intra_op_thread_count", _threads, 0))
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    options.graph_optimization_level = _GRAPH_LEVELS.get(level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    mode = _checked(parameters, "execution_mode", _one_of("ORT_SEQUENTIAL", "ORT_PARALLEL"), "ORT_SEQUENTIAL")
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    options.inter_op_num_threads = _checked(parameters, "inter_op_thread_count", _threads, 0)
    options.enable_cpu_mem_arena = _checked(parameters, "enable_mem_arena", _switch, True)
    options.enable_mem_pattern = _checked(parameters, "enable_mem_pattern", _switch, True)
    for library in config.get("model_operations", {}).get("op_library_filename", ()):
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # ONNX Runtime's exceptions share no public base class.
            raise ModelLoadError(f"The operator library {library} cannot be loaded: {first_line(error)}.") from error

    for accelerator in _accelerators(config, "cpu"):
        raise ModelLoadError(
            f"This backend has no CPU execution accelerator {accelerator['name']!r}: remove it from config.pbtxt, and "
            "the model runs on the runtime that is fastest on this processor and agrees with ONNX Runtime."
        )
    try:
        compute_precision = precision_of_environment()
    except RuntimeUnusable as error:
        raise ModelLoadError(str(error)) from None
    if compute_precision is None:
        configured: Precision = _checked(parameters, "precision", parse_precision, "auto")
        compute_precision = configured
    gpu = _gpu_providers(config, parameters, device_id, exact=compute_precision == "fp32") if kind == "GPU" else ()
    if any(one.options.get(_TENSORRT_GRAPHS) == "1" for one in gpu):
        # microsoft/onnxruntime#20050
        raise ModelLoadError(
            f"{_TENSORRT_GRAPHS} makes TensorRT replay its first batch for all later ones: remove it from config.pbtxt."
        )
    return SessionPlan(
        options=options,
        providers=(*gpu, Provider(name=CPU)),
        run_entries={_SHRINKAGE: parameters[_SHRINKAGE]} if _SHRINKAGE in parameters else {},
        buckets=_buckets(config, kind),
        compute_precision=compute_precision,
    )


def _buckets(config: ModelConfig, kind: str) -> tuple[int, ...]:
    """Return powers of two and the largest batch, so that less than half is padding; none without CUDA graphs."""
    asked = (
        one.get("parameters", {}).get(_GRAPHS, "0") for one in _accelerators(config, "gpu") if one["name"] == "cuda"
    )
    most = int(config.get("max_batch_size", 0))
    if kind != "GPU" or not most or not any(text.lower() in ("1", "true") for text in asked):  # as in ONNX Runtime
        return ()
    return (*(2**power for power in range(most.bit_length()) if 2**power < most), most)


def _accelerators(config: ModelConfig, device: str) -> list[Mapping[str, Any]]:
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    return list(accelerators.get(f"{device}_execution_accelerator", ()))


def _gpu_providers(
    config: ModelConfig, parameters: Mapping[str, str], device_id: int, *, exact: bool
) -> tuple[Provider, ...]:
    """Return the providers of a GPU instance in order of preference: TensorRT if it is configured, then CUDA.

    With ``exact`` CUDA computes fp32 without TF32, its default, except if the configuration names use_tf32. Raises
    ``ModelLoadError`` for an accelerator, key or value that the C++ backend refuses.
    """
    device = {"device_id": str(device_id)}
    cuda = {
        key: str(_checked(parameters, key, read, "")) for key, read in _CUDA_PARAMETERS.items() if key in parameters
    }
    cuda_required, tensorrt = False, list[Provider]()
    for accelerator in _accelerators(config, "gpu"):
        keys: Mapping[str, str] = accelerator.get("parameters", {})
        match accelerator["name"]:
            case "tensorrt":
                tensorrt.append(Provider(name=TENSORRT, options={**_tensorrt_options(keys), **device}, required=True))
            case "cuda":
                cuda, cuda_required = {**keys, **cuda}, True
            case name:
                raise ModelLoadError(f"The GPU execution accelerator {name!r} is unknown: use tensorrt or cuda.")
    tf32 = {"use_tf32": "0"} if exact else {}
    return (*tensorrt, Provider(name=CUDA, options={**tf32, **cuda, **device}, required=cuda_required))


def _tensorrt_options(keys: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, text in keys.items():
        if key == "precision_mode":
            if text not in _TENSORRT_MODES:
                raise ModelLoadError(f"The TensorRT precision_mode {text!r} is unknown: use FP32, FP16 or INT8.")
            options.update(_TENSORRT_MODES[text])
        elif key in _TENSORRT_KEYS:
            name = _TENSORRT_NAMES.get(key, f"trt_{key.removeprefix('trt_')}")
            options[name] = str(_checked(keys, key, _TENSORRT_KEYS[key], ""))
        else:
            raise ModelLoadError(f"The TensorRT accelerator has no parameter {key!r}.")
    return options

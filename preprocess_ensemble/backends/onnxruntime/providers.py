"""Execution providers: Triton's accelerators and parameters, translated into ONNX Runtime's names and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from preprocess_ensemble.backends.onnxruntime.model_config import (
    ModelConfig,
    ModelLoadError,
    boolean,
    checked,
    int32,
    integer,
    one_of,
    thread_count,
)
from preprocess_ensemble.runtimes.onnx_session import CUDA

TENSORRT: Final = "TensorrtExecutionProvider"

_TENSORRT_NAMES: Final = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
"""Triton's key for the TensorRT accelerator -> ONNX Runtime's, if they differ."""

_TENSORRT_CHECKS: Final[Mapping[Callable[[str], object], str]] = {
    boolean: """
        int8_use_native_calibration_table trt_build_heuristics_enable trt_context_memory_sharing_enable
        trt_cuda_graph_enable trt_detailed_build_log trt_dla_enable trt_dump_ep_context_model trt_dump_subgraphs
        trt_engine_cache_enable trt_force_sequential_engine_build trt_force_timing_cache trt_layer_norm_fp32_fallback
        trt_sparsity_enable trt_timing_cache_enable
    """,
    integer: "max_workspace_size_bytes",
    int32: """
        trt_auxiliary_streams trt_builder_optimization_level trt_dla_core trt_ep_context_embed_mode
        trt_max_partition_iterations trt_min_subgraph_size
    """,
    str: """
        int8_calibration_table_name trt_engine_cache_path trt_engine_cache_prefix trt_ep_context_file_path
        trt_extra_plugin_lib_paths trt_profile_max_shapes trt_profile_min_shapes trt_profile_opt_shapes
        trt_tactic_sources trt_timing_cache_path
    """,
}
"""Check of a value -> Triton's keys for the TensorRT accelerator that have such values."""

_TENSORRT_KEYS: Final = {key: check for check, keys in _TENSORRT_CHECKS.items() for key in keys.split()}

_PRECISIONS: Final = {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "INT8": {"trt_int8_enable": "1"}}

_OPENVINO_PRECISIONS: Final = ("FP32", "BF16")
"""BF16 is only for CPUs with avx512_bf16 or amx_bf16."""

_CUDA_PARAMETERS: Final[Mapping[str, Callable[[str], object]]] = {
    "cudnn_conv_algo_search": one_of("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "gpu_mem_limit": integer,
    "arena_extend_strategy": one_of("kNextPowerOfTwo", "kSameAsRequested"),
    "do_copy_in_default_stream": boolean,
}
"""The model's own ``parameters`` that the C++ backend passes to the CUDA provider."""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """An execution provider by ONNX Runtime's name; ``required`` if the configuration names it."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    required: bool = False


def _accelerators(config: ModelConfig, device: str) -> list[Mapping[str, Any]]:
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    return list(accelerators.get(f"{device}_execution_accelerator", ()))


def gpu_providers(config: ModelConfig, parameters: Mapping[str, str], device_id: int) -> tuple[Provider, ...]:
    """Return the providers of a GPU instance, preferred first: TensorRT if it is configured, then CUDA.

    Raises ``ModelLoadError`` for an accelerator, key or value that the C++ backend refuses.
    """
    device = {"device_id": str(device_id)}
    cuda = {key: str(checked(parameters, key, read, "")) for key, read in _CUDA_PARAMETERS.items() if key in parameters}
    cuda_required = False
    tensorrt: list[Provider] = []
    for accelerator in _accelerators(config, "gpu"):
        keys: Mapping[str, str] = accelerator.get("parameters", {})
        match accelerator["name"]:
            case "tensorrt":
                options = {**_tensorrt_options(keys), **device}
                tensorrt.append(Provider(name=TENSORRT, options=options, required=True))
            case "cuda":
                cuda = {**keys, **cuda}
                cuda_required = True
            case name:
                raise ModelLoadError(f"The GPU execution accelerator {name!r} is unknown: use tensorrt or cuda.")
    return (*tensorrt, Provider(name=CUDA, options={**cuda, **device}, required=cuda_required))


def _tensorrt_options(keys: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, text in keys.items():
        if key == "precision_mode":
            if text not in _PRECISIONS:
                raise ModelLoadError(f"The TensorRT precision_mode {text!r} is unknown: use FP32, FP16 or INT8.")
            options.update(_PRECISIONS[text])
        elif key in _TENSORRT_KEYS:
            options[_TENSORRT_NAMES.get(key, key)] = str(checked(keys, key, _TENSORRT_KEYS[key], ""))
        else:
            raise ModelLoadError(f"The TensorRT accelerator has no parameter {key!r}.")
    return options


@dataclass(frozen=True, kw_only=True)
class OpenVinoAccelerator:
    """The execution accelerator ``openvino``: the package of that name runs the model, in place of ONNX Runtime."""

    precision: str
    """``"fp32"`` or ``"bf16"``."""
    threads: int
    """0 if the configuration does not say."""


def openvino_accelerator(config: ModelConfig) -> OpenVinoAccelerator | None:
    """Return OpenVINO if it is configured, by default in fp32, where OpenVINO itself prefers bf16 on many CPUs.

    The C++ backend takes no parameters for this accelerator and runs in fp32. Raises ``ModelLoadError`` for any other
    accelerator, key or value.
    """
    found = None
    for accelerator in _accelerators(config, "cpu"):
        if accelerator["name"] != "openvino":
            raise ModelLoadError(
                f"The CPU execution accelerator {accelerator['name']!r} is unknown: use openvino, or no accelerator."
            )
        keys: Mapping[str, str] = accelerator.get("parameters", {})
        unknown = sorted(keys.keys() - {"precision", "num_threads"})
        if unknown:
            raise ModelLoadError(
                f"The OpenVINO accelerator has no parameter {unknown[0]!r}: use precision or num_threads."
            )
        precision = keys.get("precision", _OPENVINO_PRECISIONS[0])
        if precision not in _OPENVINO_PRECISIONS:
            raise ModelLoadError(f"The OpenVINO precision {precision!r} is unknown: use FP32 or BF16.")
        found = OpenVinoAccelerator(precision=precision.lower(), threads=thread_count(keys, "num_threads"))
    return found

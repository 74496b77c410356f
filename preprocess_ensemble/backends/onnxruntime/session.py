"""Triton's model configuration, translated into an ONNX Runtime session.

The keys are those of NVIDIA's C++ ONNX Runtime backend (r24.10), and so are the refusals, so that one ``config.pbtxt``
serves both. Free ``parameters`` that the C++ backend does not know are ignored here as there; a key of an execution
accelerator that it does not know fails the load.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import onnxruntime

from preprocess_ensemble.error_text import first_line

if TYPE_CHECKING:
    from pathlib import Path

__all__ = (
    "ModelConfig",
    "ModelLoadError",
    "Provider",
    "SessionPlan",
    "model_file",
    "open_session",
    "plan_session",
)

ModelConfig = Mapping[str, Any]
"""A model configuration as Triton passes it, in JSON: the field names of ``model_config.proto``."""


class ModelLoadError(Exception):
    """The model cannot be served as it is configured; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """An execution provider by ONNX Runtime's name; a ``required`` one was asked for by name in the configuration."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """How to open a session: options, providers in order of preference, and entries for the options of each run."""

    options: onnxruntime.SessionOptions
    providers: tuple[Provider, ...]
    run_entries: Mapping[str, str]
    buckets: tuple[int, ...] = ()
    """The only numbers of rows that are run, ascending; empty where any is."""

    @property
    def graphs(self) -> bool:
        """Whether CUDA graphs are asked for, which need fixed shapes and addresses."""
        keys = ((_CUDA, "enable_cuda_graph"), (_TENSORRT, "trt_cuda_graph_enable"))
        asked = (
            provider.options.get(key, "0") for provider in self.providers for name, key in keys if provider.name == name
        )
        return any(_is_on(text) for text in asked)

    @property
    def device(self) -> str:
        """``"cuda"`` where the first provider runs on a GPU, else ``"cpu"``."""
        return "cuda" if self.providers[0].name in (_TENSORRT, _CUDA) else "cpu"


_CPU: Final = "CPUExecutionProvider"
_CUDA: Final = "CUDAExecutionProvider"
_OPENVINO: Final = "OpenVINOExecutionProvider"
_TENSORRT: Final = "TensorrtExecutionProvider"

_GRAPH_LEVELS: Final = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_EXECUTION_MODES: Final = {
    0: onnxruntime.ExecutionMode.ORT_SEQUENTIAL,
    1: onnxruntime.ExecutionMode.ORT_PARALLEL,
}
_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"
_BUCKETS: Final = "batch_buckets"


def _switch(text: str) -> str:
    """Check a boolean as Triton reads one; returns ``"1"`` or ``"0"``."""
    if text.lower() in ("1", "true", "on"):
        return "1"
    if text.lower() in ("0", "false", "off"):
        return "0"
    raise ValueError("a boolean (true, false, on, off, 1 or 0)")


def _boolean(text: str) -> str:
    """Check a boolean that an execution provider reads, which does not know ``on`` and ``off``."""
    if text.lower() in ("on", "off"):
        raise ValueError("a boolean (true, false, 1 or 0)")
    return _switch(text)


def _is_on(text: str) -> bool:
    """A boolean as ONNX Runtime's providers read one."""
    return text.lower() in ("1", "true")


def _integer(text: str) -> str:
    try:
        return str(int(text))
    except ValueError:
        raise ValueError("an integer") from None


def _int(text: str) -> str:
    """Check a number that Triton keeps in a C++ ``int``."""
    if not -(2**31) <= int(_integer(text)) < 2**31:
        raise ValueError("an integer of 32 bits")
    return _integer(text)


def _one_of(*values: str) -> Callable[[str], str]:
    """Check a number that stands for the value at that position."""

    def check(text: str) -> str:
        if text not in map(str, range(len(values))):
            raise ValueError(f"a number from 0 to {len(values) - 1}")
        return values[int(text)]

    return check


_TENSORRT_KEYS: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "max_workspace_size_bytes": ("trt_max_workspace_size", _integer),
    "int8_calibration_table_name": ("trt_int8_calibration_table_name", str),
    "int8_use_native_calibration_table": ("trt_int8_use_native_calibration_table", _boolean),
    **{
        key: (key, check)
        for check, keys in (
            (
                _boolean,
                (
                    "trt_build_heuristics_enable",
                    "trt_context_memory_sharing_enable",
                    "trt_cuda_graph_enable",
                    "trt_detailed_build_log",
                    "trt_dla_enable",
                    "trt_dump_ep_context_model",
                    "trt_dump_subgraphs",
                    "trt_engine_cache_enable",
                    "trt_force_sequential_engine_build",
                    "trt_force_timing_cache",
                    "trt_layer_norm_fp32_fallback",
                    "trt_sparsity_enable",
                    "trt_timing_cache_enable",
                ),
            ),
            (
                _int,
                (
                    "trt_auxiliary_streams",
                    "trt_builder_optimization_level",
                    "trt_dla_core",
                    "trt_ep_context_embed_mode",
                    "trt_max_partition_iterations",
                    "trt_min_subgraph_size",
                ),
            ),
            (
                str,
                (
                    "trt_engine_cache_path",
                    "trt_engine_cache_prefix",
                    "trt_ep_context_file_path",
                    "trt_extra_plugin_lib_paths",
                    "trt_profile_max_shapes",
                    "trt_profile_min_shapes",
                    "trt_profile_opt_shapes",
                    "trt_tactic_sources",
                    "trt_timing_cache_path",
                ),
            ),
        )
        for key in keys
    },
}
"""Triton's key for the TensorRT accelerator -> ONNX Runtime's key, and the check of its value."""

_PRECISIONS: Final = {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "INT8": {"trt_int8_enable": "1"}}

_OPENVINO_PRECISIONS: Final = {"FP32": "f32", "BF16": "bf16"}
"""BF16 is fast on CPUs with avx512_bf16 or amx_bf16, and slow on others."""

_CUDA_PARAMETERS: Final[Mapping[str, Callable[[str], str]]] = {
    "cudnn_conv_algo_search": _one_of("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "gpu_mem_limit": _integer,
    "arena_extend_strategy": _one_of("kNextPowerOfTwo", "kSameAsRequested"),
    "do_copy_in_default_stream": _boolean,
}
"""The model's own ``parameters`` that the C++ backend hands to the CUDA provider."""


def plan_session(config: ModelConfig, *, kind: str, device_id: int) -> SessionPlan:
    """Translate ``config`` for an instance that Triton placed on ``kind`` (``"CPU"`` or ``"GPU"``) ``device_id``.

    Raises ``ModelLoadError`` for what the C++ backend refuses, and for the few things that a process of its own for
    each instance cannot do.
    """
    parameters = _string_parameters(config)
    options = onnxruntime.SessionOptions()
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    options.graph_optimization_level = _GRAPH_LEVELS.get(level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    mode = int(_checked(parameters, "execution_mode", _one_of("0", "1"), "0"))
    options.execution_mode = _EXECUTION_MODES[mode]
    threads = max(0, int(_checked(parameters, "intra_op_thread_count", _int, "0")))
    options.intra_op_num_threads = threads or _threads_of_a_pinned_process()
    options.inter_op_num_threads = max(0, int(_checked(parameters, "inter_op_thread_count", _int, "0")))
    options.enable_cpu_mem_arena = _checked(parameters, "enable_mem_arena", _switch, "1") == "1"
    options.enable_mem_pattern = _checked(parameters, "enable_mem_pattern", _switch, "1") == "1"
    for library in config.get("model_operations", {}).get("op_library_filename", ()):
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # ONNX Runtime's exceptions share no public base class.
            raise ModelLoadError(f"The operator library {library} cannot be loaded: {first_line(error)}.") from error

    run_entries = {_SHRINKAGE: parameters[_SHRINKAGE]} if _SHRINKAGE in parameters else {}
    gpu = _gpu_providers(config, parameters, device_id) if kind == "GPU" else ()
    plan = SessionPlan(
        options=options, providers=(*gpu, *_cpu_providers(config), Provider(name=_CPU)), run_entries=run_entries
    )
    return replace(plan, buckets=_buckets(parameters, int(config.get("max_batch_size", 0)), graphs=plan.graphs))


def _buckets(parameters: Mapping[str, str], most: int, *, graphs: bool) -> tuple[int, ...]:
    """Numbers of rows to run: the parameter ``batch_buckets``, or powers of two where CUDA graphs are on.

    The largest batch is always one of them. The parameter is this backend's own; the C++ backend ignores it.
    """
    if _BUCKETS not in parameters:
        return (*(2**power for power in range(most.bit_length()) if 2**power < most), most) if graphs and most else ()
    try:
        sizes = {int(text) for text in parameters[_BUCKETS].split(",")}
    except ValueError:
        sizes = {0}
    if not most or min(sizes) < 1 or max(sizes) > most:
        raise ModelLoadError(
            f"The parameter {_BUCKETS} must be numbers from 1 to max_batch_size ({most}) with commas between, "
            f"not {parameters[_BUCKETS]!r}."
        )
    return tuple(sorted({*sizes, most}))


def _threads_of_a_pinned_process() -> int:
    """The number of cores of a process that may not use all; else 0, which leaves the choice to ONNX Runtime.

    Its own choice is a thread on each of the machine's cores, pinned there, whatever the process was confined to.
    """
    usable = len(os.sched_getaffinity(0))
    return usable if usable < (os.cpu_count() or usable) else 0


def _string_parameters(config: ModelConfig) -> dict[str, str]:
    return {key: value["string_value"] for key, value in config.get("parameters", {}).items()}


def _checked(parameters: Mapping[str, str], key: str, check: Callable[[str], str], default: str) -> str:
    if key not in parameters:
        return default
    try:
        return check(parameters[key])
    except ValueError as error:
        raise ModelLoadError(f"The parameter {key} must be {error}, not {parameters[key]!r}.") from None


def _accelerators(config: ModelConfig, device: str) -> list[Mapping[str, Any]]:
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    return list(accelerators.get(f"{device}_execution_accelerator", ()))


def _gpu_providers(config: ModelConfig, parameters: Mapping[str, str], device_id: int) -> tuple[Provider, ...]:
    device = {"device_id": str(device_id)}
    cuda = {key: _checked(parameters, key, check, "") for key, check in _CUDA_PARAMETERS.items() if key in parameters}
    cuda_required = False
    tensorrt: list[Provider] = []
    for accelerator in _accelerators(config, "gpu"):
        keys: Mapping[str, str] = accelerator.get("parameters", {})
        match accelerator["name"]:
            case "tensorrt":
                options = {**_tensorrt_options(keys), **device}
                tensorrt.append(Provider(name=_TENSORRT, options=options, required=True))
            case "cuda":
                cuda = {**keys, **cuda}
                cuda_required = True
            case name:
                raise ModelLoadError(f"The GPU execution accelerator {name!r} is unknown: use tensorrt or cuda.")
    return (*tensorrt, Provider(name=_CUDA, options={**cuda, **device}, required=cuda_required))


def _tensorrt_options(keys: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, text in keys.items():
        if key == "precision_mode":
            if text not in _PRECISIONS:
                raise ModelLoadError(f"The TensorRT precision_mode {text!r} is unknown: use FP32, FP16 or INT8.")
            options.update(_PRECISIONS[text])
        elif key in _TENSORRT_KEYS:
            name, check = _TENSORRT_KEYS[key]
            options[name] = _checked(keys, key, check, "")
        else:
            raise ModelLoadError(f"The TensorRT accelerator has no parameter {key!r}.")
    return options


def _cpu_providers(config: ModelConfig) -> tuple[Provider, ...]:
    providers = []
    for accelerator in _accelerators(config, "cpu"):
        if accelerator["name"] != "openvino":
            raise ModelLoadError(
                f"The CPU execution accelerator {accelerator['name']!r} is unknown: use openvino, or none."
            )
        options = {"device_type": "CPU", **_openvino_options(accelerator.get("parameters", {}))}
        providers.append(Provider(name=_OPENVINO, options=options, required=True))
    return tuple(providers)


def _openvino_options(keys: Mapping[str, str]) -> dict[str, str]:
    """OpenVINO's own choice is bf16 where the CPU has it; here fp32 is the rule, and other precisions are asked for.

    The C++ backend takes no parameters for this accelerator and runs in fp32.
    """
    unknown = sorted(keys.keys() - {"precision", "num_threads"})
    if unknown:
        raise ModelLoadError(f"The OpenVINO accelerator has no parameter {unknown[0]!r}: use precision or num_threads.")
    precision = keys.get("precision", "FP32")
    if precision not in _OPENVINO_PRECISIONS:
        raise ModelLoadError(f"The OpenVINO precision {precision!r} is unknown: use FP32 or BF16.")
    hints: dict[str, str | int] = {"INFERENCE_PRECISION_HINT": _OPENVINO_PRECISIONS[precision]}
    if "num_threads" in keys:
        hints["INFERENCE_NUM_THREADS"] = int(_checked(keys, "num_threads", _int, ""))
    # OpenVINO's provider takes the JSON text itself, or the path of a file of it.
    return {"load_config": json.dumps({"CPU": hints})}


def model_file(config: ModelConfig, *, model_directory: Path, version: str) -> Path:
    """Path of the ONNX file; a folder of that name holds it as ``model.onnx``, as with the C++ backend."""
    file = model_directory / version / (config.get("default_model_filename") or "model.onnx")
    return file / "model.onnx" if file.is_dir() else file


def open_session(file: Path, plan: SessionPlan) -> onnxruntime.InferenceSession:
    """Load the ONNX file by the plan.

    A GPU that nobody asked for by name may be missing, for KIND_AUTO means the GPU *if* it can be used; a provider
    that the configuration names must be there. Raises ``ModelLoadError``.
    """
    remedy = f"run `clip-export --repository {_repository_of(file)}`"
    if not file.is_file():
        raise ModelLoadError(f"There is no model file {file}: {remedy}.")
    available = onnxruntime.get_available_providers()
    for provider in plan.providers:
        if provider.required and provider.name not in available:
            raise ModelLoadError(
                f"The configuration asks for {provider.name}, but the installed ONNX Runtime has only "
                f"{', '.join(available)}: install the build that has it, or take the accelerator out of config.pbtxt."
            )
    providers = [(provider.name, dict(provider.options)) for provider in plan.providers if provider.name in available]
    _load_gpu_libraries({name for name, _ in providers})
    if plan.graphs:
        remedy = "take enable_cuda_graph out of config.pbtxt if CUDA graphs are the reason"
    try:
        session = onnxruntime.InferenceSession(file, plan.options, providers=providers)
    except Exception as error:  # ONNX Runtime's exceptions share no public base class.
        raise ModelLoadError(f"ONNX Runtime cannot load {file} ({first_line(error)}): {remedy}.") from error
    for provider in plan.providers:
        # A provider that fails to start is dropped by ONNX Runtime with no more than a line in its log.
        if provider.required and provider.name not in session.get_providers():
            raise ModelLoadError(f"{provider.name}, which the configuration asks for, did not start: see the log.")
    return session


def _load_gpu_libraries(providers: set[str]) -> None:
    """Load CUDA, cuDNN and TensorRT from their pip packages, where they are; ONNX Runtime looks in system folders only.

    What is not there may still be found by the linker; a provider that finds it nowhere does not start.
    """
    if not providers & {_CUDA, _TENSORRT}:
        return
    # Of ONNX Runtime 1.21. It prints what it misses, and standard output may be a protocol's.
    if preload := getattr(onnxruntime, "preload_dlls", None):
        with contextlib.redirect_stdout(sys.stderr):
            preload()
    if _TENSORRT in providers:
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module("tensorrt_libs")


def _repository_of(file: Path) -> Path:
    """DIR of ``DIR/<model>/<version>/<file>``."""
    return file.parents[2] if len(file.parents) > 2 else file.parent

"""Triton's model configuration, translated into a plan for an ONNX Runtime session.

The keys are those of NVIDIA's C++ ONNX Runtime backend (r24.10), and so are the refusals, so that one ``config.pbtxt``
serves both. ``precision`` and ``batch_buckets`` are parameters of this backend alone. Both backends ignore parameters
that they do not know; in both, an unknown key of an execution accelerator fails the load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import onnxruntime

from preprocess_ensemble.backends.onnxruntime.model_config import (
    ModelConfig,
    ModelLoadError,
    checked,
    one_of,
    switch,
    thread_count,
)
from preprocess_ensemble.backends.onnxruntime.providers import (
    TENSORRT,
    OpenVinoAccelerator,
    Provider,
    gpu_providers,
    openvino_accelerator,
)
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.runtimes.onnx_session import CPU, CUDA, session_options
from preprocess_ensemble.runtimes.precision import (
    Precision,
    PrecisionUnknown,
    parse_precision,
    precision_of_environment,
)

_GRAPH_LEVELS: Final = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_EXECUTION_MODES: Final = ("ORT_SEQUENTIAL", "ORT_PARALLEL")
_GRAPH_KEYS: Final = {CUDA: "enable_cuda_graph", TENSORRT: "trt_cuda_graph_enable"}
_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"
_BUCKETS: Final = "batch_buckets"


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """How to open a session: its options, providers in order of preference, and entries for the options of each run."""

    options: onnxruntime.SessionOptions
    providers: tuple[Provider, ...]
    run_entries: Mapping[str, str]
    buckets: tuple[int, ...]
    """The only numbers of rows to run, ascending; empty if any number may be run."""
    precision: Precision
    openvino: OpenVinoAccelerator | None
    graphs: bool
    """Whether the configuration asks for CUDA graphs, which need fixed shapes and addresses."""

    @property
    def device(self) -> str:
        """``"cuda"`` if the first provider runs on a GPU, else ``"cpu"``."""
        return "cuda" if self.providers[0].name in (TENSORRT, CUDA) else "cpu"


def plan_session(config: ModelConfig, *, kind: str, device_id: int) -> SessionPlan:
    """Translate ``config`` for an instance that Triton placed on ``kind`` (``"CPU"`` or ``"GPU"``) ``device_id``.

    Raises ``ModelLoadError`` for what the C++ backend refuses, and for the few things that only instances in
    one process can share.
    """
    parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
    options = session_options(thread_count(parameters, "intra_op_thread_count"))
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    options.graph_optimization_level = _GRAPH_LEVELS.get(level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    mode = checked(parameters, "execution_mode", one_of(*_EXECUTION_MODES), _EXECUTION_MODES[0])
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    options.inter_op_num_threads = thread_count(parameters, "inter_op_thread_count")
    options.enable_cpu_mem_arena = checked(parameters, "enable_mem_arena", switch, True)
    options.enable_mem_pattern = checked(parameters, "enable_mem_pattern", switch, True)
    for library in config.get("model_operations", {}).get("op_library_filename", ()):
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # ONNX Runtime's exceptions share no public base class.
            raise ModelLoadError(f"The operator library {library} cannot be loaded: {first_line(error)}.") from error

    precision, openvino = _precision(parameters), openvino_accelerator(config)
    if openvino is not None and precision != "auto":
        raise ModelLoadError(
            f"The configuration asks for the accelerator openvino, and also for the precision {precision}: "
            "take one of the two out of config.pbtxt, or give the precision to the accelerator."
        )
    gpu = gpu_providers(config, parameters, device_id) if kind == "GPU" else ()
    asked = (provider.options.get(_GRAPH_KEYS[provider.name], "0") for provider in gpu)
    graphs = any(text.lower() in ("1", "true") for text in asked)  # as ONNX Runtime reads them
    return SessionPlan(
        options=options,
        providers=(*gpu, Provider(name=CPU)),
        run_entries={_SHRINKAGE: parameters[_SHRINKAGE]} if _SHRINKAGE in parameters else {},
        buckets=_buckets(parameters, int(config.get("max_batch_size", 0)), graphs=graphs),
        precision=precision,
        openvino=openvino,
        graphs=graphs,
    )


def _precision(parameters: Mapping[str, str]) -> Precision:
    """Return the precision of the environment, or else of the parameter ``precision``, this backend's own."""
    try:
        demanded = precision_of_environment()
    except PrecisionUnknown as error:
        raise ModelLoadError(str(error)) from None
    if demanded is not None:
        return demanded
    return checked(parameters, "precision", parse_precision, "auto")


def _buckets(parameters: Mapping[str, str], most: int, *, graphs: bool) -> tuple[int, ...]:
    """Return the numbers of rows to run: the parameter ``batch_buckets``, or powers of two if CUDA graphs are on.

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
            f"The parameter {_BUCKETS} must be numbers from 1 to max_batch_size ({most}), separated by commas, "
            f"not {parameters[_BUCKETS]!r}."
        )
    return tuple(sorted({*sizes, most}))

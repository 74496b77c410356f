"""Open sessions of ONNX Runtime; only this module does. Every other runtime must agree with their vectors."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.cores import model_threads
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.runtimes.model import OpenModel, RuntimeUnusable

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"


def load_gpu_libraries(providers: Collection[str]) -> None:
    """Load CUDA, cuDNN and TensorRT from their pip packages; ONNX Runtime itself searches only system folders.

    If a package is missing, the linker may still find its libraries; otherwise the provider does not start.
    """
    import onnxruntime

    if CUDA not in providers and TENSORRT not in providers:
        return
    # The function is new in ONNX Runtime 1.21. It prints missing libraries, and standard output may carry a protocol.
    if preload := getattr(onnxruntime, "preload_dlls", None):
        with contextlib.redirect_stdout(sys.stderr):
            preload()
    if TENSORRT in providers:
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module("tensorrt_libs")


def session_options(threads: int | None = None, *, weights_dtype: str = "fp32") -> SessionOptions:
    """Return options for ``threads`` (default: :func:`model_threads`) and the ``weights_dtype`` of the export."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or model_threads()
    if weights_dtype == "fp16":
        # With full optimisation, ONNX Runtime 1.31 and 1.32 crash on such a model on a CPU; config.pbtxt says the same.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return options


def open_session(
    model: Path | bytes,
    options: SessionOptions | None = None,
    providers: Sequence[str | tuple[str, Mapping[str, str]]] = (CPU,),
) -> InferenceSession:
    """Open a model, by its file or its bytes, on the first of ``providers`` that starts. Raises RuntimeUnusable."""
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(model, options or session_options(), providers=list(providers))
    except Exception as error:  # ONNX Runtime's exceptions share no public base class.
        name = model if isinstance(model, Path) else "the model"
        raise RuntimeUnusable(f"ONNX Runtime cannot load {name} ({first_line(error)})") from error


def open_model(session: InferenceSession, passport: Passport | None) -> OpenModel:
    """Describe an open session. The precision is empty on a GPU, which computes in its own (TF32, fp16)."""
    import onnxruntime

    provider = session.get_providers()[0]
    runtime = f"ONNX Runtime {onnxruntime.__version__}" + ("" if provider == CPU else f" with {provider}")
    compute_precision = passport.weights_dtype if passport is not None and provider == CPU else ""
    return OpenModel(session=session, runtime=runtime, compute_precision=compute_precision)

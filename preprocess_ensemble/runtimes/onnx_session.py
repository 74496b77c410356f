"""Opens sessions of ONNX Runtime: the only place that does. With their vectors every other runtime must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.cores import model_threads, usable_cores
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.runtimes.model import Candidate, LoadFailed, OpenModel, RuntimeUnusable

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

    from preprocess_ensemble.model_repository.passport import Passport

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"

_COREML: Final = "CoreMLExecutionProvider"
_COREML_PROVIDERS: Final = ((_COREML, {"ModelFormat": "MLProgram"}), CPU)
"""The CPU runs what CoreML does not take. MLProgram keeps fp32 where the older format rounds to fp16."""


def session_options(threads: int | None = None) -> SessionOptions:
    """Return ONNX Runtime's own options with a number of ``threads``; by default as many as the model should have."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or model_threads()
    return options


def open_session(
    model: Path | bytes,
    options: SessionOptions | None = None,
    providers: Sequence[str | tuple[str, Mapping[str, str]]] = (CPU,),
) -> InferenceSession:
    """Open a model, by its file or its bytes, on the first of ``providers`` that starts.

    Raises LoadFailed.
    """
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(model, options or session_options(), providers=list(providers))
    except Exception as error:  # ONNX Runtime's exceptions share no public base class.
        name = model if isinstance(model, Path) else "the model"
        raise LoadFailed(f"ONNX Runtime cannot load {name} ({first_line(error)})") from error


def open_model(session: InferenceSession, passport: Passport | None) -> OpenModel:
    """Describe an open session; ``passport`` is that of its model, None if it has none.

    A GPU computes in a precision of its own (TF32, fp16), so none is named for it.
    """
    import onnxruntime

    provider = session.get_providers()[0]
    runtime = f"ONNX Runtime {onnxruntime.__version__}"
    if provider != CPU:
        return OpenModel(session=session, runtime=f"{runtime} with {provider}", precision="")
    options = session.get_session_options()
    threads = options.intra_op_num_threads or "default"
    return OpenModel(
        session=session,
        runtime=runtime,
        precision="" if passport is None else passport.precision,
        settings=f"{usable_cores()} cores, {threads} threads, {options.graph_optimization_level.name}, "
        f"{options.execution_mode.name}",
    )


def coreml(file: Path) -> Candidate:
    """Return CoreML, the neural engine of Macs, for the model ``file``. Not tested on a Mac: the check decides."""

    def open_coreml() -> OpenModel:
        import onnxruntime

        if _COREML not in onnxruntime.get_available_providers():
            raise RuntimeUnusable("the installed ONNX Runtime does not have it")
        session = open_session(file, providers=_COREML_PROVIDERS)
        return OpenModel(session=session, runtime=f"ONNX Runtime {onnxruntime.__version__} with CoreML", precision="")

    return Candidate(runtime="CoreML", precision="", open=open_coreml)

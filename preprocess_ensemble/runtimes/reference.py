"""ONNX Runtime, with whose vectors every other runtime must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preprocess_ensemble.cores import usable_cores
from preprocess_ensemble.runtimes.model import OpenModel

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from preprocess_ensemble.model_repository.passport import Passport

_CPU: Final = "CPUExecutionProvider"


def reference_model(session: InferenceSession, passport: Passport | None) -> OpenModel:
    """Describe an open session; ``passport`` is that of its model, None if it has none.

    A GPU computes in a precision of its own (TF32, fp16), so none is named for it.
    """
    import onnxruntime

    provider = session.get_providers()[0]
    runtime = f"ONNX Runtime {onnxruntime.__version__}"
    if provider != _CPU:
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

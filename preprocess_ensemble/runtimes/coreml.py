"""CoreML, the neural engine of Macs, through ONNX Runtime. Not tested on a Mac; the check at load decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from preprocess_ensemble.errors import first_line
from preprocess_ensemble.runtimes.model import LoadFailed, OpenModel, RuntimeUnusable, Session
from preprocess_ensemble.runtimes.selection import Candidate

PROVIDER: Final = "CoreMLExecutionProvider"

_PROVIDERS: Final = ((PROVIDER, {"ModelFormat": "MLProgram"}), "CPUExecutionProvider")
"""The CPU runs what CoreML does not take. MLProgram keeps fp32 where the older format rounds to fp16."""


def coreml(file: Path, *, available: Sequence[str], open_session: Callable[..., Session] | None = None) -> Candidate:
    """Return CoreML for the model ``file``.

    ``available`` are the providers of the installed ONNX Runtime. ``open_session`` replaces its class
    ``InferenceSession``, for tests.
    """

    def open_model() -> OpenModel:
        import onnxruntime

        if PROVIDER not in available:
            raise RuntimeUnusable("the installed ONNX Runtime does not have it")
        try:
            session = (open_session or onnxruntime.InferenceSession)(file, providers=_PROVIDERS)
        except Exception as error:  # ONNX Runtime's exceptions share no public base class.
            raise LoadFailed(f"it cannot load the model ({first_line(error)})") from error
        return OpenModel(session=session, runtime=f"ONNX Runtime {onnxruntime.__version__} with CoreML", precision="")

    return Candidate(runtime="CoreML", precision="", version="", open=open_model)

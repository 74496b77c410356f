"""What may run a model in place of ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final

from preprocess_ensemble.runtimes.model import OpenModel, RuntimeUnusable
from preprocess_ensemble.runtimes.onnx_session import CPU, open_session
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from preprocess_ensemble.runtimes.processor import has_bf16

_COREML: Final = "CoreMLExecutionProvider"
_COREML_PROVIDERS: Final = ((_COREML, {"ModelFormat": "MLProgram"}), CPU)
"""The CPU runs what CoreML does not take. MLProgram keeps fp32 where the older format rounds to fp16."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A runtime that may take the place of the reference."""

    runtime: str
    precision: str
    """``"fp32"`` or ``"bf16"``; empty if the runtime decides."""
    version: str
    """Of the installed runtime; empty if it is that of ONNX Runtime, or if none is installed."""
    open: Callable[[], OpenModel]
    """Raises RuntimeUnusable if it cannot be used here."""

    @property
    def name(self) -> str:
        """Such as ``"OpenVINO bf16"``."""
        return f"{self.runtime} {self.precision}".strip()


def openvino_candidates(file: Path, *, threads: int) -> tuple[Candidate, Candidate]:
    """Return OpenVINO in bf16 and in fp32 for the model ``file``; ``threads`` as in :func:`open_openvino`."""
    version = ""
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version("openvino")

    def open_in(precision: str) -> OpenModel:
        # First, because importing OpenVINO takes half a second.
        if precision == "bf16" and not has_bf16():
            raise RuntimeUnusable("this processor has neither avx512_bf16 nor amx_bf16")
        return open_openvino(file, precision=precision, threads=threads)

    bf16, fp32 = (
        Candidate(runtime="OpenVINO", precision=precision, version=version, open=partial(open_in, precision))
        for precision in ("bf16", "fp32")
    )
    return bf16, fp32


def coreml(file: Path) -> Candidate:
    """Return CoreML, the neural engine of Macs, for the model ``file``. Not tested on a Mac: the check decides."""

    def open_model() -> OpenModel:
        import onnxruntime

        if _COREML not in onnxruntime.get_available_providers():
            raise RuntimeUnusable("the installed ONNX Runtime does not have it")
        session = open_session(file, providers=_COREML_PROVIDERS)
        return OpenModel(session=session, runtime=f"ONNX Runtime {onnxruntime.__version__} with CoreML", precision="")

    return Candidate(runtime="CoreML", precision="", version="", open=open_model)

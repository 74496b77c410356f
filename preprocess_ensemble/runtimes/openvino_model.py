"""The adapter of the package ``openvino``: it reads the same ``model.onnx`` as ONNX Runtime."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from preprocess_ensemble.errors import first_line
from preprocess_ensemble.runtimes.model import OpenModel, RuntimeUnusable

if TYPE_CHECKING:
    import numpy.typing as npt

_HINTS: Final = {"fp32": "f32", "bf16": "bf16"}  # precision -> OpenVINO's name for it


class OpenVinoSession:
    """A compiled model, with the calls of ``onnxruntime.InferenceSession``."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def run(
        self, output_names: Sequence[str], input_feed: Mapping[str, npt.NDArray[Any]], run_options: Any = None, /
    ) -> list[npt.NDArray[Any]]:
        results = self._compiled(dict(input_feed))
        return [results[name] for name in output_names]


def open_openvino(file: Path, compute_precision: str, *, threads: int = 0) -> OpenModel:
    """Compile ``file`` for this processor in ``compute_precision`` (``"fp32"`` or ``"bf16"``).

    With 0 ``threads`` OpenVINO takes the cores that this process may use, and prefers performance cores on a hybrid
    processor. Raises RuntimeUnusable if the package is missing, if it cannot compile the model, or if it would compute
    in another precision on this processor.
    """
    # Hide this package: with it, the import of openvino reports itself to Google Analytics.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise RuntimeUnusable(f"the package openvino cannot be imported ({first_line(error)})") from None
    # LATENCY runs one batch at a time on all cores. The default would run several at once, which only share the cores.
    options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": _HINTS[compute_precision], "PERFORMANCE_HINT": "LATENCY"}
    if threads:
        options["INFERENCE_NUM_THREADS"] = threads
    try:
        compiled = openvino.Core().compile_model(file, "CPU", options)
        computes_in = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    except Exception as error:  # OpenVINO raises RuntimeError and other types; the cause is in the last line.
        reason = str(error).strip().rpartition("\n")[2].rstrip(". ")
        raise RuntimeUnusable(f"OpenVINO cannot load the model ({reason or type(error).__name__})") from error
    if computes_in != _HINTS[compute_precision]:
        raise RuntimeUnusable(
            f"OpenVINO computes in {computes_in} on this processor, not in {_HINTS[compute_precision]}"
        )
    version = str(openvino.__version__).partition("-")[0]
    return OpenModel(
        session=OpenVinoSession(compiled), runtime=f"OpenVINO {version}", compute_precision=compute_precision
    )

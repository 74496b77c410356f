"""An open model, and its runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    import numpy.typing as npt


class RuntimeUnusable(ReportedError):
    """A runtime or a precision cannot be used here, or cannot load the model; the message is one sentence."""


class Session(Protocol):
    """Runs a model; ``onnxruntime.InferenceSession`` is one. Call it from one thread at a time."""

    def run(
        self, output_names: Sequence[str], input_feed: Mapping[str, npt.NDArray[Any]], run_options: Any = None, /
    ) -> Sequence[npt.NDArray[Any]]:
        """Return the named outputs, in order. Only ONNX Runtime reads ``run_options``. Raises the runtime's errors."""


@dataclass(frozen=True, kw_only=True)
class OpenModel:
    session: Session
    runtime: str  # name and version, such as ``"ONNX Runtime 1.31.1"``
    compute_precision: str
    """``"fp32"``, ``"bf16"``, or the precision of the exported weights, ``"fp16"`` or ``"int8"``; empty if unknown."""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.runtime, self.compute_precision)))

"""An open model, its runtime, and the setting ``precision`` that limits the choice of the runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from preprocess_ensemble.contract import PRECISIONS, Precision
from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    import numpy.typing as npt

PRECISION_VARIABLE: Final = "CLIP_PRECISION"
"""Variable that overrides a model's configuration in a server; ``local:`` reads it without a setting."""


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


def parse_precision(text: str) -> Precision:
    if text not in PRECISIONS:
        raise ValueError(" or ".join(PRECISIONS))
    return text


def precision_of_environment() -> Precision | None:
    """Return the precision in ``CLIP_PRECISION``; None if that is not set or empty. Raises RuntimeUnusable."""
    text = os.environ.get(PRECISION_VARIABLE)
    try:
        return parse_precision(text) if text else None
    except ValueError as error:
        raise RuntimeUnusable(f"The environment variable {PRECISION_VARIABLE} must be {error}, not {text!r}.") from None

"""An open model, and what runs it."""

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
        """Return the outputs of these names, in their order. Raises what the runtime raises.

        ``run_options`` are an ``onnxruntime.RunOptions``, which other runtimes ignore.
        """


@dataclass(frozen=True, kw_only=True)
class OpenModel:
    """A session, and what runs it."""

    session: Session
    runtime: str
    """Such as ``"ONNX Runtime 1.31.1"``."""
    compute_precision: str
    """``"fp32"``, ``"bf16"``, or that of the exported weights: ``"fp16"`` or ``"int8"``. Empty if it is not known."""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.runtime, self.compute_precision)))

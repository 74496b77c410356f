"""An open model, and what may run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    import numpy.typing as npt


class RuntimeUnusable(ReportedError):
    """A runtime or a precision that was asked for cannot be used here; the message is one sentence."""


class LoadFailed(RuntimeUnusable):
    """A runtime is installed, but did not load the model; it may succeed another time, with more memory for example."""


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
    precision: str
    """``"fp32"``, ``"bf16"``, or that of the exported weights: ``"fp16"`` or ``"int8"``. Empty if it is not known."""
    settings: str = ""
    """What else decides its speed, such as its number of threads; empty if nothing is compared with it."""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.runtime, self.precision)))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A runtime that may run a model in place of ONNX Runtime on the CPU."""

    runtime: str
    precision: str
    """``"fp32"`` or ``"bf16"``; empty if the runtime decides."""
    version: str = ""
    """Of the installed runtime; empty if it is that of ONNX Runtime, or if none is installed."""
    open: Callable[[], OpenModel]
    """Raises RuntimeUnusable if it cannot be used here."""

    @property
    def name(self) -> str:
        """Such as ``"OpenVINO bf16"``."""
        return f"{self.runtime} {self.precision}".strip()

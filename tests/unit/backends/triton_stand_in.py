"""A stand-in for the module with which Triton's Python backend speaks to a model."""

from __future__ import annotations

import importlib
import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest


class TritonModelException(Exception):
    pass


@dataclass
class Tensor:
    tensor_name: str
    array: npt.NDArray[Any]

    def as_numpy(self) -> npt.NDArray[Any]:
        return self.array


@dataclass
class TritonError:
    text: str
    code: int
    INVALID_ARG = 3


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return next(tensor.array for tensor in self.output_tensors if tensor.tensor_name == name)

    @property
    def names(self) -> set[str]:
        return {tensor.tensor_name for tensor in self.output_tensors}


@dataclass
class Request:
    inputs: list[Tensor]
    outputs: tuple[str, ...]

    def request_id(self) -> str:
        return "a-request"

    def requested_output_names(self) -> list[str]:
        return list(self.outputs)


class Logger:
    errors: ClassVar[list[str]] = []
    infos: ClassVar[list[str]] = []
    log_error = errors.append
    log_info = log_warn = infos.append


class MetricFamily:
    COUNTER = "counter"
    counts: ClassVar[Counter[tuple[str, ...]]] = Counter()

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        assert description
        assert kind == self.COUNTER
        self.name = name

    def Metric(self, *, labels: dict[str, str]) -> Metric:
        return Metric((self.name, *labels.values()))


@dataclass
class Metric:
    key: tuple[str, ...]

    def increment(self, value: float) -> None:
        MetricFamily.counts[self.key] += int(value)


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs if tensor.tensor_name == name), None)


@contextmanager
def imported_beside(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[types.ModuleType]:
    """Import the adapter ``name`` with the stand-in in place of Triton's module, with nothing logged or counted."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", sys.modules[__name__])
    for kept in (Logger.errors, Logger.infos, MetricFamily.counts):
        kept.clear()
    adapters = (name, "preprocess_ensemble.backends.rows")
    for adapter in adapters:
        sys.modules.pop(adapter, None)
    yield importlib.import_module(name)
    for adapter in adapters:
        sys.modules.pop(adapter, None)


def request_of(name: str, rows: tuple[bytes, ...], outputs: tuple[str, ...]) -> Request:
    column = np.empty((len(rows), 1), dtype=np.object_)
    column[:, 0] = rows
    return Request([Tensor(name, column)], outputs)


@contextmanager
def initialized(module: types.ModuleType, arguments: dict[str, str]) -> Iterator[Any]:
    model = module.TritonPythonModel()
    model.initialize(arguments)
    yield model
    model.finalize()


def run_model_file(folder: Path) -> Any:
    """Run a model's ``model.py`` as Triton's Python backend does, and return its class."""
    path = folder / "1" / "model.py"
    namespace: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
    return namespace["TritonPythonModel"]


def load_error(module: types.ModuleType, arguments: dict[str, str]) -> str:
    with pytest.raises(TritonModelException) as caught:
        module.TritonPythonModel().initialize(arguments)
    return str(caught.value)

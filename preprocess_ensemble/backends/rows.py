"""The common parts of the models that Python runs: a file or text per row, their answers, metrics and passport."""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from preprocess_ensemble.contract import ERROR, STATUS
from preprocess_ensemble.errors import Outcome, ReportedError
from preprocess_ensemble.model_repository.passport import PassportError

Outputs = Mapping[str, npt.NDArray[Any]]  # name of a tensor -> its rows

Increments = Counter[tuple[str, tuple[tuple[str, str], ...]]]
"""(name of a counter, names and values of its labels) -> number that a batch adds to it."""


class RowsRequest(NamedTuple):
    """The content of one request; a malformed request has no rows."""

    id: str  # name that the client gave it, for log lines
    requested: frozenset[str] = frozenset()
    rows: Sequence[bytes] = ()
    problem: str = ""  # one sentence for the client about a malformed request


class RowsModel(ABC):
    """Triton's Python backend calls ``initialize`` once, ``execute`` for each batch of requests, then ``finalize``."""

    input: ClassVar[str]  # name, (N, 1) BYTES
    row: ClassVar[str]  # such as "text"
    requests_metric: ClassVar[str]
    rows_metric: ClassVar[str]
    metrics: ClassVar[Mapping[str, str]]  # name of each counter -> its description

    def initialize(self, args: Mapping[str, str]) -> None:
        restrict_own_regions()
        config = json.loads(args["model_config"])
        self.name: str = config["name"]
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        folder = Path(args["model_repository"])
        try:
            self.load(config, parameters, folder, folder / args["model_version"])
        except (ReportedError, ValueError) as error:
            raise pb_utils.TritonModelException(f"{self.name}: {error}") from None
        self._families: dict[str, Any] = {}
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        family = pb_utils.MetricFamily
        try:
            for metric, description in self.metrics.items():
                self._families[metric] = family(name=metric, description=description, kind=family.COUNTER)
        except pb_utils.TritonModelException as error:
            self._families = {}
            pb_utils.Logger.log_warn(
                f"{self.name}: running without its own metrics, because Triton refused them: {error}"
            )

    @abstractmethod
    def load(self, config: Mapping[str, Any], parameters: Mapping[str, str], folder: Path, version: Path) -> None:
        """Load the parts that the ``config`` of the model in ``folder`` names. Raises ReportedError and ValueError."""

    @abstractmethod
    def answer(self, requests: Sequence[RowsRequest], increments: Increments) -> Iterator[Outputs]:
        """Yield the outputs for each request, in order; add the counts of the work to ``increments``."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        parsed = [parse(request, self.input, self.row) for request in requests]
        increments = Increments()
        answers = self.answer(parsed, increments)
        responses = [respond(request, outputs) for request, outputs in zip(parsed, answers, strict=True)]
        # Each counter needs a message to the server's process, so it gets one for a whole batch.
        for key, count in increments.items() if self._families else ():
            if key not in self._counters:
                name, labels = key
                self._counters[key] = self._families[name].Metric(labels=dict(labels))
            self._counters[key].increment(count)
        return responses

    def finalize(self) -> None:
        """Release the metrics, which belong to the server's process, while the server still listens."""
        self._counters.clear()
        self._families = {}

    def described(self, request: RowsRequest, outcomes: Sequence[Outcome], increments: Increments) -> Outputs:
        """Return the outputs status and error for the rows of one request; count the rows, and log internal errors."""
        increments[self.requests_metric, (("rows", size_class(len(outcomes))),)] += 1
        for number, outcome in enumerate(outcomes):
            increments[self.rows_metric, (("status", outcome.status.name),)] += 1
            if outcome.log:
                row = f"{self.input.capitalize()} {number} of request {request.id}"
                pb_utils.Logger.log_error(f"{row} failed with an internal error.\n{outcome.log}")
        return {
            STATUS: np.array([[outcome.status] for outcome in outcomes], dtype=np.int32),
            ERROR: text_column([outcome.message for outcome in outcomes]),
        }


def parse(request: Any, name: str, what: str) -> RowsRequest:
    """Read the input ``name`` of Triton's ``request``; ``what`` is the kind of a row, such as "text"."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    expected = f"a BYTES tensor of shape [N, 1], one {what} per row."
    if tensor is None:
        return RowsRequest(request.request_id(), problem=f"The request lacks the input {name}: {expected}")
    rows: npt.NDArray[np.object_] = tensor.as_numpy()
    if rows.dtype != np.object_ or rows.ndim != 2 or rows.shape[1] != 1:
        found = f"shape {list(rows.shape)} and type {rows.dtype}"
        return RowsRequest(request.request_id(), problem=f"The input {name} has {found}; it must be {expected}")
    return RowsRequest(request.request_id(), frozenset(request.requested_output_names()), rows[:, 0].tolist())


def respond(request: RowsRequest, outputs: Outputs) -> Any:
    if request.problem:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(request.problem, pb_utils.TritonError.INVALID_ARG))
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor(name, array) for name, array in outputs.items() if name in request.requested]
    )


def text_column(texts: Sequence[str]) -> npt.NDArray[np.object_]:
    """Return an output of one text per row, (N, 1) BYTES."""
    column = np.empty((len(texts), 1), dtype=np.object_)
    column[:, 0] = [text.encode() for text in texts]
    return column


def read_passport(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read ({type(error).__name__})"
        if isinstance(error, FileNotFoundError):
            problem = "is missing; run clip-export with this repository and the model's own --name to make it"
        raise PassportError(f"the model's passport, model.json, {problem}") from None


def check_dims(config: Mapping[str, Any], name: str, expected: Sequence[int]) -> None:
    """Raise ValueError if Triton's ``config`` has other dims for the output ``name`` than the exported model needs."""
    for output in config["output"]:
        dims = [int(side) for side in output["dims"]]
        if output["name"] == name and dims != [*expected]:
            raise ValueError(
                f"config.pbtxt says dims {dims} for the output {name} and the exported model needs {[*expected]}; "
                "run clip-export again with this repository and the model's own --name, --model and --pretrained"
            )


def size_class(rows: int) -> str:
    """Return the label of the range that contains ``rows``: 1, 2-4, 5-8, 9-16, ..."""
    if rows <= 4:
        return "2-4" if rows > 1 else str(rows)
    most = 1 << (rows - 1).bit_length()
    return f"{most // 2 + 1}-{most}"


def restrict_own_regions() -> None:
    """Make the regions in ``/dev/shm`` that this process has mapped readable only for its user.

    Triton's Python backend makes its regions, which hold the images of clients, readable for every user of the machine.
    A model calls this in ``initialize``, in the process that serves it, before its first request and after each
    restart. A region that grows stays the same file.
    """
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in mapped if " /dev/shm/" in line}:
        with contextlib.suppress(FileNotFoundError, PermissionError):  # already removed, or another user's
            os.chmod(path, 0o600)

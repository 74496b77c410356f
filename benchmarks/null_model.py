"""A model that keeps the wire contract and does no work: what is left is the server and its clients.

Runs inside Triton (``null_repository`` copies it there). Every image has the same vector, after ``seconds_per_image``
of sleep, so the capacity of the server is known and does not depend on how busy the cores are.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TritonPythonModel:
    """Serves each of the contract's models; which outputs it makes, the request says."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the passport beside this file, and the settings."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._seconds_per_image = float(parameters["seconds_per_image"]["string_value"])
        text = (Path(args["model_repository"]) / args["model_version"] / "model.json").read_text()
        passport = json.loads(text)
        row: dict[str, tuple[Any, type]] = {
            "embedding": (passport["canary"]["vector"], np.float32),
            "status": ([0], np.int32),
            "error": ([b""], np.object_),
            "fingerprint": (passport["fingerprint"], np.int32),
            "model": ([text.encode()], np.object_),
        }
        self._rows: dict[str, Any] = {name: np.array([values], dtype=dtype) for name, (values, dtype) in row.items()}

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer all requests at once, after the time that their images take."""
        counts = [pb_utils.get_input_tensor_by_name(request, "image").shape()[0] for request in requests]
        if self._seconds_per_image:
            time.sleep(sum(counts) * self._seconds_per_image)
        return [self._answer(request, count) for request, count in zip(requests, counts, strict=True)]

    def _answer(self, request: Any, count: int) -> Any:
        names = request.requested_output_names()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.repeat(self._rows[name], count, axis=0)) for name in names]
        )

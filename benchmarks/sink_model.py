"""A Triton model that does nothing with its input but count it, so that only the transport is measured.

Copied into a repository as ``1/model.py``; ``benchmarks.serialisation`` writes its configuration.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers each row with a checksum, so that a payload that was lost or changed on its way is noticed."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return ``sum`` (N, 1): of all elements of a numeric row, or of all bytes of a file."""
        return [self._answer(pb_utils.get_input_tensor_by_name(request, "payload").as_numpy()) for request in requests]

    @staticmethod
    def _answer(rows: np.ndarray[Any, Any]) -> Any:
        sums = [
            float(
                np.frombuffer(row.item(), np.uint8).sum(dtype=np.float64)
                if rows.dtype == object
                else row.sum(dtype=np.float64)
            )
            for row in rows
        ]
        return pb_utils.InferenceResponse([pb_utils.Tensor("sum", np.array(sums, np.float64)[:, None])])

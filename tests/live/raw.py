"""Triton as any other client sees it: one blocking inference with tritonclient, without this package."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as triton


def infer(
    url: str, model: str, items: Sequence[bytes], *, outputs: Sequence[str], tensor: str = "image"
) -> dict[str, npt.NDArray[Any]]:
    """Send encoded images, or the rows of another input ``tensor``, and return the outputs by name."""
    rows = np.array(items, dtype=object).reshape(-1, 1)
    given = triton.InferInput(tensor, list(rows.shape), "BYTES")
    given.set_data_from_numpy(rows)
    with triton.InferenceServerClient(url) as client:
        wanted = [triton.InferRequestedOutput(name) for name in outputs]
        answer = client.infer(model, [given], outputs=wanted, client_timeout=60)
    return {name: answer.as_numpy(name) for name in outputs}

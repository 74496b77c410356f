"""Triton as any other client sees it: one blocking inference with tritonclient, without this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tritonclient.grpc as triton

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


def infer(url: str, model: str, images: Sequence[bytes], *, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Send encoded images, one per row, and return the outputs by name."""
    rows = np.array(images, dtype=object).reshape(-1, 1)
    image = triton.InferInput("image", list(rows.shape), "BYTES")
    image.set_data_from_numpy(rows)
    with triton.InferenceServerClient(url) as client:
        wanted = [triton.InferRequestedOutput(name) for name in outputs]
        answer = client.infer(model, [image], outputs=wanted)
    return {name: answer.as_numpy(name) for name in outputs}

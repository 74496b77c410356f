"""What the two models that Python runs have in common: requests of one file or text per row, and the passport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from preprocess_ensemble.model_repository.passport import PassportError

if TYPE_CHECKING:
    import numpy.typing as npt


class RowsRequest(NamedTuple):
    """What one request asks for; a malformed one asks for nothing."""

    id: str
    """The client's own, which its error messages repeat."""
    requested: frozenset[str] = frozenset()
    rows: Sequence[bytes] = ()
    problem: str = ""
    """What is wrong with a malformed request, in one sentence for the client."""


def parse(request: Any, name: str, tensor: Any, what: str) -> RowsRequest:
    """Read Triton's ``request``, whose input ``name`` is ``tensor``, None if it has none. ``what`` a row is: "text"."""
    if tensor is None:
        problem = f"The request lacks the input {name}: a BYTES tensor of shape [N, 1], one {what} per row."
        return RowsRequest(request.request_id(), problem=problem)
    rows: npt.NDArray[np.object_] = tensor.as_numpy()
    if rows.dtype != np.object_ or rows.ndim != 2 or rows.shape[1] != 1:
        problem = (
            f"The input {name} has shape {list(rows.shape)} and type {rows.dtype}; "
            f"it must be a BYTES tensor of shape [N, 1], one {what} per row."
        )
        return RowsRequest(request.request_id(), problem=problem)
    return RowsRequest(request.request_id(), frozenset(request.requested_output_names()), rows[:, 0].tolist())


def text_column(texts: Sequence[str]) -> npt.NDArray[np.object_]:
    """Return an output of one text per row, (N, 1) BYTES."""
    column = np.empty((len(texts), 1), dtype=np.object_)
    column[:, 0] = [text.encode() for text in texts]
    return column


def read_passport(path: Path) -> str:
    """Return the text of model.json. Raises PassportError."""
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        raise PassportError(
            "the model's passport, model.json, is missing; run clip-export with this repository to make the model"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PassportError(f"the model's passport, model.json, cannot be read ({type(error).__name__})") from None


def check_dims(config: Mapping[str, Any], name: str, expected: Sequence[int]) -> None:
    """Raise ValueError if Triton's ``config`` has other dims for the output ``name`` than the exported model needs."""
    for output in config["output"]:
        dims = [int(side) for side in output["dims"]]
        if output["name"] == name and dims != [*expected]:
            raise ValueError(
                f"config.pbtxt says dims {dims} for the output {name} and the exported model needs {[*expected]}; "
                "run clip-export with this repository again to update it"
            )

"""Select the runtime of a model: the fastest for this processor by a table, if its vectors agree with fp32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from preprocess_ensemble.contract import Precision
from preprocess_ensemble.errors import ReportedError, first_line
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.runtimes.agreement import lowest_cosine
from preprocess_ensemble.runtimes.model import OpenModel, RuntimeUnusable
from preprocess_ensemble.runtimes.processor import ONNX_RUNTIME, Processor, row_of


@dataclass(frozen=True, kw_only=True)
class Selection:
    model: OpenModel
    reason: str  # clauses, such as ``"fp32 was asked for"``
    disagrees: bool = False  # a runtime computed other vectors than the reference, or failed

    def __str__(self) -> str:
        return f"{self.model} ({self.reason})"


def select(
    reference: OpenModel,
    passport: Passport | None,
    compute_precision: Precision,
    open_openvino: Callable[[str], OpenModel],
    *,
    tokenizer: Path | None = None,
    processor: Processor | None = None,
) -> Selection:
    """Return the runtime for the model of ``passport``: ``reference``, or that of ``open_openvino``.

    The model is the image tower, or the text tower if ``tokenizer`` is the folder of the tokenizer's files;
    ``passport`` is None for a model that is not CLIP. ``open_openvino`` takes ``"fp32"`` or ``"bf16"`` and raises
    RuntimeUnusable. ``"fp32"`` means the reference, and ``"auto"`` the runtime that the table names for ``processor``
    (default: this machine's), if it can be used and agrees with the reference.
    """
    if passport is None or reference.compute_precision != "fp32":
        return Selection(model=reference, reason="other precisions need an fp32 export with a passport, on a CPU")
    if compute_precision == "fp32":
        return Selection(model=reference, reason="fp32 was asked for")
    row = row_of(processor or Processor.here())
    if row is None:
        return Selection(model=reference, reason="no other runtime was measured on such a processor")
    wanted = row.images if tokenizer is None else row.texts
    if wanted == ONNX_RUNTIME:
        return Selection(model=reference, reason=f"the fastest on {row.processors}")
    try:
        model = open_openvino(wanted.rpartition(" ")[2])
        cosine = lowest_cosine(model.session, reference.session, passport, tokenizer)
    except Exception as error:  # OpenVINO's exceptions share no base class.
        reason = str(error) if isinstance(error, ReportedError) else f"it cannot run the model ({first_line(error)})"
        disagrees = not isinstance(error, RuntimeUnusable)
        return Selection(model=reference, reason=f"not on {wanted}: {reason}", disagrees=disagrees)
    reason = f"cosine to fp32 on this processor at least {cosine:.6f}; the fastest on {row.processors}"
    return Selection(model=model, reason=reason)

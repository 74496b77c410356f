"""Chooses what runs the model: the fastest precision whose vectors agree with fp32 on this very processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from preprocess_ensemble.errors import ReportedError, first_line
from preprocess_ensemble.runtimes.agreement import check_agreement
from preprocess_ensemble.runtimes.model import OpenModel, RuntimeUnusable
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from preprocess_ensemble.runtimes.processor import has_fast_bf16

if TYPE_CHECKING:
    from preprocess_ensemble.model_repository.passport import Passport
    from preprocess_ensemble.runtimes.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A runtime that may take the place of the reference."""

    precision: str
    open: Callable[[], OpenModel]
    """Raises RuntimeUnusable if it cannot be used here."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What runs the model, and why."""

    model: OpenModel
    reason: str
    """One clause, such as ``"bf16: this processor has neither avx512_bf16 nor amx_bf16"``."""
    disagrees: bool = False
    """Whether a runtime was opened and computed other vectors than the reference."""

    def __str__(self) -> str:
        return f"{self.model} ({self.reason})"


def openvino_bf16(file: Path, *, threads: int, is_fast: Callable[[], bool] = has_fast_bf16) -> Candidate:
    """Return OpenVINO in bf16 for the model ``file``; ``threads`` as in :func:`open_openvino`."""

    def open_model() -> OpenModel:
        # First, because importing OpenVINO takes half a second.
        if not is_fast():
            raise RuntimeUnusable("this processor has neither avx512_bf16 nor amx_bf16")
        return open_openvino(file, precision="bf16", threads=threads)

    return Candidate(precision="bf16", open=open_model)


def select(
    reference: OpenModel, passport: Passport | None, precision: Precision, candidates: Sequence[Candidate]
) -> Selection:
    """Return the first of ``candidates`` that ``precision`` allows and that agrees with ``reference``, or the latter.

    ``passport`` is None for a model that is not CLIP, which cannot be checked. Raises RuntimeUnusable if ``precision``
    is ``"bf16"`` and that cannot be used.
    """
    disagrees = False
    reasons = []
    if passport is None or reference.precision != "fp32":
        reasons.append("only fp32 exports with a passport, on a CPU, have another precision")
        candidates = ()
    elif precision == "fp32":
        return Selection(model=reference, reason="fp32 was asked for")
    for candidate in candidates:
        if precision not in ("auto", candidate.precision):
            continue
        assert passport is not None
        try:
            model = candidate.open()
            cosine = check_agreement(model.session, reference.session, passport)
        except ReportedError as error:
            disagrees = disagrees or not isinstance(error, RuntimeUnusable)
            reasons.append(f"{candidate.precision}: {error}")
        except Exception as error:  # The runtimes' exceptions share no base class.
            disagrees = True
            reasons.append(f"{candidate.precision}: it cannot run the model ({first_line(error)})")
        else:
            return Selection(model=model, reason=f"cosine to fp32 on this processor at least {cosine:.6f}")
    reason = "; ".join(reasons) or "nothing else runs here"
    if precision == "bf16":
        raise RuntimeUnusable(f"the model cannot run in {precision} ({reason})")
    return Selection(model=reference, reason=reason, disagrees=disagrees)

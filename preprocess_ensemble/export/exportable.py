"""A model that is ready to be exported: the base class of both ways to write its graphs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preprocess_ensemble.export.model_source import ModelSource
from preprocess_ensemble.export.state_dict import StateDict, weights_sha256
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.runtimes.agreement import Rows
from preprocess_ensemble.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    fingerprint: tuple[int, int]
    weights_dtype: str
    has_data_file: bool
    report: Callable[[str], None]  # gets one line before each step that takes time


@dataclass(frozen=True, kw_only=True)
class BuiltGraph:
    """A graph that has been written, and the vectors to compare it with."""

    files: list[Path]  # the separate file of the weights, if any, then the model
    expected: npt.NDArray[np.float32] | None
    """Unit vectors (M, D) for the first M rows, PyTorch's for these weights if ``other_weights`` is None."""
    other_weights: float | None = None  # least cosine to PyTorch that the same graph reached with other weights


@dataclass(kw_only=True, eq=False)
class ExportableModel(ABC):
    """A model with weights, ready to be written as graphs. ``image_bytes`` and ``text_bytes`` are sizes in fp32."""

    source: ModelSource
    config: PreprocessConfig
    text_config: Mapping[str, Any]
    state: InitVar[StateDict]
    image_bytes: int
    text_bytes: int

    def __post_init__(self, state: StateDict) -> None:
        self.weights_sha256 = weights_sha256(state)
        # Each is a single number, or a vector with one number; see TextTower of the passport.
        self.logit_scale = math.exp(state["logit_scale"].item())
        self.logit_bias: float | None = state["logit_bias"].item() if "logit_bias" in state else None

    @property
    @abstractmethod
    def token_kinds(self) -> tuple[int, int, int]:
        """Arguments of ``sample_tokens``: length of the context, size of the vocabulary, id of the padding."""

    @abstractmethod
    def build(self, rows: Rows, stage: Path, options: GraphOptions) -> BuiltGraph:
        """Write the graph for ``rows`` (samples, then the canary) into ``stage``, images first. Raises ExportError."""

    def check_tokenizer(self, tokenizer: Tokenizer, report: Callable[[str], None]) -> None:
        """Raise ExportError if open_clip, where it is installed, has other token ids than ``tokenizer``."""
        return


def is_pixels(rows: Rows) -> bool:
    """Whether rows are pixels, (N, H, W, 3), and not token ids, (N, L)."""
    return rows.ndim == 4

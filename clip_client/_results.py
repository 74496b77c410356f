"""The results of embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from clip_client._errors import ImageError, ImageErrors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client._image_source import ImageSource
    from clip_client._model import ModelInfo


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EmbeddedItem:
    """One result of a stream: either ``vector`` or ``error`` is set."""

    index: int
    """Position in the source, from 0."""
    source: ImageSource = field(repr=False)
    """The object that the source gave."""
    vector: NDArray[np.float32] | None = field(repr=False)
    """Shape (D,), float32, length 1."""
    error: ImageError | None
    """Why there is no vector."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EmbeddingBatch:
    """The vectors of one call, in input order."""

    vectors: NDArray[np.float32] = field(repr=False)
    """Shape (N, D), float32; unit rows. The row of an image that failed is NaN, so no comparison finds it similar."""
    errors: Mapping[int, ImageError]
    """Index -> why that image has no vector; empty if none failed."""
    model_id: str
    """The model that made the vectors."""
    vector_id: str
    """Model, preprocessing and transfer in one text: compare only vectors with the same id."""

    def __len__(self) -> int:
        return len(self.vectors)

    def raise_for_errors(self) -> None:
        """Raise the ImageError if one image failed, ImageErrors if several did, else do nothing."""
        if len(self.errors) == 1:
            raise next(iter(self.errors.values()))
        if self.errors:
            raise ImageErrors(self.errors)


class Collector:
    """Collects the results of a stream, in any order, into one batch."""

    def __init__(self, dimension: int, *, expected: int | None) -> None:
        # Doubled as needed if the number is unknown: one large copy at the end would block the event loop.
        self._matrix = np.full((1024 if expected is None else expected, dimension), np.nan, dtype=np.float32)
        self._errors: dict[int, ImageError] = {}
        self._count = 0

    def add(self, index: int, result: NDArray[np.float32] | ImageError) -> None:
        """Copy the result of one image; call this once for each index."""
        self._count += 1
        if index >= len(self._matrix):
            more = np.full((max(index + 1, 2 * len(self._matrix)), self._matrix.shape[1]), np.nan, np.float32)
            more[: len(self._matrix)] = self._matrix
            self._matrix = more
        if isinstance(result, ImageError):
            self._errors[index] = result
        else:
            self._matrix[index] = result

    def batch(self, model: ModelInfo) -> EmbeddingBatch:
        """Return all results that were added."""
        return EmbeddingBatch(
            vectors=self._matrix[: self._count],
            errors=dict(sorted(self._errors.items())),
            model_id=model.id,
            vector_id=model.vector_id,
        )

"""What embedding gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clip_client._errors import ImageError, ImageErrors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from clip_client._images import ImageSource


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EmbeddedItem:
    """One result of a stream: either ``vector`` or ``error`` is set."""

    index: int
    """Position in the source, from 0."""
    source: ImageSource = field(repr=False)
    """The very object that the source gave."""
    vector: NDArray[np.float32] | None = field(repr=False)
    """Shape (D,), float32, length 1; read-only."""
    error: ImageError | None
    """Why there is no vector."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EmbeddingBatch:
    """The vectors of one call, in input order."""

    vectors: NDArray[np.float32] = field(repr=False)
    """Shape (N, D), float32; unit rows. The row of an image that failed is NaN, so it is near to nothing."""
    errors: Mapping[int, ImageError]
    """Index -> why that image has no vector; empty where all went well."""
    model_id: str
    """Which model made the vectors."""
    vector_id: str
    """Model, preprocessing and transfer in one text: compare only vectors that have it in common."""

    def __len__(self) -> int:
        return len(self.vectors)

    def raise_for_errors(self) -> None:
        """Raise the ImageError where one image failed, ImageErrors where several did, else do nothing."""
        if len(self.errors) == 1:
            raise next(iter(self.errors.values()))
        if self.errors:
            raise ImageErrors(self.errors)

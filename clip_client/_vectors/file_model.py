"""The model that made the vectors of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from clip_client._errors import VectorsError


class VectorModel(Protocol):
    """What a file says about the model of its vectors; a :class:`clip_client.ModelInfo` is one."""

    @property
    def id(self) -> str:
        """Architecture, weights and the start of their SHA-256."""

    @property
    def vector_id(self) -> str:
        """Model, preprocessing and transfer."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""


class FileModel(NamedTuple):
    """A :class:`VectorModel` as read from a file."""

    id: str
    vector_id: str
    dimension: int

    @classmethod
    def of(cls, path: object, metadata: Mapping[bytes, bytes]) -> FileModel:
        """Read the metadata of the Parquet file ``path``; raise VectorsError if it lacks the model."""
        try:
            return cls(metadata[b"model"].decode(), metadata[b"vector_id"].decode(), int(metadata[b"dimension"]))
        except (KeyError, ValueError):
            raise VectorsError(
                f"{path} does not name the model of its vectors: neither save_vectors nor clip-client embed wrote it"
            ) from None

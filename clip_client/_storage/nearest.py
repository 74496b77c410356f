"""Find the vectors that are nearest to a query by comparing it with every vector."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, Union, overload

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import VectorsError
from clip_client._model import may_be_compared
from clip_client._results import EmbeddingBatch
from clip_client._storage.vectors import stored_batches

_BLOCK_ROWS: Final = 8192  # rows compared at a time: 16 MB with 512 numbers each

SearchedVectors: TypeAlias = Union["NDArray[Any]", EmbeddingBatch, str, "os.PathLike[str]"]
"""An array (N, D), a batch, or the path of a file or folder of vectors."""


class Neighbour(NamedTuple):
    """A vector near a query."""

    path: str | None
    """Path of the photo; None if unknown."""
    cosine: float
    """Similarity to the query: 1 for the same direction, 0 for unrelated vectors."""
    row: int
    """Row among the searched vectors, from 0."""


@overload
def nearest(query: EmbeddingBatch, vectors: SearchedVectors, k: int = 10) -> list[list[Neighbour]]: ...
@overload
def nearest(query: NDArray[Any], vectors: SearchedVectors, k: int = 10) -> list[Neighbour]: ...
def nearest(
    query: EmbeddingBatch | NDArray[Any], vectors: SearchedVectors, k: int = 10
) -> list[list[Neighbour]] | list[Neighbour]:
    """Find the ``k`` vectors with the greatest cosine similarity to a query, exactly.

    ``query`` is one vector (D,), or a batch. For a batch the result has a list for each image; the list of a failed
    image is empty. ``vectors`` is an array (N, D), a batch from ``embed`` or ``load_vectors``, or the path of the
    output of ``clip-client embed``, which is read in parts. Vectors need not have length 1; rows of NaN or zeros are
    skipped. If the query is among the vectors, it is its own nearest neighbour.

    Raises VectorsError if query and vectors have different ids or dimensions, or if a file cannot be read (see
    ``load_vectors``). Raises ValueError for other shapes, a query without direction, or a ``k`` below 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if isinstance(query, EmbeddingBatch):
        return _nearest(query.vectors, query.vector_id, vectors, k)
    query = np.asarray(query, dtype=np.float32)
    if query.ndim != 1:
        raise ValueError(f"a query must be one vector (D,) or an EmbeddingBatch, got an array {query.shape}")
    if not np.linalg.norm(query) > 0:
        raise ValueError("the query is NaN or zero: its image failed, or it is not an embedding")
    return _nearest(query[None], None, vectors, k)[0]


def _nearest(queries: NDArray[Any], own_id: str | None, vectors: SearchedVectors, k: int) -> list[list[Neighbour]]:
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = np.asarray(queries / np.linalg.norm(queries, axis=1, keepdims=True), dtype=np.float32)
    holder = f"{os.fspath(vectors)} holds" if isinstance(vectors, str | os.PathLike) else "these are"
    nearest_to: list[list[Neighbour]] = [[] for _ in queries]
    first_row = 0
    for part, paths, vector_id in _parts(vectors):
        if vector_id is not None and own_id is not None and not may_be_compared(vector_id, own_id):
            raise VectorsError(
                f"{holder} vectors of {vector_id}, which must not be compared with those of {own_id}; use the "
                "same model and transfer"
            )
        if part.shape[1] != unit.shape[1]:
            raise VectorsError(f"the query has {unit.shape[1]} numbers and the vectors have {part.shape[1]}")
        part = np.asarray(part, dtype=np.float32)
        norms = np.sqrt(np.einsum("nd,nd->n", part, part))
        rows = np.flatnonzero(norms > 0)  # not NaN, either
        comparable = part[rows] if len(rows) < len(part) else part
        for best, cosines in zip(nearest_to, unit @ comparable.T / norms[rows], strict=True):
            floor = best[-1].cosine if len(best) == k else -np.inf
            places = np.flatnonzero(cosines >= floor)  # few after the first parts; none for a query of NaN
            for place in places[np.argsort(-cosines[places], kind="stable")[:k]].tolist():
                row = int(rows[place])
                best.append(Neighbour(paths[row] if paths else None, float(cosines[place]), first_row + row))
            best.sort(key=lambda found: (-found.cosine, os.fsencode(found.path or ""), found.row))
            del best[k:]
        first_row += len(part)
    return nearest_to


def _parts(vectors: SearchedVectors) -> Iterator[tuple[NDArray[Any], Sequence[str | None], str | None]]:
    """Yield (vectors, their paths, their id) in parts of bounded size; paths are empty and the id None if unknown."""
    if isinstance(vectors, str | os.PathLike):
        for part in stored_batches(vectors):
            yield part.vectors, part.sources, part.vector_id
        return
    if isinstance(vectors, EmbeddingBatch):
        array, paths, vector_id = vectors.vectors, vectors.sources, vectors.vector_id
    else:
        array, paths, vector_id = np.asarray(vectors), (), None
    if array.ndim != 2:
        raise ValueError(f"the vectors to search must have the shape (N, D), got {array.shape}")
    for start in range(0, len(array), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        yield array[block], paths[block], vector_id

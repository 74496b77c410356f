"""Finds the vectors that are nearest to a query, by comparing it with every one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, Union, overload

import numpy as np

from clip_client._errors import VectorsError
from clip_client._model import may_be_compared
from clip_client._results import EmbeddingBatch
from clip_client._vectors.files import stored_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK_ROWS: Final = 8192
"""Of an array: 16 MB with 512 numbers each."""

SearchedVectors: TypeAlias = Union["NDArray[Any]", EmbeddingBatch, str, "os.PathLike[str]"]
"""An array (N, D), a batch, or the path of a file or folder of vectors."""


class Neighbour(NamedTuple):
    """One of the vectors nearest to a query."""

    path: str | None
    """Of the photo; None if it is not known."""
    cosine: float
    """Similarity to the query: 1 for the same direction, 0 for unrelated ones."""
    row: int
    """Place among the vectors that were searched, from 0."""


class Nearest:
    """The ``k`` vectors nearest to each of the queries (M, D); any number of vectors can be added."""

    def __init__(self, queries: NDArray[Any], k: int, *, vector_id: str | None = None) -> None:
        """Take queries of any length; ``vector_id`` is theirs, None if it is not known."""
        norms = np.linalg.norm(queries, axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._queries = np.asarray(queries / norms, dtype=np.float32)
        self.best: list[list[Neighbour]] = [[] for _ in queries]
        """Of each query, nearest first; equal ones in the order of their paths. Empty for a query of NaN or zeros."""
        self.compared = 0
        """Vectors so far, without those of NaN or zeros."""
        self._vector_id = vector_id
        self._k = k
        self._added = 0

    def add(self, vectors: NDArray[Any], paths: Sequence[str | None] | None = None) -> None:
        """Compare vectors (n, D) of any length; ``paths`` are those of their photos."""
        vectors = np.asarray(vectors, dtype=np.float32)
        norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
        rows = np.flatnonzero(norms > 0)  # not NaN, either
        self.compared += len(rows)
        comparable = vectors[rows] if len(rows) < len(vectors) else vectors
        for best, of_query in zip(self.best, self._queries @ comparable.T / norms[rows], strict=True):
            floor = best[-1].cosine if len(best) == self._k else -np.inf
            places = np.flatnonzero(of_query >= floor)  # few after the first vectors; none for a query of NaN
            for place in places[np.argsort(-of_query[places], kind="stable")[: self._k]].tolist():
                row = int(rows[place])
                path = None if paths is None else paths[row]
                best.append(Neighbour(path, float(of_query[place]), self._added + row))
            best.sort(key=lambda found: (-found.cosine, os.fsencode(found.path or ""), found.row))
            del best[self._k :]
        self._added += len(vectors)

    def add_all(self, vectors: SearchedVectors) -> None:
        """Compare vectors, in parts; raise VectorsError if they must not or cannot be compared, or read."""
        dimension = self._queries.shape[1]
        holder = f"{os.fspath(vectors)} holds" if isinstance(vectors, str | os.PathLike) else "these are"
        for part, paths, vector_id in _parts(vectors):
            own = self._vector_id
            if vector_id is not None and own is not None and not may_be_compared(vector_id, own):
                raise VectorsError(
                    f"{holder} vectors of {vector_id}, which must not be compared with those of {own}; use the "
                    "same model and transfer"
                )
            if part.shape[1] != dimension:
                raise VectorsError(f"the query has {dimension} numbers and the vectors have {part.shape[1]}")
            self.add(part, paths)


@overload
def nearest(query: EmbeddingBatch, vectors: SearchedVectors, k: int = 10) -> list[list[Neighbour]]: ...
@overload
def nearest(query: NDArray[Any], vectors: SearchedVectors, k: int = 10) -> list[Neighbour]: ...
def nearest(
    query: EmbeddingBatch | NDArray[Any], vectors: SearchedVectors, k: int = 10
) -> list[list[Neighbour]] | list[Neighbour]:
    """Find the ``k`` vectors with the greatest cosine similarity to a query, exactly.

    ``query`` is one vector (D,), or a batch; for a batch there is a list for each image, empty for one that failed.
    ``vectors`` is an array (N, D), a batch, as from ``embed`` and ``load_vectors``, or the path of what
    ``clip-client embed`` wrote, which is read in parts. Vectors need not have length 1; rows of NaN or zeros are
    skipped. If the query is among the vectors, it is its own nearest neighbour.

    Raises VectorsError if query and vectors have different ids or dimensions, or if a file cannot be read (see
    ``load_vectors``), and ValueError for other shapes, a query without direction, or a ``k`` below 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if isinstance(query, EmbeddingBatch):
        batch = Nearest(query.vectors, k, vector_id=query.vector_id)
        batch.add_all(vectors)
        return batch.best
    query = np.asarray(query, dtype=np.float32)
    if query.ndim != 1:
        raise ValueError(f"a query is one vector (D,) or an EmbeddingBatch, got an array {query.shape}")
    if not np.linalg.norm(query) > 0:
        raise ValueError("the query is NaN or zero: its image failed, or it is no embedding")
    single = Nearest(query[None], k)
    single.add_all(vectors)
    return single.best[0]


def _parts(vectors: SearchedVectors) -> Iterator[tuple[NDArray[Any], Sequence[str | None] | None, str | None]]:
    """Yield vectors, their paths and their id, in parts of bounded size."""
    if isinstance(vectors, str | os.PathLike):
        for part in stored_batches(vectors):
            yield part.vectors, part.sources, part.vector_id
    elif isinstance(vectors, EmbeddingBatch):
        for block in _blocks(vectors.vectors):
            yield vectors.vectors[block], vectors.sources[block], vectors.vector_id
    else:
        array = np.asarray(vectors)
        for block in _blocks(array):
            yield array[block], None, None


def _blocks(array: NDArray[Any]) -> Iterator[slice]:
    if array.ndim != 2:
        raise ValueError(f"the vectors to search are an array (N, D), got {array.shape}")
    for start in range(0, len(array), _BLOCK_ROWS):
        yield slice(start, start + _BLOCK_ROWS)

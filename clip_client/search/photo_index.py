"""An index of photos by their vectors, with exact search."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import VectorsError, require
from clip_client._results import EmbeddingBatch
from clip_client._storage.vectors import stored_batches
from clip_client.search.segment import KEY, Segment
from preprocess_ensemble.whole_file import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

MOST_IN_SEGMENT: Final = 131_072
"""Most vectors in a segment: 268 MB with 512 numbers each. This limits the cost of adding a photo."""
_ROUNDING: Final = 1e-5
"""Largest error of a cosine in a product of many vectors. It depends on their number, so equal vectors may differ."""
_NOTHING: Final = np.empty(0, dtype=np.float32)
_ABOUT: Final = "index.json"
_FORMAT: Final = 1


class Hit(NamedTuple):
    """One photo that a search found."""

    key: str
    """Path of the photo; in the index of a store, the SHA-256 of its content in hexadecimal."""
    score: float
    """Cosine similarity to the query."""
    row: int
    facts: Mapping[str, Any]


class PhotoIndex:
    """Vectors of one id, each with a key, in memory or memory-mapped.

    A search compares the query with every vector, so its results are those of a full sort.
    """

    def __init__(self, dimension: int, *, vector_id: str = "") -> None:
        """Make an empty index; an empty ``vector_id`` is unknown. Raises ImportError if ``pyarrow`` is missing."""
        require("pyarrow", "dedup")
        self.dimension = dimension
        self.vector_id = vector_id
        self.about: dict[str, Any] = {}
        self.folder: Path | None = None
        self._segments: list[Segment] = []

    @classmethod
    def from_vectors(cls, path: str | os.PathLike[str]) -> Self:
        """Make an index of the output of ``clip-client embed``: a Parquet file, an ``.npz`` file or a folder.

        Photos without a vector, or without a path, are left out. Raises VectorsError, and OSError if the output cannot
        be opened.
        """
        index: Self | None = None
        keys: list[str] = []
        parts: list[NDArray[np.float32]] = []
        for batch in stored_batches(path):
            index = index or cls(batch.vectors.shape[1], vector_id=batch.vector_id)
            named = [place for place, source in enumerate(batch.sources) if source is not None]
            keys += [source for source in batch.sources if source is not None]
            parts.append(batch.vectors[named])
            if len(keys) >= MOST_IN_SEGMENT:
                index.add(keys, np.concatenate(parts))
                keys, parts = [], []
        if index is None:
            raise VectorsError(f"there are no vectors in {os.fspath(path)}")
        if keys:
            index.add(keys, np.concatenate(parts))
        return index

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open a saved index, memory-mapped. Raises FileNotFoundError, and VectorsError if the index is damaged."""
        folder = Path(folder)
        while True:
            text = (folder / _ABOUT).read_text("utf-8")
            try:
                about = json.loads(text)
                index = cls(about["dimension"], vector_id=about["vector_id"])
                index.about, names = about["about"], about["segments"]
                if about["format"] != _FORMAT:
                    raise ValueError(f"its format is {about['format']}")
            except (KeyError, TypeError, ValueError) as error:
                raise VectorsError(f"the index in {folder} is damaged ({error}); remove this folder") from error
            try:
                index._segments = [Segment.open(folder / name) for name in names]
            except FileNotFoundError:
                # Another process may have just merged this segment.
                if (folder / _ABOUT).read_text("utf-8") == text:
                    message = f"the index in {folder} is damaged (a part is missing); remove this folder"
                    raise VectorsError(message) from None
                continue
            index.folder = folder
            return index

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index into ``folder``, creating it if need be. Segments that it has already are not written again.

        A reader sees the old or the new index. Only one process at a time may save into a folder. Raises OSError.
        """
        self.folder = folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        present = {entry.name for entry in os.scandir(folder) if entry.is_dir()}
        for number, segment in enumerate(self._segments):
            if segment.name not in present:
                self._segments[number] = segment.write(folder / uuid.uuid4().hex[:12])
        names = [segment.name for segment in self._segments]
        about = {
            "format": _FORMAT,
            "vector_id": self.vector_id,
            "dimension": self.dimension,
            "segments": names,
            "about": self.about,
        }
        with whole_file(folder / _ABOUT) as file:
            file.write(json.dumps(about).encode())
        for name in present.difference(names):
            with suppress(OSError):  # a reader on Windows has it open; the next save removes it
                shutil.rmtree(folder / name)

    def __len__(self) -> int:
        return sum(map(len, self._segments))

    def keys(self) -> Iterator[str]:
        for segment in self._segments:
            yield from map(os.fsdecode, segment.photos.column(KEY).to_pylist())

    def add(self, keys: Sequence[str], vectors: NDArray[Any], facts: pa.Table | None = None) -> None:
        """Add vectors (N, D) of any length, each with its key; a new vector replaces an earlier one with its key.

        Rows of NaN or zeros are left out. ``facts`` has further columns about the photos. Raises VectorsError for
        another dimension, and ValueError for another number of keys.
        """
        import pyarrow as pa

        vectors = _array(vectors)
        if vectors.ndim != 2 or len(vectors) != len(keys):
            raise ValueError(f"{len(keys)} keys for vectors {vectors.shape}")
        if vectors.shape[1] != self.dimension:
            raise VectorsError(f"the index has vectors of {self.dimension} numbers, and these have {vectors.shape[1]}")
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        last = {key: row for row, key in enumerate(keys)}  # if a key has two rows, the later row counts
        rows = np.array([row for row in last.values() if norms[row] > 0], dtype=np.intp)
        self.remove(keys)
        for start in range(0, len(rows), MOST_IN_SEGMENT):
            some = rows[start : start + MOST_IN_SEGMENT]
            photos = pa.table({KEY: _encoded(keys[row] for row in some)})
            if facts is not None:
                added = facts.take(some)
                for name in added.column_names:
                    photos = photos.append_column(name, added.column(name))
            self._segments.append(Segment(vectors[some] / norms[some], photos))
        self._merge()

    def remove(self, keys: Iterable[str]) -> int:
        """Remove the vectors of ``keys``; return their number. The row numbers of other vectors change."""
        before, wanted = len(self), _encoded(keys)
        for number, segment in enumerate(self._segments):
            stays = ~segment.holding(wanted)
            if not stays.all():
                self._segments[number] = Segment(segment.vectors[stays], segment.photos.filter(stays))
        self._segments = [segment for segment in self._segments if len(segment)]
        return before - len(self)

    def _merge(self) -> None:
        import pyarrow as pa

        while len(self._segments) > 1:
            last = self._segments[-2:]
            if len(last[0]) > 2 * len(last[1]) or sum(map(len, last)) > MOST_IN_SEGMENT:
                return
            photos = pa.concat_tables([segment.photos for segment in last]).unify_dictionaries().combine_chunks()
            self._segments[-2:] = [Segment(np.concatenate([segment.vectors for segment in last]), photos)]

    def column(self, name: str) -> Any:
        """Return a column about the photos, in the order of their rows, as a ``pyarrow.ChunkedArray``."""
        import pyarrow as pa

        parts = [chunk for segment in self._segments for chunk in segment.photos.column(name).chunks]
        return pa.chunked_array(parts, self._segments[0].photos.schema.field(name).type)

    def holding(self, keys: Iterable[str]) -> NDArray[np.bool_]:
        wanted = _encoded(keys)
        return np.concatenate([np.zeros(0, np.bool_), *(segment.holding(wanted) for segment in self._segments)])

    def vector(self, key: str) -> NDArray[np.float32] | None:
        """Return the unit vector (D,) of a key; None for an unknown key."""
        rows = np.flatnonzero(self.holding([key]))
        return self._exact(rows)[0] if len(rows) else None

    def nearest(self, query: NDArray[Any], k: int = 10, *, among: NDArray[np.bool_] | None = None) -> list[Hit]:
        """Return the ``k`` photos with the greatest cosine similarity to ``query``, (D,), the best first.

        ``among`` is a mask of the rows to search: from :meth:`holding`, or from comparing a :meth:`column`. Photos with
        equal similarity are in the order of their rows. Raises ValueError for a query whose norm is 0, infinite or NaN,
        and VectorsError for a query of another dimension.
        """
        direction = self._direction(query)
        cosines = np.concatenate([_NOTHING, *(segment.vectors @ direction for segment in self._segments)])
        rows = np.arange(len(cosines)) if among is None else np.flatnonzero(among)
        if len(rows) > k:
            least = np.partition(cosines[rows], -k)[-k]
            rows = rows[cosines[rows] >= least - _ROUNDING]
        exact = np.einsum("nd,d->n", self._exact(rows), direction)
        order = np.lexsort((rows, -exact))[:k]
        keys, facts = self._photos(rows[order])
        return [Hit(*found) for found in zip(keys, exact[order].tolist(), rows[order].tolist(), facts, strict=True)]

    def _direction(self, query: NDArray[Any]) -> NDArray[np.float32]:
        query = _array(query)
        if query.shape != (self.dimension,):
            raise VectorsError(
                f"the query must be one vector of {self.dimension} numbers, as in the index, but has the shape "
                f"{query.shape}"
            )
        norm = np.linalg.norm(query)
        if not 0 < norm < np.inf:
            raise ValueError(
                "the query is NaN or zero: its image failed, its terms cancel out, or it is not an embedding"
            )
        return cast("NDArray[np.float32]", query / norm)

    def _exact(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        found = np.empty((len(rows), self.dimension), dtype=np.float32)
        for segment, places, of_segment in self._located(rows):
            found[places] = segment.vectors[of_segment]
        return found

    def _photos(self, rows: NDArray[np.intp]) -> tuple[list[str], list[dict[str, Any]]]:
        photos: list[dict[str, Any]] = [{} for _ in rows]
        for segment, places, of_segment in self._located(rows):
            for place, photo in zip(places.tolist(), segment.photos.take(of_segment).to_pylist(), strict=True):
                photos[place] = photo
        return [os.fsdecode(photo.pop(KEY)) for photo in photos], photos

    def _located(self, rows: NDArray[np.intp]) -> Iterator[tuple[Segment, NDArray[np.intp], NDArray[np.intp]]]:
        start = 0
        for segment in self._segments:
            places = np.flatnonzero((rows >= start) & (rows < start + len(segment)))
            if len(places):
                yield segment, places, rows[places] - start
            start += len(segment)


def _array(vectors: NDArray[Any]) -> NDArray[np.float32]:
    if isinstance(vectors, EmbeddingBatch):
        raise TypeError("an index takes arrays: pass batch.vectors to add, and a row of it to nearest")
    return np.asarray(vectors, dtype=np.float32)


def _encoded(keys: Iterable[str]) -> pa.Array:
    import pyarrow as pa

    return pa.array([os.fsencode(key) for key in keys], pa.binary())

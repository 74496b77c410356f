"""An index of photos by their vectors, which is searched exactly."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from clip_client._errors import VectorsError, require
from clip_client._vectors.files import stored_batches
from clip_client.search.segment import KEY, ROUNDING, Segment
from preprocess_ensemble.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

MOST_IN_SEGMENT: Final = 131_072
"""Vectors: 268 MB with 512 numbers each. Larger segments are not merged, so to add one photo never costs more."""
_FEWEST_RANKED: Final = 256
"""Vectors that are ranked again in 32 bits, for a short list of results."""
_ABOUT: Final = "index.json"
_FORMAT: Final = 1


class Hit(NamedTuple):
    """One photo that was found."""

    key: str
    """Its path; in the index of a store, the SHA-256 of its content in hexadecimal."""
    score: float
    """Cosine similarity to the query."""
    row: int
    """Its place in the index."""


class PhotoIndex:
    """Vectors of one id, each with a key, in memory or memory-mapped.

    A search compares the query with every vector in 16 bits, and ranks the best again in 32 bits. It takes as many of
    them as it needs to be sure that no other vector belongs among the results, so these are those of a full sort.
    """

    def __init__(self, dimension: int, *, vector_id: str = "", model_id: str = "") -> None:
        """Make an empty index for vectors of ``dimension`` numbers; an empty id is unknown.

        Raises ImportError if ``faiss`` or ``pyarrow`` is missing.
        """
        for package in ("faiss", "pyarrow"):
            require(package, "clip-triton[dedup]")
        self.dimension = dimension
        self.vector_id = vector_id
        self.model_id = model_id
        self.about: dict[str, Any] = {}
        """More that :meth:`save` writes down: what JSON can hold."""
        self._segments: list[Segment] = []
        self._removed: dict[int, NDArray[np.bool_]] = {}
        """Number of a segment -> which of its rows were removed."""

    @classmethod
    def from_arrays(
        cls, keys: Sequence[str], vectors: NDArray[Any], *, vector_id: str = "", model_id: str = ""
    ) -> Self:
        """Make an index of vectors (N, D), of any length, with the keys of their photos; see :meth:`add`."""
        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.ndim != 2:
            raise ValueError(f"the vectors of an index are an array (N, D), got {vectors.shape}")
        index = cls(vectors.shape[1], vector_id=vector_id, model_id=model_id)
        index.add(keys, vectors)
        return index

    @classmethod
    def from_vectors(cls, path: str | os.PathLike[str]) -> Self:
        """Make an index of what ``clip-client embed`` wrote: a Parquet file, an ``.npz`` file or a folder.

        Photos without a vector, or without a path, are left out. Raises VectorsError, and OSError if it cannot be
        opened.
        """
        index: Self | None = None
        keys: list[str] = []
        parts: list[NDArray[np.float32]] = []
        for batch in stored_batches(path):
            index = index or cls(batch.vectors.shape[1], vector_id=batch.vector_id, model_id=batch.model_id)
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
        """Map an index that was saved. Raises FileNotFoundError, and VectorsError if it is damaged."""
        folder = Path(folder)
        while True:
            text = (folder / _ABOUT).read_text("utf-8")
            try:
                about = json.loads(text)
                if about["format"] != _FORMAT:
                    raise VectorsError(f"the index in {folder} has format {about['format']}; remove it")
                index = cls(about["dimension"], vector_id=about["vector_id"], model_id=about["model_id"])
                index.about, names = about["about"], about["segments"]
            except (KeyError, TypeError, ValueError) as error:
                if isinstance(error, VectorsError):
                    raise
                raise VectorsError(f"the index in {folder} is damaged ({error}); remove it") from error
            try:
                index._segments = [Segment.open(folder / name) for name in names]
            except FileNotFoundError:
                # Another process has just merged this segment into another one.
                if (folder / _ABOUT).read_text("utf-8") == text:
                    raise VectorsError(f"the index in {folder} is damaged: a part is missing; remove it") from None
                continue
            return index

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index into ``folder``, which is made; what has not changed since it was opened is not written.

        A reader sees the old or the new index. One process at a time may save into a folder. Raises OSError.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        present = {entry.name for entry in os.scandir(folder) if entry.is_dir()}
        self._compact()
        for number, segment in enumerate(self._segments):
            if segment.name not in present:
                self._segments[number] = segment.write(folder / uuid.uuid4().hex[:12])
        names = [segment.name for segment in self._segments]
        about = {
            "format": _FORMAT,
            "vector_id": self.vector_id,
            "model_id": self.model_id,
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
        return sum(map(len, self._segments)) - sum(int(rows.sum()) for rows in self._removed.values())

    def keys(self) -> Iterator[str]:
        """Yield the key of each vector, in the order of their rows."""
        for number, segment in enumerate(self._segments):
            keys = segment.photos.column(KEY).to_pylist()
            removed = self._removed.get(number)
            yield from (os.fsdecode(key) for row, key in enumerate(keys) if removed is None or not removed[row])

    def batches(self, size: int) -> Iterator[tuple[list[int], list[str], NDArray[np.float32]]]:
        """Yield rows, keys and unit vectors (n, D) of all photos, at most ``size`` at a time."""
        rows = np.flatnonzero(self._alive())
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            yield some.tolist(), self._keys_at(some), self._exact(some)

    def add(self, keys: Sequence[str], vectors: NDArray[Any], facts: pa.Table | None = None) -> None:
        """Add vectors (N, D) of any length, each with its key; a key that is there already gets the new vector.

        Rows of NaN or zeros are left out. ``facts`` are more columns about the photos. Raises VectorsError for another
        dimension, and ValueError for another number of keys.
        """
        import pyarrow as pa

        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(keys):
            raise ValueError(f"{len(keys)} keys for vectors {vectors.shape}")
        if vectors.shape[1] != self.dimension:
            raise VectorsError(f"the index has vectors of {self.dimension} numbers, and these have {vectors.shape[1]}")
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        last = {key: row for row, key in enumerate(keys)}  # of two rows of a key the later one counts
        rows = np.array([row for row in last.values() if norms[row] > 0], dtype=np.intp)
        self.remove(keys)
        for start in range(0, len(rows), MOST_IN_SEGMENT):
            some = rows[start : start + MOST_IN_SEGMENT]
            photos = pa.table({KEY: pa.array([os.fsencode(keys[row]) for row in some], pa.binary())})
            if facts is not None:
                added = facts.take(some)
                for name in added.column_names:
                    photos = photos.append_column(name, added.column(name))
            self._segments.append(Segment.of(vectors[some] / norms[some], photos))

    def remove(self, keys: Iterable[str]) -> int:
        """Remove the vectors of ``keys``; return how many there were."""
        import pyarrow as pa

        wanted = pa.array([os.fsencode(key) for key in keys], pa.binary())
        before = len(self)
        for number, segment in enumerate(self._segments):
            rows = segment.rows_of(wanted)
            if len(rows):
                self._removed.setdefault(number, np.zeros(len(segment), dtype=bool))[rows] = True
        return before - len(self)

    def _compact(self) -> None:
        """Leave out what was removed, and merge small segments at the end, so that there are few."""
        for number, removed in self._removed.items():
            segment = self._segments[number]
            self._segments[number] = Segment.of(np.asarray(segment.exact[~removed]), segment.photos.filter(~removed))
        self._removed = {}
        self._segments = [segment for segment in self._segments if len(segment)]
        while len(self._segments) > 1:
            before, last = self._segments[-2:]
            if len(before) > 2 * len(last) or len(before) + len(last) > MOST_IN_SEGMENT:
                return
            self._segments[-2:] = [_merged([before, last])]

    def column(self, name: str) -> Any:
        """Return a column of what is known of the photos, in the order of their rows, as a ``pyarrow.ChunkedArray``.

        Rows that were removed, but not saved yet, have a value, too.
        """
        import pyarrow as pa

        parts = [chunk for segment in self._segments for chunk in segment.photos.column(name).chunks]
        return pa.chunked_array(parts, self._segments[0].photos.schema.field(name).type)

    @property
    def column_names(self) -> list[str]:
        """What is known of the photos, besides their keys."""
        return self._segments[0].photos.column_names[1:] if self._segments else []

    def facts_at(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return what is known of the photos at some rows, column by name, in their order."""
        order = np.argsort(rows)
        facts: list[dict[str, Any]] = [{} for _ in rows]
        ascending = np.asarray(rows, dtype=np.intp)[order]
        for segment, start, first, last in self._ranges(ascending):
            found = segment.photos.take(ascending[first:last] - start).to_pylist()
            for place, values in zip(order[first:last].tolist(), found, strict=True):
                facts[place] = {name: value for name, value in values.items() if name != KEY}
        return facts

    def holding(self, keys: Iterable[str]) -> NDArray[np.bool_]:
        """Tell for each row whether its key is among ``keys``."""
        import pyarrow as pa

        wanted = pa.array([os.fsencode(key) for key in keys], pa.binary())
        held = np.zeros(sum(map(len, self._segments)), dtype=bool)
        start = 0
        for segment in self._segments:
            held[start + segment.rows_of(wanted)] = True
            start += len(segment)
        return held

    def vector(self, key: str) -> NDArray[np.float32] | None:
        """Return the unit vector (D,) of a key; None if the index does not have it."""
        rows = np.flatnonzero(self.holding([key]) & self._alive())
        return self._exact(rows)[0] if len(rows) else None

    def nearest(self, query: NDArray[Any], k: int = 10, *, among: NDArray[np.bool_] | None = None) -> list[Hit]:
        """Return the ``k`` photos with the greatest cosine similarity to ``query``, (D,), the best first.

        ``among`` tells for each row whether it counts (:meth:`holding`, or a comparison of a :meth:`column`). Equal
        ones are in the order of their rows. Raises ValueError for a query without direction, VectorsError for one of
        another dimension.
        """
        direction = self._direction(query)
        counted = self._counted(among)
        total = int(counted.sum())
        count = min(total, max(_FEWEST_RANKED, 4 * k))
        while True:
            rows, least = self._candidates(direction, count, counted)
            exact = self._exact(rows) @ direction
            order = np.lexsort((rows, -exact))[:k]
            # What was not ranked again is worse than the last result by more than 16 bits can be wrong.
            if count >= total or exact[order[-1]] >= least + ROUNDING:
                break
            count = min(total, 8 * count)
        keys = self._keys_at(rows[order])
        return [Hit(*found) for found in zip(keys, exact[order].tolist(), rows[order].tolist(), strict=True)]

    def best_scores(self, queries: NDArray[Any], *, among: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
        """Return the cosine of each of the queries, (M, D), with the photo nearest to it, (M,); NaN without photos."""
        directions = np.stack([self._direction(query) for query in queries])
        best = np.full(len(directions), -np.inf, dtype=np.float32)
        for segment, _, counts in self._parts(self._counted(among)):
            cosines, rows = segment.best(directions, 1, counts)
            best = np.maximum(best, np.where(rows[:, 0] >= 0, cosines[:, 0], -np.inf))
        return np.where(np.isfinite(best), best, np.nan)

    def mean(self) -> NDArray[np.float32]:
        """Return the mean of a sample of the vectors, (D,): evenly spread, at most 4,096 of them."""
        rows = np.flatnonzero(self._alive())
        sample = self._exact(rows[:: max(1, len(rows) // 4096)])
        mean: NDArray[np.float32] = sample.mean(axis=0)
        return mean

    def _direction(self, query: NDArray[Any]) -> NDArray[np.float32]:
        query = np.asarray(query, dtype=np.float32)
        if query.shape != (self.dimension,):
            raise VectorsError(f"the index has vectors of {self.dimension} numbers, and the query is {query.shape}")
        norm = np.linalg.norm(query)
        if not norm > 0:
            raise ValueError("the query is NaN or zero: its image failed, its terms cancel out, or it is no embedding")
        direction: NDArray[np.float32] = query / norm
        return direction

    def _alive(self) -> NDArray[np.bool_]:
        alive = np.ones(sum(map(len, self._segments)), dtype=bool)
        start = 0
        for number, segment in enumerate(self._segments):
            if number in self._removed:
                alive[start : start + len(segment)] = ~self._removed[number]
            start += len(segment)
        return alive

    def _counted(self, among: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        return self._alive() if among is None else self._alive() & among

    def _parts(self, counted: NDArray[np.bool_]) -> Iterator[tuple[Segment, int, NDArray[np.bool_] | None]]:
        """Yield each segment that has a row that counts, its first row, and which of its rows count; None for all."""
        start = 0
        for segment in self._segments:
            counts = counted[start : start + len(segment)]
            if counts.any():
                yield segment, start, None if counts.all() else counts
            start += len(segment)

    def _candidates(
        self, direction: NDArray[np.float32], count: int, counted: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], float]:
        """Return the best ``count`` rows by 16-bit numbers, ascending, and the least cosine among them."""
        cosines, rows = [np.empty(0, np.float32)], [np.empty(0, np.intp)]
        for segment, start, counts in self._parts(counted):
            of_each, places = segment.best(direction[None], min(count, len(segment)), counts)
            cosines.append(of_each[0][places[0] >= 0])
            rows.append(places[0][places[0] >= 0] + start)
        all_cosines, all_rows = np.concatenate(cosines), np.concatenate(rows)
        best = np.argsort(-all_cosines, kind="stable")[:count]
        return np.sort(all_rows[best]), float(all_cosines[best].min(initial=np.inf))

    def _exact(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the vectors at ascending ``rows``, (n, D)."""
        found = np.empty((len(rows), self.dimension), dtype=np.float32)
        for segment, start, first, last in self._ranges(rows):
            found[first:last] = segment.exact[rows[first:last] - start]
        return found

    def _keys_at(self, rows: NDArray[np.intp]) -> list[str]:
        order = np.argsort(rows)
        keys = [""] * len(rows)
        for segment, start, first, last in self._ranges(rows[order]):
            held = segment.photos.column(KEY).take(rows[order[first:last]] - start).to_pylist()
            for place, key in zip(order[first:last].tolist(), held, strict=True):
                keys[place] = os.fsdecode(key)
        return keys

    def _ranges(self, rows: NDArray[np.intp]) -> Iterator[tuple[Segment, int, int, int]]:
        """Yield each segment with some of the ascending ``rows``, its first row, and the range of these rows."""
        start = 0
        for segment in self._segments:
            first, last = np.searchsorted(rows, (start, start + len(segment)))
            if first < last:
                yield segment, start, int(first), int(last)
            start += len(segment)


def _merged(segments: Sequence[Segment]) -> Segment:
    import pyarrow as pa

    photos = pa.concat_tables([segment.photos for segment in segments]).unify_dictionaries().combine_chunks()
    return Segment.of(np.concatenate([segment.exact for segment in segments]), photos)

"""The rows of embedded images: a :class:`.vector_file.VectorFolder` that a cluster fills and searches.

A partition of the input becomes one file, ``part-NUMBER-KEY.parquet``. If a file with its key exists, the partition is
finished. ``Dataset.write_parquet`` leaves the incomplete file of a killed worker, and its files do not say which part
of the input they hold. ``ray.data.read_parquet`` does not keep the order, and here the number of a row is its place
among the rows of all files.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import VectorsError
from clip_client._storage.parquet_store import table_of
from clip_client._storage.vector_file import PART_FILE, WRITER_OPTIONS, FileModel, vector_schema, version_key
from clip_client.dedup.features.image_features import ALGORITHM, feature_columns
from clip_client.dedup.types import Indices
from clip_client.distributed.cluster import DistributedError
from clip_client.distributed.sources import Partition, id_of
from clip_client.distributed.storage import FOOTERS_AT_ONCE, Location

VECTOR: Final = "vector"
_KEY_COLUMNS: Final = ("path_bytes", "size_bytes", "mtime_ns")
_ABANDONED_S: Final = 3600.0  # age at which an unfinished file's worker counts as killed
_EMBED_AGAIN: Final = "remove it and embed its photos again"

FACTS: Final = np.dtype(
    [
        ("content", "S16"),  # the first 16 bytes of the SHA-256
        ("path", "S16"),  # a hash of 16 bytes
        ("hash", "u8"),  # the perceptual hash
        ("inner_hash", "u8"),  # the perceptual hash of the part inside a plain border; 0 without a border
        ("is_image", "?"),  # False if the file could not be read or is not an image
        ("is_picture", "?"),  # the row has a vector and is not of nearly one colour: it can be compared
        ("moment", "u8"),  # equal for photos that a camera took at the same time; 0 if the time is not known
        ("flat_size", "u8"),  # equal for pictures of equal size and nearly one colour; 0 for other pictures
    ]
)
"""Facts about a row that the driver holds: its content, and the values by which it can be compared."""

_COLUMNS: Final = (
    *("path_bytes", VECTOR, "error_code", "sha256", "perceptual_hash", "inner_hash", "is_flat", "code"),
    *("width", "height", "camera", "taken_ms"),
)


def embedded_schema(model: FileModel, *, features: bool) -> Any:
    """Return the ``pyarrow.Schema`` of the rows: :func:`.vector_file.vector_schema` and, with ``features``, more.

    These are ``sha256`` and those of :class:`~clip_client.dedup.photo.ImageFeatures`, null for an unreadable image.
    """
    import pyarrow as pa

    schema = vector_schema(model)
    if features:
        for name, kind in {"sha256": pa.binary(32), **feature_columns()}.items():
            schema = schema.append(pa.field(name, kind))
        schema = schema.with_metadata({**schema.metadata, "algorithm": ALGORITHM})
    return schema


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionFolder:
    """A folder for the vectors of one model; workers get a copy. The ``number`` of a run is part of its file names."""

    location: Location
    model: FileModel
    features: bool
    number: int = 0
    finished: NDArray[np.bytes_] = field(default_factory=lambda: np.empty(0, "S16"))
    """Sorted keys (N,), 16 bytes, of other runs' images: Ray Data's anti-join would shuffle all keys."""

    def begin(self, partitions: Sequence[Partition]) -> tuple[Self, list[Partition]]:
        """Return the folder with this run's number, and what is left. Raises VectorsError and DistributedError."""
        with self.location.usable():
            self.location.filesystem.create_dir(self.location.path, recursive=True)
            infos = self.location.files(recursive=False)
            for info in infos:
                if info.base_name.startswith(".") and info.base_name.endswith(".part"):
                    if info.mtime_ns is None or time.time() - info.mtime_ns / 1e9 > _ABANDONED_S:
                        self.location.filesystem.delete_file(info.path)
        keys = {self._key(partition): partition for partition in partitions}
        files = [match for info in infos if (match := PART_FILE.fullmatch(info.base_name))]
        held = {match[2] for match in files}
        last = max((int(match[1]) for match in files), default=0)
        # A run that starts again keeps its number, so that it replaces files that workers of the dead driver still
        # write.
        is_again = all(match[2] in keys for match in files if int(match[1]) == last)
        finished = self._finished_keys([match[0] for match in files if match[2] not in keys])
        started = replace(self, number=last if is_again else last + 1, finished=finished)
        return started, [partition for key, partition in keys.items() if key not in held]

    @contextmanager
    def writing(self, partition: Partition) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], None]]:
        """Yield a function that writes a row group of a partition's file; the file appears at the end of the block."""
        import pyarrow.parquet as pq

        place = self.location / f"part-{self.number:05}-{self._key(partition)}.parquet"
        schema = embedded_schema(self.model, features=self.features)
        with place.written() as file, pq.ParquetWriter(file, schema, **WRITER_OPTIONS) as writer:
            yield lambda rows: writer.write_table(table_of(rows, schema))

    def _key(self, partition: Partition) -> str:
        return id_of(partition.id, self.model.vector_id, self.features and ALGORITHM)

    def _finished_keys(self, names: Sequence[str]) -> NDArray[np.bytes_]:
        import pyarrow.parquet as pq

        keys: list[bytes] = []
        for place in (self.location / name for name in names):
            with place.opened("move it away") as file, pq.ParquetFile(file) as parquet:
                schema = parquet.schema_arrow
                FileModel.of(place, schema.metadata or {}).check(place, self.model.vector_id)
                if self.features and "sha256" not in schema.names:
                    raise VectorsError(f"{place} holds vectors without features of the photos; name another folder")
                for batch in parquet.iter_batches(columns=list(_KEY_COLUMNS)):
                    rows = zip(*(batch.column(column).to_pylist() for column in _KEY_COLUMNS), strict=True)
                    keys += [version_key(path or b"", size, mtime) for path, size, mtime in rows]
        return cast("NDArray[np.bytes_]", np.unique(np.array(keys, dtype="S16")))


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive rows of the folder, which a worker reads at once."""

    number: int
    first_row: int
    rows: int
    pieces: tuple[tuple[Location, int], ...]  # row groups: the file, and the number in it

    @property
    def row_slice(self) -> slice:
        return slice(self.first_row, self.first_row + self.rows)

    def read(self, columns: Sequence[str] | None = None) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = []
        for place, pieces in itertools.groupby(self.pieces, key=lambda piece: piece[0]):
            with place.opened(_EMBED_AGAIN) as file, pq.ParquetFile(file) as parquet:
                tables.append(parquet.read_row_groups([group for _, group in pieces], columns=columns))
        return pa.concat_tables(tables).replace_schema_metadata().combine_chunks()


@dataclass(frozen=True, kw_only=True)
class EmbeddedRows:
    """The rows in a folder, those of earlier runs first."""

    model: FileModel
    files: tuple[tuple[str, int, int | None], ...]  # name, size and time
    chunks: tuple[Chunk, ...]

    @classmethod
    def of(cls, folder: Location, most_rows: int) -> Self:
        """Read the footers of the files, and divide their rows into chunks.

        A chunk has at most ``most_rows``, or one row group if that has more. Raises DistributedError for a file that
        cannot be read, lacks columns or has vectors of another model, and VectorsError for one that names no model.
        """
        infos = [(PART_FILE.fullmatch(info.base_name), info) for info in folder.files(recursive=False)]
        files = [info for _, _, info in sorted((int(match[1]), info.path, info) for match, info in infos if match)]
        places = [folder.at(info.path) for info in files]
        with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
            inspected = list(pool.map(_inspect, places))
        if not sum(sum(sizes) for _, sizes in inspected):
            raise DistributedError(f"{folder} holds no vectors: no part-NUMBER.parquet in it has a row")
        model = inspected[0][0]
        groups: list[tuple[Location, int, int]] = []
        for place, (own, sizes) in zip(places, inspected, strict=True):
            if own.vector_id != model.vector_id:
                raise DistributedError(
                    f"{place} holds vectors of {own.vector_id}, which must not be compared with those of "
                    f"{model.vector_id} in {places[0]}; keep them in two folders"
                )
            groups += ((place, group, size) for group, size in enumerate(sizes))
        return cls(
            model=model,
            files=tuple((info.path, info.size, info.mtime_ns) for info in files),
            chunks=tuple(_chunks(groups, most_rows)),
        )


def _inspect(place: Location) -> tuple[FileModel, list[int]]:
    import pyarrow.parquet as pq

    with place.opened(_EMBED_AGAIN) as file, pq.ParquetFile(file) as parquet:
        schema, metadata = parquet.schema_arrow, parquet.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    model = FileModel.of(place, schema.metadata or {})
    for name in embedded_schema(model, features=True).names:
        if name not in schema.names:
            raise DistributedError(
                f"{place} has no column {name!r}, which a search for duplicates needs; embed its photos with "
                "features=True"
            )
    if schema.metadata.get(b"algorithm") != ALGORITHM.encode():
        raise DistributedError(f"{place} holds features of another version of this program; embed its photos again")
    return model, sizes


def _chunks(groups: Iterable[tuple[Location, int, int]], most_rows: int) -> Iterator[Chunk]:
    pieces: list[tuple[Location, int]] = []
    number = first_row = rows = 0
    for place, group, size in groups:
        if rows and rows + size > most_rows:
            yield Chunk(number=number, first_row=first_row, rows=rows, pieces=tuple(pieces))
            number, first_row, rows, pieces = number + 1, first_row + rows, 0, []
        pieces.append((place, group))
        rows += size
    yield Chunk(number=number, first_row=first_row, rows=rows, pieces=tuple(pieces))


def read_facts(chunk: Chunk, *shares: float) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return :data:`FACTS` (R,) about a chunk's rows, and the vectors (S, D) of drawn rows. Raises DistributedError."""
    table = chunk.read(_COLUMNS)
    vectors = vectors_in(table)
    names = ("sha256", "error_code", "code", "is_flat", "path_bytes", "camera", "taken_ms")
    digests, errors, codes, flat, paths, cameras, taken = (table.column(name).to_pylist() for name in names)
    facts = np.zeros(len(table), FACTS)
    is_embedded = np.array([not error and not code for error, code in zip(errors, codes, strict=True)], dtype=bool)
    is_flat = np.array([one is not False for one in flat], dtype=bool)
    facts["content"] = [(digest or b"")[:16] for digest in digests]
    facts["path"] = [blake2b(path, digest_size=16).digest() for path in paths]
    facts["hash"], facts["inner_hash"], width, height = (
        np.asarray(table.column(name).fill_null(0).to_numpy(), np.uint64)
        for name in ("perceptual_hash", "inner_hash", "width", "height")
    )
    facts["is_image"] = [bool(one) and error != "NOT_AN_IMAGE" for one, error in zip(digests, errors, strict=True)]
    facts["is_picture"] = is_embedded & ~is_flat & np.isfinite(vectors.sum(axis=1))
    facts["moment"] = [
        0 if ms is None else int.from_bytes(blake2b(f"{ms} {camera}".encode(), digest_size=8).digest(), "big")
        for camera, ms in zip(cameras, taken, strict=True)
    ]
    facts["flat_size"] = np.where(is_embedded & is_flat, width << np.uint64(32) | height, np.uint64(0))
    return facts, vectors[np.any(drawn(facts, shares), axis=0)]


def drawn(facts: NDArray[Any], shares: Sequence[float]) -> list[NDArray[np.bool_]]:
    """Return a mask (R,) for each of ``shares``: this share, 0 to 1, of the rows with a picture, chosen by content.

    Copies are chosen together. There are at most two shares, and the choices are independent.
    """
    numbers = np.ascontiguousarray(facts["content"]).view(np.uint64).reshape(-1, 2)
    return [facts["is_picture"] & (numbers[:, column] < share * 2.0**64) for column, share in enumerate(shares)]


def first_with_content(facts: NDArray[Any]) -> Indices:
    """Return (R,) the row that stands for each row's content; -1 without an image, or if a later row has its path.

    If rows with this content have a picture, the first of these stands for it.
    """
    _, last = np.unique(facts["path"][::-1], return_index=True)
    counts = np.zeros(len(facts), dtype=bool)
    counts[len(facts) - 1 - last] = True
    counts &= facts["is_image"]
    rows = np.concatenate([np.flatnonzero(counts & facts["is_picture"]), np.flatnonzero(counts & ~facts["is_picture"])])
    firsts = np.full(len(facts), -1)
    _, first, which = np.unique(facts["content"][rows], return_index=True, return_inverse=True)
    firsts[rows] = rows[first][which]
    return firsts


def vectors_in(table: Any) -> NDArray[np.float32]:
    """Return the column of vectors as (N, D) float32, read-only."""
    column = table.column(VECTOR)
    vectors: NDArray[np.float32] = column.combine_chunks().flatten().to_numpy().reshape(-1, column.type.list_size)
    return vectors

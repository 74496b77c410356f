"""The rows that :func:`.embed_partitions` wrote, in chunks that fit into the memory of a worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clip_client._errors import VectorsError
from clip_client._vectors.vector_file import FileModel
from clip_client.dedup.features.image_features import ALGORITHM
from clip_client.distributed.cluster import DistributedError
from clip_client.distributed.partition_folder import PART_FILE, embedded_schema
from preprocess_ensemble.errors import first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client.distributed.storage import Location

VECTOR: Final = "vector"


@dataclass(frozen=True, kw_only=True)
class EmbeddedFile:
    """A Parquet file of one partition."""

    place: Location
    model: FileModel
    group_rows: tuple[int, ...]
    """Rows of each row group."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive rows of the folder, which a worker reads at once."""

    number: int
    first_row: int
    """Its number among the rows of all files."""
    rows: int
    pieces: tuple[tuple[Location, tuple[int, ...]], ...]
    """Files, and the row groups that belong to the chunk."""

    @property
    def row_slice(self) -> slice:
        """Its rows among those of all files."""
        return slice(self.first_row, self.first_row + self.rows)

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return the rows as a ``pyarrow.Table`` of one piece; raises DistributedError, which names the file."""
        import pyarrow as pa

        tables = []
        for place, groups in self.pieces:
            with _opened(place) as parquet:
                tables.append(parquet.read_row_groups(list(groups), columns=columns))
        return pa.concat_tables(tables).replace_schema_metadata().combine_chunks()


def embedded_files(folder: Location) -> list[Location]:
    """Return the files of vectors in ``folder``, those of earlier runs first; raises DistributedError."""
    found = [
        (int(match[1]), info.base_name)
        for info in folder.files(recursive=False)
        if (match := PART_FILE.fullmatch(info.base_name))
    ]
    if not found:
        raise DistributedError(f"{folder} holds no vectors: no file is called part-NUMBER.parquet")
    return [folder / name for _, name in sorted(found)]


def inspect_files(places: Iterable[Location]) -> list[EmbeddedFile]:
    """Read what the files say about themselves.

    Raises DistributedError, which names the file, if one cannot be read or lacks the columns of a search.
    """
    return [_inspect(place) for place in places]


def _inspect(place: Location) -> EmbeddedFile:
    with _opened(place) as parquet:
        schema, metadata = parquet.schema_arrow, parquet.metadata
        rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    about = schema.metadata or {}
    try:
        model = FileModel.of(place, about)
    except VectorsError as error:
        raise DistributedError(str(error)) from None
    missing = [name for name in embedded_schema(model, features=True).names if name not in schema.names]
    if missing:
        raise DistributedError(
            f"{place} has no column {missing[0]!r}, which a search for duplicates needs; embed its photos with "
            "features=True"
        )
    if about.get(b"algorithm") != ALGORITHM.encode():
        raise DistributedError(f"{place} holds features of another version of this program; embed its photos again")
    return EmbeddedFile(place=place, model=model, group_rows=rows)


def one_model(files: Sequence[EmbeddedFile]) -> FileModel:
    """Return the model of all ``files``; raise DistributedError, which names a file, if they have several."""
    first = files[0]
    for file in files:
        if file.model.vector_id != first.model.vector_id:
            raise DistributedError(
                f"{file.place} holds vectors of {file.model.vector_id}, which must not be compared with those of "
                f"{first.model.vector_id} in {first.place}; keep them in two folders"
            )
    return first.model


def chunks_of(files: Iterable[EmbeddedFile], most_rows: int) -> list[Chunk]:
    """Divide the rows of ``files`` into chunks of at most ``most_rows``, or of one row group if that has more."""
    chunks: list[Chunk] = []
    pieces: dict[int, tuple[Location, list[int]]] = {}
    rows = first_row = 0

    def close() -> None:
        nonlocal rows, first_row
        if rows:
            frozen = tuple((place, tuple(groups)) for place, groups in pieces.values())
            chunks.append(Chunk(number=len(chunks), first_row=first_row, rows=rows, pieces=frozen))
            first_row += rows
        pieces.clear()
        rows = 0

    for number, file in enumerate(files):
        for group, size in enumerate(file.group_rows):
            if rows + size > most_rows:
                close()
            pieces.setdefault(number, (file.place, []))[1].append(group)
            rows += size
    close()
    return chunks


def vectors_in(table: Any) -> NDArray[np.float32]:
    """Return the column of vectors as (N, D) float32, read-only."""
    column = table.column(VECTOR)
    dimension = column.type.list_size
    vectors: NDArray[np.float32] = column.combine_chunks().flatten().to_numpy().reshape(-1, dimension)
    return vectors


@contextmanager
def _opened(place: Location) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with place.filesystem.open_input_file(place.path) as file, pq.ParquetFile(file) as parquet:
            yield parquet
    except (OSError, pa.ArrowException) as error:
        raise DistributedError(
            f"{place} cannot be read ({first_line(error)}); remove it and embed its photos again"
        ) from error

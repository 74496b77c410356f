"""Files of vectors: one row per photo, with an error code and its reason if there is no vector."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.store.layout import NUMBERED
from clip_client.dedup.store.parquet_store import table_of
from clip_client.dedup.text import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client import ModelInfo
    from clip_client.cli.output.file_version import FileVersion
    from clip_client.dedup import FailedFile

_ROWS_PER_GROUP: Final = 1024
"""Of a Parquet file: 2 MB with 512 numbers each, the memory that writing and reading take."""


def vector_schema(model: ModelInfo) -> Any:
    """Return the ``pyarrow.Schema`` of vectors in Parquet.

    ``path`` is text for people and ``path_bytes`` the name as the file system has it, both absolute. ``size_bytes`` and
    ``mtime_ns`` are null if the file could not be examined. ``vector`` is a list of float32, null for a failed photo;
    ``error_code`` and ``error`` are null for the others. The metadata holds ``model``, ``vector_id`` and ``dimension``.
    """
    import pyarrow as pa

    return pa.schema(
        {
            "path": pa.string(),
            "path_bytes": pa.binary(),
            "size_bytes": pa.int64(),
            "mtime_ns": pa.int64(),
            # Not a list of fixed size: Arrow writes nulls among those, but cannot read them back.
            "vector": pa.list_(pa.float32()),
            "error_code": pa.string(),
            "error": pa.string(),
        },
        metadata={"model": model.id, "vector_id": model.vector_id, "dimension": str(model.dimension)},
    )


def vector_row(
    file: FileVersion, vector: NDArray[np.float32] | None = None, failure: FailedFile | None = None
) -> Mapping[str, Any]:
    """Return the columns of :func:`vector_schema` for one photo: either ``vector``, (D,) float32, or ``failure``."""
    return {
        "path": printable(file.path),
        "path_bytes": os.fsencode(file.path),
        "size_bytes": file.size_bytes,
        "mtime_ns": file.mtime_ns,
        "vector": vector,
        "error_code": failure and failure.code,
        "error": failure and failure.message,
    }


@contextmanager
def parquet_file(file: IO[bytes], model: ModelInfo) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Write one Parquet file, in row groups, so memory does not grow with the file."""
    import pyarrow.parquet as pq

    schema = vector_schema(model)
    rows: list[Mapping[str, Any]] = []

    def write_group() -> None:
        writer.write_table(table_of(rows, schema))
        rows.clear()

    def add(row: Mapping[str, Any]) -> None:
        rows.append(row)
        if len(rows) == _ROWS_PER_GROUP:
            write_group()

    # Closed also if the file is thrown away: a writer that is not closed warns when it is collected.
    with pq.ParquetWriter(file, schema, **NUMBERED.writer) as writer:
        yield add
        if rows:
            write_group()


@contextmanager
def npz_file(file: IO[bytes], model: ModelInfo) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Write a NumPy archive, held in memory until the end of the block; reading it needs no pickle.

    Arrays: ``vectors`` is (N, D) float32, NaN for a failed photo; ``paths`` and ``path_bytes`` as in Parquet;
    ``error_codes`` and ``errors`` are empty for the others; ``model`` and ``vector_id`` are single texts.
    """
    rows: list[Mapping[str, Any]] = []
    yield rows.append
    nothing = np.full(model.dimension, np.nan, dtype=np.float32)
    arrays = {
        "vectors": np.stack([nothing if row["vector"] is None else row["vector"] for row in rows]),
        "paths": np.array([row["path"] for row in rows]),
        "path_bytes": np.array([row["path_bytes"] for row in rows]),
        "error_codes": np.array([row["error_code"] or "" for row in rows]),
        "errors": np.array([row["error"] or "" for row in rows]),
        "model": np.array(model.id),
        "vector_id": np.array(model.vector_id),
    }
    # Like np.savez, which leaves the archive open if the disk is full, and that warns when it is collected.
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.save(entry, array, allow_pickle=False)

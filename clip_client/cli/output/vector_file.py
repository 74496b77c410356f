"""Files of vectors: one row per photo, with an error code and its reason if there is no vector."""

from __future__ import annotations

import os
import zipfile
from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.store.layout import NUMBERED
from clip_client.dedup.store.parquet_store import table_of
from clip_client.dedup.text import printable

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from clip_client.cli.output.photo_file import PhotoRow

_ROWS_PER_GROUP: Final = 1024
"""Of a Parquet file: 2 MB with 512 numbers each, the memory that writing and reading take."""


class VectorFile(ABC):
    """A file of vectors of one model that is being written; it is complete when the ``with`` block ends."""

    def __init__(self, file: IO[bytes], *, model_id: str, vector_id: str, dimension: int) -> None:
        self._file = file
        self._about = {"model": model_id, "vector_id": vector_id}
        self._dimension = dimension

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(whole=error is None)

    @abstractmethod
    def add(self, row: PhotoRow) -> None:
        """Add a row."""

    @abstractmethod
    def _close(self, *, whole: bool) -> None:
        """Write the remaining rows; if not ``whole``, only close what is open."""


def vector_schema(model_id: str, vector_id: str, dimension: int) -> Any:
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
        metadata={"model": model_id, "vector_id": vector_id, "dimension": str(dimension)},
    )


def to_row(row: PhotoRow) -> dict[str, object]:
    """Return the columns of :func:`vector_schema` for one photo."""
    return {
        "path": printable(row.file.path),
        "path_bytes": os.fsencode(row.file.path),
        "size_bytes": row.file.size_bytes,
        "mtime_ns": row.file.mtime_ns,
        "vector": row.vector,
        "error_code": row.failure and row.failure.code,
        "error": row.failure and row.failure.message,
    }


class ParquetFile(VectorFile):
    """One Parquet file, written in row groups, so memory does not grow with the file."""

    def __init__(self, file: IO[bytes], *, model_id: str, vector_id: str, dimension: int) -> None:
        import pyarrow.parquet as pq

        super().__init__(file, model_id=model_id, vector_id=vector_id, dimension=dimension)
        self._schema = vector_schema(model_id, vector_id, dimension)
        self._writer = pq.ParquetWriter(file, self._schema, **NUMBERED.writer)
        self._rows: list[dict[str, object]] = []

    def add(self, row: PhotoRow) -> None:
        """See :meth:`VectorFile.add`."""
        self._rows.append(to_row(row))
        if len(self._rows) == _ROWS_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        rows, self._rows = self._rows, []
        self._writer.write_table(table_of(rows, self._schema))

    def _close(self, *, whole: bool) -> None:
        try:
            if whole and self._rows:
                self._write_group()
        finally:
            # Also if the file is thrown away: a writer that is not closed warns when it is collected.
            self._writer.close()


class NpzFile(VectorFile):
    """A NumPy archive, held in memory until the end; reading it needs no pickle.

    Arrays: ``vectors`` is (N, D) float32, NaN for a failed photo; ``paths`` and ``path_bytes`` as in Parquet;
    ``error_codes`` and ``errors`` are empty for the others; ``model`` and ``vector_id`` are single texts.
    """

    def __init__(self, file: IO[bytes], *, model_id: str, vector_id: str, dimension: int) -> None:
        super().__init__(file, model_id=model_id, vector_id=vector_id, dimension=dimension)
        self._vectors: list[NDArray[np.float32]] = []
        self._rows: list[tuple[str, str, str]] = []

    def add(self, row: PhotoRow) -> None:
        """See :meth:`VectorFile.add`."""
        nothing = np.full(self._dimension, np.nan, dtype=np.float32)
        self._vectors.append(nothing if row.vector is None else row.vector)
        code, message = ("", "") if row.failure is None else (row.failure.code, row.failure.message)
        self._rows.append((row.file.path, code, message))

    def _close(self, *, whole: bool) -> None:
        if not whole:
            return
        paths, codes, messages = zip(*self._rows, strict=True)
        arrays = {
            "vectors": np.stack(self._vectors),
            "paths": np.array([printable(path) for path in paths]),
            "path_bytes": np.array([os.fsencode(path) for path in paths]),
            "error_codes": np.array(codes),
            "errors": np.array(messages),
            **{name: np.array(text) for name, text in self._about.items()},
        }
        # Like np.savez, which leaves the archive open if the disk is full, and that warns when it is collected.
        with zipfile.ZipFile(self._file, "w", allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.save(entry, array, allow_pickle=False)

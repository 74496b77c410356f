"""Vectors on disk: one row per file, with the code and the reason where there is no vector."""

from __future__ import annotations

import os
import zipfile
from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.text import printable

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from clip_client.cli.output.photo_file import PhotoRow

_ROWS_PER_GROUP: Final = 1024
"""Of a Parquet file: 2 MB of 512 numbers each, which is what writing and reading hold at a time."""


class VectorFile(ABC):
    """A file of vectors of one model that is being written; it is whole once the ``with`` block has ended."""

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
        """Write what is still to be written; where not all is there, only let go of what is held."""


class ParquetFile(VectorFile):
    """Apache Parquet, written in row groups, so memory does not grow with the file.

    Columns: ``path`` is text for people and ``path_bytes`` the name as the file system has it, both absolute;
    ``size_bytes`` and ``mtime_ns`` are null where the file could not be looked at; ``vector`` is a list of float32,
    null where it failed; ``error_code`` and ``error`` are null where it did not. The schema's metadata holds
    ``model``, ``vector_id`` and ``dimension``.
    """

    def __init__(self, file: IO[bytes], *, model_id: str, vector_id: str, dimension: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__(file, model_id=model_id, vector_id=vector_id, dimension=dimension)
        self._schema = pa.schema(
            {
                "path": pa.string(),
                "path_bytes": pa.binary(),
                "size_bytes": pa.int64(),
                "mtime_ns": pa.int64(),
                # Not a list of fixed size: Arrow writes those with nulls among them, but cannot read them back.
                "vector": pa.list_(pa.float32()),
                "error_code": pa.string(),
                "error": pa.string(),
            },
            metadata=self._about | {"dimension": str(dimension)},
        )
        # Vectors and paths hardly repeat: looking for repetitions would only cost time.
        self._writer = pq.ParquetWriter(file, self._schema, use_dictionary=["error_code", "error"])
        self._rows: list[PhotoRow] = []

    def add(self, row: PhotoRow) -> None:
        """See :meth:`VectorFile.add`."""
        self._rows.append(row)
        if len(self._rows) == _ROWS_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        rows, self._rows = self._rows, []
        vectors = [row.vector for row in rows if row.vector is not None]
        failed = np.array([row.vector is None for row in rows])
        ends = self._dimension * np.cumsum(~failed, dtype=np.int32)  # a failed row has no elements
        numbers = np.concatenate(vectors) if vectors else np.empty(0, np.float32)
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        columns: list[Any] = [
            [printable(row.file.path) for row in rows],
            [os.fsencode(row.file.path) for row in rows],
            [row.file.size_bytes for row in rows],
            [row.file.mtime_ns for row in rows],
            pa.ListArray.from_arrays(offsets, numbers, mask=pa.array(failed)),
            [row.failure and row.failure.code for row in rows],
            [row.failure and row.failure.message for row in rows],
        ]
        fields = zip(columns, self._schema, strict=True)
        arrays = [pa.array(column, field.type) if isinstance(column, list) else column for column, field in fields]
        self._writer.write_table(pa.table(arrays, schema=self._schema))

    def _close(self, *, whole: bool) -> None:
        try:
            if whole and self._rows:
                self._write_group()
        finally:
            # Also where the file will be thrown away: a writer left open complains when it is collected.
            self._writer.close()


class NpzFile(VectorFile):
    """NumPy's archive, held in memory until the end; reading it needs no pickle.

    Arrays: ``vectors`` is (N, D) float32, NaN where it failed; ``paths`` and ``path_bytes`` as in Parquet;
    ``error_codes`` and ``errors`` are empty where it did not fail; ``model`` and ``vector_id`` are single texts.
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
        # What np.savez does, but it leaves the archive open when the disk is full, which complains when collected.
        with zipfile.ZipFile(self._file, "w", allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.save(entry, array, allow_pickle=False)

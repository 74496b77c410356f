"""Vectors on disk: one row per file, with the code and the reason where there is no vector."""

from __future__ import annotations

import os
import zipfile
from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from clip_client.dedup.report import FailedFile, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self


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
    def write(self, paths: Sequence[str], vectors: NDArray[np.float32], errors: Mapping[int, FailedFile]) -> None:
        """Add rows: ``vectors`` is (len(paths), D), ``errors`` maps a row to why it has no vector."""

    def write_failed(self, failed: Sequence[FailedFile]) -> None:
        """Add rows for files that never were on their way to the server."""
        if failed:
            nothing = np.full((len(failed), self._dimension), np.nan, dtype=np.float32)
            self.write([failure.path for failure in failed], nothing, dict(enumerate(failed)))

    @abstractmethod
    def _close(self, *, whole: bool) -> None:
        """Write what is still to be written; where not all is there, only let go of what is held."""


class ParquetFile(VectorFile):
    """Apache Parquet; a row group per :meth:`write`, so memory does not grow with the file.

    Columns: ``path`` is text for people and ``path_bytes`` the name as the file system has it; ``vector`` is a list of
    float32, null where it failed; ``error_code`` and ``error`` are null where it did not. The schema's metadata holds
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
                # Not a list of fixed size: Arrow writes those with nulls among them, but cannot read them back.
                "vector": pa.list_(pa.float32()),
                "error_code": pa.string(),
                "error": pa.string(),
            },
            metadata=self._about | {"dimension": str(dimension)},
        )
        self._writer = pq.ParquetWriter(file, self._schema)

    def write(self, paths: Sequence[str], vectors: NDArray[np.float32], errors: Mapping[int, FailedFile]) -> None:
        """See :meth:`VectorFile.write`."""
        import pyarrow as pa

        failed = np.array([row in errors for row in range(len(paths))])
        ends = self._dimension * np.cumsum(~failed, dtype=np.int32)  # a failed row has no elements
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        columns: list[Any] = [
            [printable(path) for path in paths],
            [os.fsencode(path) for path in paths],
            pa.ListArray.from_arrays(offsets, vectors[~failed].reshape(-1), mask=pa.array(failed)),
            [errors[row].code if row in errors else None for row in range(len(paths))],
            [errors[row].message if row in errors else None for row in range(len(paths))],
        ]
        fields = zip(columns, self._schema, strict=True)
        arrays = [pa.array(column, field.type) if isinstance(column, list) else column for column, field in fields]
        self._writer.write_table(pa.table(arrays, schema=self._schema))

    def _close(self, *, whole: bool) -> None:
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

    def write(self, paths: Sequence[str], vectors: NDArray[np.float32], errors: Mapping[int, FailedFile]) -> None:
        """See :meth:`VectorFile.write`."""
        self._vectors.append(vectors)
        for row, path in enumerate(paths):
            failure = errors.get(row)
            self._rows.append((path, failure.code if failure else "", failure.message if failure else ""))

    def _close(self, *, whole: bool) -> None:
        if not whole:
            return
        paths, codes, messages = zip(*self._rows, strict=True)
        arrays = {
            "vectors": np.concatenate(self._vectors),
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

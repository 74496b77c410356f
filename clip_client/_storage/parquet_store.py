"""Rows by content in a folder of Parquet files that are added and never changed: the caches of a store.

If a key has several rows, the latest row counts. Every process adds files of its own, so any number of searches can
share a folder. A damaged file is skipped, because its rows can be computed again, and a killed process loses only its
last rows. Memory holds the keys, the requested rows and one row group.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from clip_client._storage.sqlite import StoreError
from preprocess_ensemble.whole_file import whole_file

_ABANDONED_S: Final = 3600.0  # age at which an unfinished file is a killed process's


class _FileMerged(Exception):
    """Another process has just merged this file into a larger file."""


class ParquetStore:
    """A folder of Parquet files with one schema. Raises StoreError for a file with another, or if the disk fails."""

    key: ClassVar[str] = "sha256"
    # Hashes and vectors neither repeat nor compress, so compression would only cost time.
    writer_options: ClassVar[Mapping[str, Any]] = {
        "compression": "none",
        "use_dictionary": False,
        "write_statistics": False,
    }
    unfinished: ClassVar[tuple[str, ...]] = ("*.part",)
    rows_per_group: int = 1024
    """The smallest part that can be read. Many columns in many groups cost memory to list."""
    rows_per_file: int = 2048  # 4 MB of vectors
    seconds_per_file: float = 5.0
    """A file is also written when its first row is this old, so a killed process loses this much work."""
    small_files: int = 64  # most small files before :meth:`compact` merges them
    small_file_rows: int = 131_072
    """Rows from which a file is not small: copying it for a few new rows is not worth it."""

    def __init__(self, folder: Path, schema: Any) -> None:
        self.folder = folder
        self.schema = schema
        self.written: list[Path] = []
        self._rows: list[Mapping[str, object]] = []
        self._oldest = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write into {folder}: {error.strerror}") from None

    def keys(self) -> set[bytes]:
        return set(self._all_keys(self._files()).to_pylist())

    def scan(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield ``columns`` of every key's row, a row group at a time. Raises StoreError if files are merged now."""
        try:
            yield from self._all_rows(self._files(), columns)
        except _FileMerged:
            raise StoreError(f"a file in {self.folder} disappeared while it was read") from None

    def find(
        self, keys: Sequence[bytes], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Yield (positions in distinct ``keys``, table of their rows), a row group at a time, in file order."""
        import pyarrow as pa

        if not len(keys):
            return
        wanted = pa.array(keys, self.schema.field(self.key).type)
        missing = np.ones(len(keys), dtype=bool)
        while True:
            try:
                for positions, table in self._find(self._files(), wanted, missing, columns):
                    missing[positions] = False
                    yield positions, table
            except _FileMerged:
                continue
            return

    def add(self, row: Mapping[str, object]) -> None:
        """Add one row in memory. If the rows now fill a file, or the first is ``seconds_per_file`` old, write all."""
        now = time.monotonic()
        self._oldest = self._oldest if self._rows else now
        self._rows.append(row)
        if len(self._rows) >= self.rows_per_file or now - self._oldest >= self.seconds_per_file:
            self.flush()

    def flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._write([table_of(rows, self.schema)])

    def compact(self) -> None:
        """Merge many small files into one. A concurrent reader sees some rows twice, or starts again."""
        self.remove_abandoned(_ABANDONED_S)
        files = self._files() if len(self._paths()) > self.small_files else {}
        small = {path: keys for path, keys in files.items() if 0 < len(keys) < self.small_file_rows}
        if len(small) > self.small_files:
            with contextlib.suppress(_FileMerged):  # another process is merging the same files
                self._write(_portions(self._all_rows(small), self.rows_per_file))
                for path in small:
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _files(self) -> dict[Path, Any]:
        """Read the column of keys, a ``pyarrow.ChunkedArray``, of all files, in the order of their writing."""
        while True:
            with contextlib.suppress(_FileMerged):
                return {path: keys for path in self._paths() if (keys := self._read_keys(path)) is not None}

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))

    def _next_path(self) -> Path:
        return self.folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"

    def _skip_damaged(self, path: Path, error: Exception) -> None:
        """Hook for subclasses: raise StoreError if the rows of a damaged file cannot be computed again."""

    def _read_keys(self, path: Path) -> Any:
        keys = None
        with self._damage(path), self._opened(path) as parquet:
            keys = parquet.read(columns=[self.key], use_threads=False).column(self.key)
        return keys

    def _all_keys(self, files: Mapping[Path, Any]) -> Any:
        import pyarrow as pa

        chunks = [chunk for keys in files.values() for chunk in keys.chunks]
        return pa.chunked_array(chunks, self.schema.field(self.key).type)

    def _all_rows(self, files: Mapping[Path, Any], columns: Sequence[str] | None = None) -> Iterator[Any]:
        return (table for _, table in self._find(files, self._all_keys(files).unique(), columns=columns))

    def _find(
        self,
        files: Mapping[Path, Any],
        wanted: Any,
        missing: NDArray[np.bool_] | bool = True,
        columns: Sequence[str] | None = None,
    ) -> Iterator[tuple[NDArray[np.intp], Any]]:
        import pyarrow.compute as pc

        # Rows are numbered across all files.
        at = pc.index_in(self._all_keys(files), value_set=wanted).fill_null(-1).to_numpy()
        held = np.flatnonzero(at >= 0)
        row_of = np.full(len(wanted), -1)
        row_of[at[held]] = held  # the last row of a key counts
        positions = np.flatnonzero((row_of >= 0) & missing)
        positions = positions[np.argsort(row_of[positions])]
        rows = row_of[positions]
        start = 0
        for path, keys in files.items():
            first, last = np.searchsorted(rows, (start, start + len(keys)))
            if first < last:
                yield from self._rows_in(path, rows[first:last] - start, positions[first:last], columns)
            start += len(keys)

    def _rows_in(
        self, path: Path, rows: NDArray[np.intp], positions: NDArray[np.intp], columns: Sequence[str] | None
    ) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Read the ascending ``rows`` of one file; row groups without any of them are not read."""
        names = self.schema.names if columns is None else list(columns)
        with self._damage(path), self._opened(path) as parquet:
            sizes = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
            starts = np.cumsum([0, *sizes], dtype=np.intp)
            for group in np.unique(np.searchsorted(starts, rows, side="right") - 1).tolist():
                first, last = np.searchsorted(rows, starts[group : group + 2])
                table = parquet.read_row_group(group, columns=names, use_threads=False)
                yield positions[first:last], table.take(rows[first:last] - starts[group]).select(names)

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        import pyarrow.parquet as pq

        # Python opens the file, because pyarrow opens only UTF-8 paths. Reads have use_threads=False: if one of
        # pyarrow's threads releases a Python file while the interpreter ends, the process aborts or hangs
        # (https://github.com/apache/arrow/issues/50482). With a buffer, columns are read in parts as they are needed.
        with open(path, "rb") as file, pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as parquet:
            said, expected = parquet.schema_arrow.metadata or {}, self.schema.metadata or {}
            is_other = any(said.get(key) != value for key, value in expected.items())
            if is_other or set(self.schema.names).difference(parquet.schema_arrow.names):
                raise StoreError(f"{path} does not belong in this folder; move it elsewhere")
            yield parquet

    @contextlib.contextmanager
    def _damage(self, path: Path) -> Iterator[None]:
        """End a block that reads a file where the file is damaged. Raises _FileMerged for a file that is missing."""
        import pyarrow as pa

        try:
            yield
        except FileNotFoundError as error:
            if not path.is_symlink():
                raise _FileMerged from None
            self._skip_damaged(path, error)  # a link that leads nowhere would be found again for ever
        except (OSError, pa.ArrowException) as error:
            self._skip_damaged(path, error)

    def _write(self, tables: Iterable[Any]) -> None:
        import pyarrow.parquet as pq

        whole = self._next_path()
        try:
            with (
                whole_file(whole, part=whole.with_suffix(".part")) as file,
                pq.ParquetWriter(file, self.schema, **self.writer_options) as writer,
            ):
                for table in tables:
                    writer.write_table(table, row_group_size=self.rows_per_group)
        except OSError as error:
            raise StoreError(f"cannot write {whole}: {error.strerror or error}") from error
        self.written.append(whole)

    def remove_abandoned(self, older_than_s: float = 0.0) -> None:
        """Remove unfinished files older than ``older_than_s`` seconds; with 0, no other process may be writing."""
        for part in (part for pattern in self.unfinished for part in self.folder.glob(pattern)):
            with contextlib.suppress(OSError):
                if time.time() - part.stat().st_mtime >= older_than_s:
                    part.unlink()


def table_of(rows: Sequence[Mapping[str, object]], schema: Any) -> Any:
    """Return ``rows`` as a ``pyarrow.Table``; a missing value is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table({field.name: [row.get(field.name) for row in rows] for field in schema}, schema=schema)
    for place, field in enumerate(schema):
        column = table.column(place)
        # Replace null lists of a fixed size by NaN, because Arrow 25 cannot read Parquet files with such nulls.
        if pa.types.is_fixed_size_list(field.type) and column.null_count:
            nothing = pa.scalar([float("nan")] * field.type.list_size, field.type)
            table = table.set_column(place, field, pc.if_else(column.is_valid(), column, nothing))
    return table


def _portions(tables: Iterable[Any], rows: int) -> Iterator[Any]:
    import pyarrow as pa

    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= rows:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)

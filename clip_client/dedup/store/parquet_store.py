"""Rows by content hash in Parquet files that are only ever added, never changed: a shelf.

Each process writes files of its own and gives them their names when they are whole, so any number of scans may share a
shelf, and one that is killed has lost no more than its last rows. All is a cache: a damaged file is passed over, and
what it held is made again.

A search reads the column of hashes, 32 bytes a row, and then only the row groups that hold a row it needs. Nothing here
takes memory for more than the hashes, the rows that were asked for, and one row group.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from clip_client.dedup.store.sqlite import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_ROWS: Final = 2048
"""A file is written once it would hold so many rows: 4 MB of vectors."""

_SECONDS: Final = 5.0
"""... or once its first row is so old: what a killed scan has to do again."""

_GROUP_ROWS: Final = 1024
"""Rows of a row group, which is the least that can be read: 2 MB of vectors."""

_MANY_FILES: Final = 64
"""If there are more small files than this, they become one."""

_LARGE_FILE_ROWS: Final = 131_072
"""A file of so many rows is not rewritten again: its rows are not worth copying for each few that are added."""

_ABANDONED_S: Final = 3600.0
"""An unfinished file that was not written to for so long belongs to a process that was killed."""


class _File(NamedTuple):
    path: Path
    keys: Any
    """Its column of hashes, a ``pyarrow.ChunkedArray``."""


class _FileGone(Exception):
    """Another process has just put one file in the place of many, this one among them."""


class KeyFilter:
    """A set of hashes by their first 8 bytes: a million take 8 MB.

    For a hash that is not in the set it may say that it is, by chance: one time in 10**13 if a million are.
    """

    def __init__(self, keys: Any) -> None:
        """Take ``keys``, a ``pyarrow.ChunkedArray`` of fixed-size binary values."""
        prefixes = [_prefixes(chunk) for chunk in keys.chunks if len(chunk)]
        self._prefixes = np.unique(np.concatenate(prefixes)) if prefixes else np.empty(0, dtype=np.uint64)

    def __contains__(self, key: bytes) -> bool:
        prefix = np.frombuffer(key, dtype=np.uint64, count=1)
        at = int(np.searchsorted(self._prefixes, prefix)[0])
        return at < len(self._prefixes) and bool(self._prefixes[at] == prefix[0])


class ParquetStore:
    """One folder of Parquet files with one schema.

    The schema's first column is ``sha256``, the 32 bytes of a content's hash; of two rows of the same hash the later
    one counts. The schema's metadata says what the rows are; files that say anything else are refused. A file may hold
    its columns in the types of an older version; they are cast to those of the schema.
    """

    def __init__(self, folder: Path, schema: Any) -> None:
        self._folder = folder
        self.schema = schema
        self._rows: list[Mapping[str, object]] = []
        self._oldest = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the store cannot be written in {folder}: {error.strerror}") from None

    def keys(self) -> list[bytes]:
        """Return the hashes of all contents that have a row. Raises StoreError if a file holds something else."""
        keys: list[bytes] = self._all_keys(self._files()).unique().to_pylist()
        return keys

    def key_filter(self) -> KeyFilter:
        """Return what tells which contents may have a row, without a Python object for each."""
        return KeyFilter(self._all_keys(self._files()))

    def read(self) -> Any:
        """Return all rows as a ``pyarrow.Table``. Raises StoreError if a file holds something else."""
        import pyarrow as pa

        tables = [table for _, table in self.find(self.keys())]
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def find(self, keys: Sequence[bytes]) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Yield the rows of those of ``keys`` that have one, a row group at a time, and their positions in ``keys``.

        ``keys`` are distinct. The rows are a ``pyarrow.Table`` of the schema, as long as the positions, in the order in
        which they lie in the files. Raises StoreError if a file holds something else.
        """
        import pyarrow as pa

        if not len(keys):
            return
        wanted = pa.array(keys, self.schema.field("sha256").type)
        missing = np.ones(len(keys), dtype=bool)
        while True:
            try:
                for positions, table in self._find(self._files(), wanted, missing):
                    missing[positions] = False
                    yield positions, table
                break
            except _FileGone:
                continue

    def add(self, row: Mapping[str, object]) -> None:
        """Take one row; it is on the disk after :meth:`flush` or, at the latest, when the file is full."""
        now = time.monotonic()
        self._oldest = self._oldest if self._rows else now
        self._rows.append(row)
        if len(self._rows) >= _ROWS or now - self._oldest > _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what was added. Raises StoreError if the disk takes no more."""
        import pyarrow as pa

        if self._rows:
            columns = {field.name: [row.get(field.name) for row in self._rows] for field in self.schema}
            self._write([_without_null_lists(pa.table(columns, schema=self.schema))])
            self._rows.clear()

    def compact(self) -> None:
        """Put one file in the place of many small ones, and of those of older versions that must be read whole.

        A process that reads meanwhile meets rows twice, or starts again. Raises StoreError if the disk takes no more.
        """
        self._remove_abandoned()
        sizes = {path: self._row_groups(path) for path in sorted(self._folder.glob("*.parquet"))}
        outdated = [path for path, rows in sizes.items() if max(rows, default=0) > _ROWS]
        small = [path for path, rows in sizes.items() if 0 < sum(rows) < _LARGE_FILE_ROWS]
        if not outdated and len(small) <= _MANY_FILES:
            return
        try:
            read = [self._read_keys(path) for path in sorted({*outdated, *small})]
            files = [file for file in read if file is not None]
            wanted = self._all_keys(files).unique()
            rows = (table for _, table in self._find(files, wanted, np.ones(len(wanted), dtype=bool)))
            self._write(_portions(rows))
        except _FileGone:
            return  # the other process does the same at this moment
        for file in files:
            with contextlib.suppress(OSError):
                file.path.unlink()

    def _files(self) -> list[_File]:
        """Read the hashes of all files, in the order in which the files were written."""
        while True:
            try:
                found = [self._read_keys(path) for path in sorted(self._folder.glob("*.parquet"))]
            except _FileGone:
                continue
            return [file for file in found if file is not None]

    def _row_groups(self, path: Path) -> list[int]:
        """Return the rows of each row group of a file; none if it is damaged or gone."""
        try:
            with self._opened(path) as parquet:
                return [] if parquet is None else _row_groups(parquet)
        except _FileGone:
            return []

    def _read_keys(self, path: Path) -> _File | None:
        import pyarrow as pa

        with self._opened(path) as parquet:
            try:
                return None if parquet is None else _File(path, parquet.read(columns=["sha256"]).column("sha256"))
            except (OSError, pa.ArrowException):
                return None

    def _all_keys(self, files: Sequence[_File]) -> Any:
        import pyarrow as pa

        chunks = [chunk for file in files for chunk in file.keys.chunks]
        return pa.chunked_array(chunks, self.schema.field("sha256").type)

    def _find(
        self, files: Sequence[_File], wanted: Any, missing: NDArray[np.bool_]
    ) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Yield positions in ``wanted``, of those that are ``missing``, and their rows. Raises _FileGone."""
        import pyarrow.compute as pc

        # The rows of all files are numbered through.
        at = pc.index_in(self._all_keys(files), value_set=wanted).fill_null(-1).to_numpy()
        held = np.flatnonzero(at >= 0)
        row_of = np.full(len(wanted), -1)
        row_of[at[held]] = held  # the last row of a content wins
        positions = np.flatnonzero((row_of >= 0) & missing)
        positions = positions[np.argsort(row_of[positions])]
        rows = row_of[positions]
        ends = np.cumsum([len(file.keys) for file in files], dtype=np.intp)
        for file, end in zip(files, ends.tolist(), strict=True):
            first, last = np.searchsorted(rows, (end - len(file.keys), end))
            if first < last:
                yield from self._rows_in(file, rows[first:last] - (end - len(file.keys)), positions[first:last])

    def _rows_in(
        self, file: _File, rows: NDArray[np.intp], positions: NDArray[np.intp]
    ) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Read the ascending ``rows`` of one file; of row groups that hold none of them nothing is read."""
        import pyarrow as pa

        with self._opened(file.path) as parquet:
            if parquet is None:
                return
            sizes = _row_groups(parquet)
            ends = np.cumsum(sizes, dtype=np.intp)
            groups, which = np.unique(np.searchsorted(ends, rows, side="right"), return_inverse=True)
            # The rows that are read are numbered anew: those of one group follow those of the one before.
            read = np.array(sizes)[groups]
            rows = rows - (ends[groups] - np.cumsum(read))[which]
            start = 0
            try:
                for batch in parquet.iter_batches(batch_size=_GROUP_ROWS, row_groups=groups.tolist(), use_threads=True):
                    first, last = np.searchsorted(rows, (start, start + len(batch)))
                    if first < last:
                        table = pa.Table.from_batches([batch]).select(self.schema.names)
                        if last - first < len(batch):
                            table = table.take(rows[first:last] - start)
                        yield positions[first:last], _without_null_lists(table.cast(self.schema))
                    start += len(batch)
            except (OSError, pa.ArrowException):
                return

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        """Give the file as a ``pyarrow.parquet.ParquetFile``, None if it is damaged. Raises _FileGone."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with contextlib.ExitStack() as stack:
            parquet = None
            try:
                file = stack.enter_context(open(path, "rb"))  # pyarrow itself takes no path that is not UTF-8
                # Columns are read as they are needed: without a buffer each would be read whole, with one group of it.
                parquet = stack.enter_context(pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False))
            except FileNotFoundError:
                raise _FileGone from None
            except (OSError, pa.ArrowException):
                pass
            else:
                said, expected = parquet.schema_arrow.metadata or {}, self.schema.metadata or {}
                names = parquet.schema_arrow.names
                if any(said.get(key) != value for key, value in expected.items()) or names != self.schema.names:
                    raise StoreError(f"{path} does not belong there; move it away")
            yield parquet

    def _write(self, tables: Iterable[Any]) -> None:
        """Write one file. Raises StoreError if the disk takes no more, and what ``tables`` raises."""
        import pyarrow.parquet as pq

        whole = self._folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"
        part = whole.with_suffix(".part")
        try:
            with open(part, "wb") as file:
                # Hashes and vectors do not repeat and do not compress; trying to would only cost time.
                with pq.ParquetWriter(
                    file, self.schema, compression="none", use_dictionary=False, write_statistics=False
                ) as writer:
                    for table in tables:
                        writer.write_table(table, row_group_size=_GROUP_ROWS)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, whole)
        except OSError as error:
            raise StoreError(f"the store cannot be written in {self._folder}: {error.strerror or error}") from error
        finally:
            part.unlink(missing_ok=True)

    def _remove_abandoned(self) -> None:
        """Remove what processes left that were killed while they wrote."""
        for part in self._folder.glob("*.part"):
            with contextlib.suppress(OSError):
                if time.time() - part.stat().st_mtime > _ABANDONED_S:
                    part.unlink()


def _prefixes(keys: Any) -> NDArray[Any]:
    width = keys.type.byte_width
    data = np.frombuffer(keys.buffers()[1], dtype=np.uint8, offset=keys.offset * width, count=len(keys) * width)
    return np.ascontiguousarray(data.reshape(-1, width)[:, :8]).view(np.uint64).ravel()


def _row_groups(parquet: Any) -> list[int]:
    return [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]


def _without_null_lists(table: Any) -> Any:
    """Put NaN into lists of a fixed size that are null: Parquet files with such nulls cannot be read (Arrow 25)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_fixed_size_list(field.type) and column.null_count:
            nothing = pa.scalar([float("nan")] * field.type.list_size, field.type)
            table = table.set_column(place, field, pc.if_else(column.is_valid(), column, nothing))
    return table


def _portions(tables: Iterable[Any]) -> Iterator[Any]:
    """Put small tables together, so that row groups are full."""
    import pyarrow as pa

    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)

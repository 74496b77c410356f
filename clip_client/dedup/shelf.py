"""Rows by content hash in Parquet files that are only ever added, never changed: a shelf.

Each process writes files of its own and gives them their names when they are whole, so any number of scans may share a
shelf, and one that is killed has lost no more than its last rows. All is a cache: a damaged file is passed over, and
what it held is made again.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.database import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ROWS: Final = 2048
"""A file is written once it would hold so many rows: 4 MB of vectors."""

_SECONDS: Final = 5.0
"""... or once its first row is so old: what a killed scan has to do again."""

_MANY_FILES: Final = 64
"""With more files than this a shelf is rewritten as one."""


class Shelf:
    """One folder of Parquet files with one schema.

    The schema's first column is ``sha256``, the 32 bytes of a content's hash; of two rows of the same hash any one
    counts. The schema's metadata says what the rows are; files that say anything else are refused.
    """

    def __init__(self, folder: Path, schema: Any) -> None:
        self._folder = folder
        self._schema = schema
        self._rows: list[Mapping[str, object]] = []
        self._oldest = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the store cannot be written in {folder}: {error.strerror}") from None

    def read(self) -> Any:
        """Return all rows as a ``pyarrow.Table``. Raises StoreError where a file holds something else."""
        import pyarrow as pa

        while True:
            names = sorted(self._folder.glob("*.parquet"))
            try:
                tables = [table for name in names if (table := self._read_file(name)) is not None]
                break
            except FileNotFoundError:
                continue  # another process has just rewritten the shelf as one file
        if len(names) > _MANY_FILES:
            self._rewrite(names, tables)
        return pa.concat_tables(tables) if tables else self._schema.empty_table()

    def add(self, row: Mapping[str, object]) -> None:
        """Take one row; it is on the disk after :meth:`flush` or, at the latest, when the file is full."""
        now = time.monotonic()
        self._oldest = self._oldest if self._rows else now
        self._rows.append(row)
        if len(self._rows) >= _ROWS or now - self._oldest > _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what was added. Raises StoreError where the disk takes no more."""
        import pyarrow as pa

        if self._rows:
            columns = {field.name: [row.get(field.name) for row in self._rows] for field in self._schema}
            self._write(pa.table(columns, schema=self._schema))
            self._rows.clear()

    def _read_file(self, name: Path) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with open(name, "rb") as file:  # pyarrow itself takes no path that is not UTF-8
                table = pq.read_table(file, use_threads=True)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException):
            return None
        said, expected = table.schema.metadata or {}, self._schema.metadata or {}
        if any(said.get(key) != value for key, value in expected.items()) or table.schema.names != self._schema.names:
            raise StoreError(f"{name} does not belong there; move it away")
        return table.select(self._schema.names)

    def _write(self, table: Any) -> Path:
        import pyarrow.parquet as pq

        whole = self._folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"
        part = whole.with_suffix(".part")
        try:
            with open(part, "wb") as file:
                # Hashes and vectors do not repeat and do not compress; trying to would only cost time.
                pq.write_table(table, file, compression="none", use_dictionary=False, write_statistics=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, whole)
        except OSError as error:
            raise StoreError(f"the store cannot be written in {self._folder}: {error.strerror or error}") from error
        finally:
            part.unlink(missing_ok=True)
        return whole

    def _rewrite(self, names: list[Path], tables: list[Any]) -> None:
        """Put one file in the place of ``names``. A process that reads meanwhile meets rows twice, or starts again."""
        import pyarrow as pa

        self._write(pa.concat_tables(tables).combine_chunks())
        for name in names:
            with contextlib.suppress(OSError):
                name.unlink()

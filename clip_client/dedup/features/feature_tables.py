"""The features and vectors of a search, in columns: as Python objects a million photos would take several gigabytes."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.features.preview import NEEDS_RAWPY, can_read_raw
from clip_client.dedup.photo import ImageFeatures

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS_AT_ONCE: Final = 2048
"""New features are converted to columns in batches of this size."""

_COLUMNS_AT_ONCE: Final = 32
"""Vectors are reordered by this many columns at a time: 128 MB of a million."""


class FeatureTable:
    """:class:`ImageFeatures` by content, kept as Arrow columns of a schema."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema.remove(schema.get_field_index("sha256")).remove_metadata()
        self._rows: dict[str, int] = {}
        self._tables: list[Any] = []
        self._starts: list[int] = []
        """The first row of each table."""
        self._stored = 0
        """Rows in all tables; ``_recent`` holds the rows after them."""
        self._recent: list[ImageFeatures] = []

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._rows

    def __getitem__(self, sha256: str) -> ImageFeatures:
        row = self._rows[sha256]
        if row >= self._stored:
            return self._recent[row - self._stored]
        number = bisect_right(self._starts, row) - 1
        (values,) = self._tables[number].slice(row - self._starts[number], 1).to_pylist()
        return ImageFeatures.from_row(values)

    def __setitem__(self, sha256: str, features: ImageFeatures) -> None:
        self._rows[sha256] = self._stored + len(self._recent)
        self._recent.append(features)
        if len(self._recent) >= _ROWS_AT_ONCE:
            self._convert_recent()

    def add_table(self, contents: Sequence[str], table: Any) -> None:
        """Add the rows of ``contents`` from the store."""
        self._convert_recent()
        self._append(table.select(self._schema.names).replace_schema_metadata())
        self._rows.update(zip(contents, range(self._starts[-1], self._stored), strict=True))

    def column(self, name: str, contents: Sequence[str]) -> NDArray[Any]:
        """Return one column for ``contents``, in their order."""
        import pyarrow as pa

        self._convert_recent()
        rows = np.fromiter((self._rows[sha256] for sha256 in contents), dtype=np.int64, count=len(contents))
        chunks = [chunk for table in self._tables for chunk in table.column(name).chunks]
        column: NDArray[Any] = pa.chunked_array(chunks, self._schema.field(name).type).take(rows).to_numpy()
        return column

    def _convert_recent(self) -> None:
        """Convert the new features to a table."""
        import pyarrow as pa

        if self._recent:
            recent, self._recent = self._recent, []
            self._append(pa.Table.from_pylist([features.to_row() for features in recent], schema=self._schema))

    def _append(self, table: Any) -> None:
        self._tables.append(table)
        self._starts.append(self._stored)
        self._stored += len(table)


class VectorTable:
    """Vectors by content, in one matrix."""

    def __init__(self, capacity: int, dimension: int) -> None:
        """Allocate ``capacity`` vectors of ``dimension`` numbers; memory is used only for those that are added."""
        self._matrix = np.empty((capacity, dimension), dtype=np.float32)
        self._rows: dict[str, int] = {}

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._rows

    def __setitem__(self, sha256: str, vector: NDArray[np.float32]) -> None:
        self.add_rows([sha256], vector[np.newaxis])

    def add_rows(self, contents: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Add the ``vectors``, (N, D), of ``contents`` that have none yet."""
        start, end = len(self._rows), len(self._rows) + len(contents)
        if end > len(self._matrix):  # a file that changed during the search has two contents
            self._matrix.resize((end, self._matrix.shape[1]), refcheck=False)
        self._matrix[start:end] = vectors
        self._rows.update(zip(contents, range(start, end), strict=True))

    def in_order(self, contents: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of ``contents``, (N, D), NaN for a content without one, and empty the table.

        The matrix is reordered in place: a second one would take 2 GB for a million photos.
        """
        rows = np.fromiter((self._rows.get(sha256, -1) for sha256 in contents), dtype=np.intp, count=len(contents))
        self._rows = {}
        if not np.array_equal(rows, np.arange(len(rows))):
            for start in range(0, self._matrix.shape[1], _COLUMNS_AT_ONCE):
                some = slice(start, start + _COLUMNS_AT_ONCE)
                self._matrix[: len(rows), some] = self._matrix[rows, some]
            self._matrix[: len(rows)][rows < 0] = np.nan
        ordered, self._matrix = self._matrix[: len(rows)], self._matrix[:0]
        return ordered


def without_outdated(contents: list[str], table: Any) -> tuple[list[str], Any]:
    """Leave out the rows of a stored table that only say that a package was missing which is installed by now.

    ``contents`` are those of the rows, and the table has a column ``message``.
    """
    from preprocess_ensemble.imaging.formats import outdated_refusals

    outdated = outdated_refusals() | ({NEEDS_RAWPY} if can_read_raw() else set())
    if outdated.isdisjoint(table.column("message").unique().to_pylist()):
        return contents, table
    is_valid = [message not in outdated for message in table.column("message").to_pylist()]
    return list(itertools.compress(contents, is_valid)), table.filter(is_valid)

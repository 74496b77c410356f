"""The two layouts of a folder of Parquet files: how the files are named, filled and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to keep rows in a folder."""

    key: str
    """The column of keys."""
    is_cache: bool
    """Files have names that no other process uses, and damaged files are skipped. In a folder that is no cache, files
    are ``part-00000.parquet``, ``part-00001.parquet`` and so on, and a damaged file is an error."""
    rows_per_file: int
    seconds_per_file: float
    """A file is also written if its first row is this old, so a killed process loses no more than this."""
    writer: Mapping[str, Any]
    """Options of ``pyarrow.parquet.ParquetWriter``."""
    small_files: int = 64
    """If there are more small files than this, :meth:`ParquetStore.compact` merges them."""
    small_file_rows: int = 131_072
    """A file with this many rows is not small: copying its rows for each few new ones is not worth it."""


CACHE: Final = Layout(
    key="sha256",
    is_cache=True,
    rows_per_file=2048,  # 4 MB of vectors
    seconds_per_file=5.0,
    # Hashes and vectors do not repeat and do not compress; trying to would only cost time.
    writer={"compression": "none", "use_dictionary": False, "write_statistics": False},
)
NUMBERED: Final = Layout(
    key="path_bytes",
    is_cache=False,
    rows_per_file=10_000,  # 20 MB of vectors
    seconds_per_file=300.0,
    # Vectors and paths hardly repeat; looking for repetitions would only cost time.
    writer={"use_dictionary": ["error_code", "error"]},
)

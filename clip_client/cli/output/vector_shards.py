"""A folder of Parquet files ``part-00000.parquet``, ``part-00001.parquet``, ...: vectors of one id, more with each run.

A shard appears whole or not at all, and is never touched again. A photo that was embedded twice, because it changed or
because it had failed, has two rows; the later one counts.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.cli.errors import CommandFailed
from clip_client.cli.output.output_file import remove_parts_of_shards, replacing
from clip_client.cli.output.photo_file import PhotoRow, file_key
from clip_client.cli.output.vector_file import ParquetFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SECONDS_PER_SHARD: Final = 300.0
"""A shard is closed after so long even if it is not full: a slow server's work is worth as much."""

_NAME: Final = re.compile(r"part-(\d{5,})\.parquet")
_ROWS_PER_READ: Final = 8192


def shards_in(folder: Path) -> list[Path]:
    """The shards, in the order in which they were written; none where there is no such folder.

    Raises CommandFailed where the folder cannot be read.
    """
    if not os.path.isdir(folder):
        return []
    try:
        return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_number)
    except OSError as error:
        raise CommandFailed(f"the folder {folder} cannot be read: {error.strerror}") from None


def vector_id_of(shards: Sequence[Path]) -> str | None:
    """The one vector id that all shards hold; None without a shard.

    Raises CommandFailed where two differ, or one is no file of vectors.
    """
    ids = {}
    for shard in shards:
        with _open(shard) as file:
            ids[(file.schema_arrow.metadata or {}).get(b"vector_id", b"").decode()] = shard
    if "" in ids:
        raise CommandFailed(
            f"{ids['']} does not say which model made its vectors; it was not made by clip-client embed"
        )
    if len(ids) > 1:
        (first, one), (second, other) = list(ids.items())[:2]
        raise CommandFailed(f"{one} holds vectors of {first} and {other} those of {second}; keep them in two folders")
    return next(iter(ids), None)


def check_vector_id(folder: Path, vector_id: str) -> None:
    """Raise CommandFailed where ``folder`` holds vectors that must not be compared with those of ``vector_id``."""
    held = vector_id_of(shards_in(folder))
    if held not in (None, vector_id):
        raise CommandFailed(
            f"{folder} holds vectors of {held}, and this run makes those of {vector_id}, which must not be "
            "compared; name another folder, or use the model and --transfer of the first"
        )


def finished_keys(shards: Sequence[Path], *, with_failed: bool) -> set[bytes]:
    """The :attr:`PhotoFile.key` of every file that has a vector, and ``with_failed`` of those that failed, too."""
    keys: set[bytes] = set()
    for shard in shards:
        for batch in _read(shard, ["path_bytes", "size_bytes", "mtime_ns", "error_code"]):
            for path, size_bytes, mtime_ns, code in zip(*(column.to_pylist() for column in batch), strict=True):
                if code is None or with_failed:
                    keys.add(file_key(path, size_bytes, mtime_ns))
    return keys


def read_vectors(shards: Sequence[Path]) -> Iterator[tuple[list[bytes], NDArray[np.float32]]]:
    """Yield paths and their vectors (n, D), a few thousand at a time; each path once, with what was found last."""
    counts = _rows_that_count(shards)
    start = 0
    for shard in shards:
        for paths, vectors in _read(shard, ["path_bytes", "vector"]):
            rows = counts[start : start + len(paths)] & vectors.is_valid().to_numpy(zero_copy_only=False)
            start += len(paths)
            if rows.any():
                matrix = vectors.filter(rows).flatten().to_numpy().reshape(int(rows.sum()), -1)
                yield paths.filter(rows).to_pylist(), matrix


class ShardWriter:
    """Adds shards to a folder; one run at a time, which :func:`clip_client.cli.output.output_file.locked` sees to."""

    def __init__(
        self,
        folder: Path,
        *,
        rows_per_shard: int,
        seconds_per_shard: float = SECONDS_PER_SHARD,
        model_id: str,
        vector_id: str,
        dimension: int,
    ) -> None:
        self._folder = folder
        self._rows_per_shard = rows_per_shard
        self._seconds_per_shard = seconds_per_shard
        self._model_id = model_id
        self._vector_id = vector_id
        self._dimension = dimension
        self._rows: list[PhotoRow] = []
        self._started_at = 0.0
        shards = shards_in(folder)
        self._next = _number(shards[-1]) + 1 if shards else 0
        self.written: list[Path] = []
        """The shards that this writer has finished."""
        remove_parts_of_shards(folder)

    def add(self, row: PhotoRow) -> None:
        """Add a row, which is on the disk once its shard is finished. Raises CommandFailed where it cannot be."""
        if not self._rows:
            self._started_at = time.monotonic()
        self._rows.append(row)
        if len(self._rows) >= self._rows_per_shard or time.monotonic() - self._started_at >= self._seconds_per_shard:
            self.finish()

    def finish(self) -> None:
        """Write what was added since the last shard as a shard of its own; nothing where that is nothing."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        shard = self._folder / f"part-{self._next:05}.parquet"
        about = {"model_id": self._model_id, "vector_id": self._vector_id}
        with replacing(shard) as file, ParquetFile(file, **about, dimension=self._dimension) as out:
            for row in rows:
                out.add(row)
        self._next += 1
        self.written.append(shard)


def _number(shard: Path) -> int:
    match = _NAME.fullmatch(shard.name)
    assert match is not None, shard
    return int(match[1])


def _rows_that_count(shards: Sequence[Path]) -> NDArray[np.bool_]:
    """For the rows of all shards together: is it the last one of its path?"""
    import pyarrow as pa

    batches = [batch for shard in shards for batch in _read(shard, ["path_bytes"])]
    table = pa.Table.from_batches(batches)
    counts = np.zeros(len(table), dtype=np.bool_)
    numbered = table.append_column("row", pa.array(np.arange(len(table))))
    last = numbered.group_by("path_bytes").aggregate([("row", "max")])
    counts[last.column("row_max").to_numpy()] = True
    return counts


def _read(shard: Path, columns: list[str]) -> Iterator[Any]:
    with _open(shard) as file:
        missing = sorted(set(columns) - set(file.schema_arrow.names))
        if missing:
            raise CommandFailed(f"{shard} has no column {missing[0]}; it was not made by clip-client embed")
        yield from file.iter_batches(batch_size=_ROWS_PER_READ, columns=columns)


@contextmanager
def _open(shard: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open(shard, "rb") as file:  # pyarrow itself takes no path that is not UTF-8
            yield pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise CommandFailed(f"{shard} cannot be read ({reason}); move it away, and embed its photos again") from None

"""A folder of vectors: Parquet files ``part-00000.parquet``, ``part-00001.parquet`` and so on, more with each run.

All vectors have one vector id. A photo that was embedded again, because it changed or had failed, has two rows; the
later one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from clip_client.cli.errors import CommandFailed
from clip_client.cli.output.photo_row import PhotoRow, version_key
from clip_client.cli.output.vector_file import to_row, vector_schema
from clip_client.dedup.store.layout import NUMBERED, Layout
from clip_client.dedup.store.parquet_store import ParquetStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client import ModelInfo


class VectorFolder:
    """An open folder. Any number of processes may read it; one may write, inside the lock of the folder."""

    def __init__(self, folder: Path, model: ModelInfo, layout: Layout = NUMBERED) -> None:
        """Open ``folder``, which is made if it does not exist.

        Raises StoreError if a file cannot be read, and CommandFailed if the folder holds vectors of another id.
        """
        self._store = ParquetStore(folder, vector_schema(model), layout)
        self._check_vector_id(model.vector_id)

    @property
    def written(self) -> list[Path]:
        """The files that this object has finished."""
        return self._store.written

    def finished_keys(self, *, with_failed: bool) -> set[bytes]:
        """Return the :attr:`FileVersion.key` of every file with a vector; ``with_failed`` adds those that failed."""
        keys: set[bytes] = set()
        for table in self._store.scan(["path_bytes", "size_bytes", "mtime_ns", "error_code"]):
            for path, size_bytes, mtime_ns, code in zip(*(column.to_pylist() for column in table.columns), strict=True):
                if code is None or with_failed:
                    keys.add(version_key(path, size_bytes, mtime_ns))
        return keys

    def vectors(self) -> Iterator[tuple[list[bytes], NDArray[np.float32]]]:
        """Yield paths and their vectors (n, D), about a thousand at a time; each path once, with its latest vector."""
        for table in self._store.scan(["path_bytes", "vector"]):
            found = table.filter(table.column("vector").is_valid())
            if len(found):
                numbers = found.column("vector").combine_chunks().flatten().to_numpy()
                yield found.column("path_bytes").to_pylist(), numbers.reshape(len(found), -1)

    def start_writing(self) -> None:
        """Remove what killed processes left; call it inside the lock of the folder, before :meth:`add`."""
        self._store.remove_abandoned()

    def add(self, row: PhotoRow) -> None:
        """Add a row, which is on the disk when its file is finished. Raises StoreError if it cannot be written."""
        self._store.add(to_row(row))

    def finish(self) -> None:
        """Write the rows that were added since the last file into a file of their own."""
        self._store.flush()

    def _check_vector_id(self, vector_id: str) -> None:
        for path, about in self._store.described().items():
            held = about.get(b"vector_id", b"").decode()
            if not held:
                raise CommandFailed(
                    f"{path} does not name the model of its vectors: clip-client embed did not write it"
                )
            if held != vector_id:
                raise CommandFailed(
                    f"{path} holds vectors of {held}, which must not be compared with those of this run, {vector_id}; "
                    "name another folder, or use the same model and --transfer"
                )


def is_vector_folder(folder: Path) -> bool:
    """Tell whether ``clip-client embed`` has written into ``folder``."""
    return any(folder.glob("part-*.parquet"))

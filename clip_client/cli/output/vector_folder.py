"""A folder of vectors: Parquet files ``part-00000.parquet``, ``part-00001.parquet`` and so on, more with each run.

All vectors have one vector id. A photo that was embedded again, because it changed or had failed, has two rows; the
later one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from clip_client.cli.errors import CommandFailed
from clip_client.cli.output.file_version import version_key
from clip_client.cli.output.vector_file import vector_schema
from clip_client.dedup.store.layout import NUMBERED, Layout
from clip_client.dedup.store.parquet_store import ParquetStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client import ModelInfo


class VectorFolder(ParquetStore):
    """An open folder. Any number of processes may read it; one may write, inside the lock of the folder.

    A writer begins with :meth:`remove_abandoned` and adds each row as :func:`.vector_file.vector_row` gives it.
    """

    def __init__(self, folder: Path, model: ModelInfo, layout: Layout = NUMBERED) -> None:
        """Open ``folder``, which is made if it does not exist.

        Raises StoreError if a file cannot be read, and CommandFailed if the folder holds vectors of another id.
        """
        super().__init__(folder, vector_schema(model), layout)
        for path, about in self.described().items():
            held = about.get(b"vector_id", b"").decode()
            if not held:
                raise CommandFailed(
                    f"{path} does not name the model of its vectors: clip-client embed did not write it"
                )
            if held != model.vector_id:
                raise CommandFailed(
                    f"{path} holds vectors of {held}, which must not be compared with those of this run, "
                    f"{model.vector_id}; name another folder, or use the same model and --transfer"
                )

    def finished_keys(self, *, with_failed: bool) -> set[bytes]:
        """Return the :attr:`FileVersion.key` of every file with a vector; ``with_failed`` adds those that failed."""
        keys: set[bytes] = set()
        for table in self.scan(["path_bytes", "size_bytes", "mtime_ns", "error_code"]):
            for path, size_bytes, mtime_ns, code in zip(*(column.to_pylist() for column in table.columns), strict=True):
                if code is None or with_failed:
                    keys.add(version_key(path, size_bytes, mtime_ns))
        return keys

    def vectors(self) -> Iterator[tuple[list[bytes], NDArray[np.float32]]]:
        """Yield paths and their vectors (n, D), about a thousand at a time; each path once, with its latest vector."""
        for table in self.scan(["path_bytes", "vector"]):
            found = table.filter(table.column("vector").is_valid())
            if len(found):
                numbers = found.column("vector").combine_chunks().flatten().to_numpy()
                yield found.column("path_bytes").to_pylist(), numbers.reshape(len(found), -1)


def is_vector_folder(folder: Path) -> bool:
    """Tell whether ``clip-client embed`` has written into ``folder``."""
    return any(folder.glob("part-*.parquet"))

"""A folder of vectors: Parquet files ``part-00000.parquet``, ``part-00001.parquet`` and so on, more with each run.

All vectors have one vector id. A photo that was embedded again, because it changed or had failed, has two rows; the
later one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from clip_client._errors import VectorsError
from clip_client._vectors.vector_file import RESULT_COLUMNS, FileModel, batch_of, vector_schema, version_key
from clip_client.dedup.store.parquet_store import NUMBERED, Layout, ParquetStore

if TYPE_CHECKING:
    from clip_client._model import ModelInfo
    from clip_client._results import EmbeddingBatch


class VectorFolder(ParquetStore):
    """An open folder. Any number of processes may read it; one may write, inside the lock of the folder.

    A writer begins with :meth:`remove_abandoned` and adds each row as :func:`.vector_file.vector_row` gives it.
    """

    def __init__(self, folder: Path, model: FileModel | ModelInfo, layout: Layout = NUMBERED) -> None:
        """Open ``folder``, which is made if it does not exist.

        Raises StoreError if a file cannot be read, and VectorsError if the folder holds vectors of another id.
        """
        super().__init__(folder, vector_schema(model), layout)
        self._model = model
        for path, metadata in self.described().items():
            held = FileModel.of(path, metadata).vector_id
            if held != model.vector_id:
                raise VectorsError(
                    f"{path} holds vectors of {held}, which must not be compared with those of {model.vector_id}; "
                    "name another folder, or use the same model and transfer"
                )

    @classmethod
    def existing(cls, folder: Path) -> VectorFolder | None:
        """Open a folder for the model of its vectors; None if it holds none. Raises as the constructor."""
        for path, metadata in ParquetStore(folder, None, NUMBERED).described().items():
            return cls(folder, FileModel.of(path, metadata))
        return None

    def finished_keys(self, *, with_failed: bool) -> set[bytes]:
        """Return the :attr:`FileVersion.key` of every file with a vector; ``with_failed`` adds those that failed."""
        keys: set[bytes] = set()
        for table in self.scan(["path_bytes", "size_bytes", "mtime_ns", "error_code"]):
            for path, size_bytes, mtime_ns, code in zip(*(column.to_pylist() for column in table.columns), strict=True):
                if code is None or with_failed:
                    keys.add(version_key(path, size_bytes, mtime_ns))
        return keys

    def batches(self) -> Iterator[EmbeddingBatch]:
        """Yield the results in pieces of about a thousand; each path once, with its latest result."""
        for table in self.scan(RESULT_COLUMNS):
            yield batch_of(table, self._model)


def is_vector_folder(folder: Path) -> bool:
    """Tell whether ``clip-client embed`` has written into ``folder``."""
    return any(folder.glob("part-*.parquet"))

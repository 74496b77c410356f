"""Files and folders of vectors: one row per photo, with an error code and its reason if there is no vector."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import ItemError, VectorsError
from clip_client._files import FailedFile, printable, stored_ns
from clip_client._model import ModelInfo, tower_of
from clip_client._results import EmbeddingBatch
from clip_client._storage.parquet_store import ParquetStore, table_of
from clip_client._storage.sqlite import StoreError
from preprocess_ensemble.errors import first_line

_ROWS_PER_GROUP: Final = 1024
"""2 MB with 512 numbers each, the memory that writing and reading take."""

# Vectors and paths hardly repeat, so looking for repetitions would only cost time.
WRITER_OPTIONS: Final[Mapping[str, Any]] = {"use_dictionary": ["error_code", "error"]}

_RESULT_COLUMNS: Final = ("path_bytes", "vector", "error_code", "error")
PART_FILE: Final = re.compile(r"part-(\d{5,})(?:-([0-9a-f]{32}))?\.parquet")
"""Number and, if a cluster wrote it, key of a file. The files of one run of a cluster share the number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileVersion(os.PathLike[str]):
    """A path with the size and time that show whether the file has changed; a client embeds it like a path."""

    path: str  # absolute; a name that is not UTF-8 is kept with surrogateescape
    size_bytes: int | None = None
    mtime_ns: int | None = None  # since 1970; None, like the size, if the file could not be examined

    def __fspath__(self) -> str:
        return self.path

    @classmethod
    def of(cls, path: str) -> FileVersion:
        try:
            status = os.stat(path)
        except OSError:
            return cls(path=os.path.abspath(path))
        return cls(path=os.path.abspath(path), size_bytes=status.st_size, mtime_ns=stored_ns(status.st_mtime_ns))

    @property
    def key(self) -> bytes:
        """Hash of path, size and time, in 16 bytes, because a million of them are in memory at once."""
        return version_key(os.fsencode(self.path), self.size_bytes, self.mtime_ns)


def version_key(path: bytes, size_bytes: int | None, mtime_ns: int | None) -> bytes:
    return hashlib.blake2b(b"%s\0%r\0%r" % (path, size_bytes, mtime_ns), digest_size=16).digest()


class FileModel(NamedTuple):
    """The model of a file's vectors, with the field names of :class:`clip_client.ModelInfo`."""

    id: str
    vector_id: str
    dimension: int

    @classmethod
    def of(cls, path: object, metadata: Mapping[bytes, bytes]) -> FileModel:
        """Read the metadata of the Parquet file ``path``; raise VectorsError if it lacks the model."""
        try:
            return cls(metadata[b"model"].decode(), metadata[b"vector_id"].decode(), int(metadata[b"dimension"]))
        except (KeyError, ValueError):
            raise VectorsError(
                f"{path} does not name the model of its vectors: neither save_vectors nor clip-client embed wrote it"
            ) from None

    def check(self, path: object, vector_id: str) -> None:
        """Raise VectorsError unless the vectors of the file ``path`` have this id."""
        if self.vector_id != vector_id:
            raise VectorsError(
                f"{path} holds vectors of {self.vector_id}, which must not be compared with those of {vector_id}; name "
                "another folder, or use the same model and transfer"
            )


def vector_schema(model: FileModel | ModelInfo) -> Any:
    """Return the ``pyarrow.Schema`` of vectors in Parquet.

    ``path`` is text for people, and ``path_bytes`` the name in the file system; both are absolute, and null for an
    image that did not come from a file. ``size_bytes`` and ``mtime_ns`` are null if the file was not examined.
    ``vector`` is a list of D float32, NaN for a failed photo, because Arrow cannot read null lists of a fixed size.
    ``error_code`` and ``error`` are null unless the photo failed. The metadata holds ``model``, ``vector_id`` and
    ``dimension``.
    """
    import pyarrow as pa

    return pa.schema(
        {
            "path": pa.string(),
            "path_bytes": pa.binary(),
            "size_bytes": pa.int64(),
            "mtime_ns": pa.int64(),
            "vector": pa.list_(pa.float32(), model.dimension),
            "error_code": pa.string(),
            "error": pa.string(),
        },
        metadata={"model": model.id, "vector_id": model.vector_id, "dimension": str(model.dimension)},
    )


def vector_row(
    file: FileVersion | None, vector: NDArray[np.float32] | None = None, failure: FailedFile | ItemError | None = None
) -> Mapping[str, Any]:
    """Return the columns of :func:`vector_schema` for one photo: either ``vector``, (D,) float32, or ``failure``."""
    return {
        "path": file and printable(file.path),
        "path_bytes": file and os.fsencode(file.path),
        "size_bytes": file and file.size_bytes,
        "mtime_ns": file and file.mtime_ns,
        "vector": vector,
        "error_code": failure and failure.code,
        "error": failure and failure.message,
    }


@contextmanager
def parquet_file(file: IO[bytes], model: FileModel | ModelInfo) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give a function that adds rows to one Parquet file, written in row groups, so that memory stays bounded."""
    import pyarrow.parquet as pq

    schema = vector_schema(model)
    rows: list[Mapping[str, Any]] = []

    def write_group() -> None:
        writer.write_table(table_of(rows, schema))
        rows.clear()

    def add(row: Mapping[str, Any]) -> None:
        rows.append(row)
        if len(rows) == _ROWS_PER_GROUP:
            write_group()

    # Close the writer even if the file is thrown away: an open writer warns when it is collected.
    with pq.ParquetWriter(file, schema, **WRITER_OPTIONS) as writer:
        yield add
        if rows:
            write_group()


@contextmanager
def npz_file(file: IO[bytes], model: FileModel | ModelInfo) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give a function that adds rows to a NumPy archive, which is in memory until the end of the block.

    Arrays: ``vectors`` is (N, D) float32, NaN for a failed photo. ``paths`` and ``path_bytes`` are those of Parquet,
    empty for an image that did not come from a file. ``error_codes`` and ``errors`` are empty unless the photo failed.
    ``model`` and ``vector_id`` are single texts. The archive can be read without pickle.
    """
    rows: list[Mapping[str, Any]] = []
    yield rows.append
    vectors = np.full((len(rows), model.dimension), np.nan, dtype=np.float32)
    for place, row in zip(vectors, rows, strict=True):
        if row["vector"] is not None:
            place[:] = row["vector"]
    arrays = {
        "vectors": vectors,
        "paths": np.array([row["path"] or "" for row in rows], dtype=np.str_),
        "path_bytes": np.array([row["path_bytes"] or b"" for row in rows], dtype=np.bytes_),
        "error_codes": np.array([row["error_code"] or "" for row in rows], dtype=np.str_),
        "errors": np.array([row["error"] or "" for row in rows], dtype=np.str_),
        "model": np.array(model.id),
        "vector_id": np.array(model.vector_id),
    }
    # Write the archive here: np.savez leaves it open if the disk is full, and an open archive warns when collected.
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.save(entry, array, allow_pickle=False)


def read_parquet(path: Path) -> Iterator[EmbeddingBatch]:
    """Yield the results of one Parquet file, about a thousand at a time. Raises VectorsError if it has no vectors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # parquet_store.py has the reasons for Python's file, the buffer and use_threads=False.
    with open(path, "rb") as file, pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as parquet:
        model = FileModel.of(path, parquet.schema_arrow.metadata or {})
        for rows in parquet.iter_batches(_ROWS_PER_GROUP, columns=list(_RESULT_COLUMNS), use_threads=False):
            yield _batch_of(pa.Table.from_batches([rows]), model)


def read_npz(path: Path) -> EmbeddingBatch:
    # Open the file here, because np.load leaves a damaged file open.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        vectors = archive["vectors"]
        paths = [name or None for name in archive["path_bytes"].tolist()]
        model = FileModel(str(archive["model"]), str(archive["vector_id"]), vectors.shape[1])
        return _batch(vectors, paths, archive["error_codes"].tolist(), archive["errors"].tolist(), model)


def _batch_of(table: Any, model: FileModel | ModelInfo) -> EmbeddingBatch:
    numbers = table.column("vector").combine_chunks().flatten().to_numpy()
    paths, codes, messages = (table.column(name).to_pylist() for name in ("path_bytes", "error_code", "error"))
    return _batch(numbers.reshape(len(table), model.dimension), paths, codes, messages, model)


def _batch(
    vectors: NDArray[np.float32],
    paths: list[bytes | None],
    codes: list[str | None],
    messages: list[str | None],
    model: FileModel | ModelInfo,
) -> EmbeddingBatch:
    sources = tuple(None if path is None else os.fsdecode(path) for path in paths)
    kind = tower_of(model.vector_id).error
    errors = {
        index: kind(message or "", code=code, index=index, source=source)
        for index, (code, message, source) in enumerate(zip(codes, messages, sources, strict=True))
        if code
    }
    return EmbeddingBatch(vectors=vectors, errors=errors, model_id=model.id, vector_id=model.vector_id, sources=sources)


class VectorFolder(ParquetStore):
    """A folder of ``part-00000.parquet``, ``part-00001.parquet`` and so on, with vectors of one id.

    Any number of processes may read it; outside of a cluster only one may write, inside the folder's lock. A writer
    begins with :meth:`remove_abandoned` and adds rows of :func:`vector_row` in files of its own. Files never change,
    and a damaged file is an error. If a photo was embedded again, because it changed or had failed, the later row
    counts.
    """

    key = "path_bytes"
    writer_options = WRITER_OPTIONS
    # A cluster's workers name their unfinished files in such folders .part-00000-KEY.parquet.HEX.part.
    unfinished = ("part-*.part", ".part-*.parquet.*.part")
    rows_per_file = 10_000  # 20 MB of vectors, which a killed run may lose; a million photos have few files
    seconds_per_file = 300.0

    def __init__(self, folder: Path, model: FileModel | ModelInfo) -> None:
        super().__init__(folder, vector_schema(model))
        self._model = model
        for path in self._paths():
            _model_of(path).check(path, model.vector_id)

    @classmethod
    def existing(cls, folder: Path) -> VectorFolder | None:
        """Open a folder for the model of its vectors; None if it has no vectors. Raises the constructor's errors."""
        return next((cls(folder, _model_of(path)) for path in _parts(folder)), None)

    def finished_keys(self, *, with_failed: bool) -> set[bytes]:
        """Return the :attr:`FileVersion.key` of every file with a vector; ``with_failed`` adds failed files."""
        keys: set[bytes] = set()
        for table in self.scan(["path_bytes", "size_bytes", "mtime_ns", "error_code"]):
            for path, size_bytes, mtime_ns, code in zip(*(column.to_pylist() for column in table.columns), strict=True):
                if code is None or with_failed:
                    keys.add(version_key(path, size_bytes, mtime_ns))
        return keys

    def batches(self) -> Iterator[EmbeddingBatch]:
        """Yield the results in parts of about a thousand; each path comes once, with its latest result."""
        for table in self.scan(_RESULT_COLUMNS):
            yield _batch_of(table, self._model)

    def _paths(self) -> list[Path]:
        return _parts(self.folder)

    def _next_path(self) -> Path:
        paths = self._paths()
        return self.folder / f"part-{_number(paths[-1]) + 1 if paths else 0:05}.parquet"

    def _skip_damaged(self, path: Path, error: Exception) -> None:
        raise _unreadable(path, error)


def is_vector_folder(folder: Path) -> bool:
    return any(folder.glob("part-*.parquet"))


def _parts(folder: Path) -> list[Path]:
    try:
        found = (path for path in folder.iterdir() if PART_FILE.fullmatch(path.name))
        return sorted(found, key=lambda path: (_number(path), path.name))
    except OSError as error:
        raise StoreError(f"the folder {folder} cannot be read: {error.strerror}") from None


def _model_of(path: Path) -> FileModel:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open(path, "rb") as file:
            return FileModel.of(path, pq.read_schema(file).metadata or {})
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _number(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path} cannot be read ({first_line(error)}); move it away, and embed its photos again")

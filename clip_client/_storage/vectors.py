"""Load and save vectors in a Parquet file, a folder of Parquet files, or a NumPy archive."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client._errors import ItemError, VectorsError, require
from clip_client._model import tower_of
from clip_client._results import EmbeddingBatch
from preprocess_ensemble.errors import ReportedError, first_line
from preprocess_ensemble.whole_file import whole_file

if TYPE_CHECKING:
    from clip_client._storage.vector_file import FileModel

VECTOR_SUFFIXES: Final = (".parquet", ".npz")


def load_vectors(path: str | os.PathLike[str]) -> EmbeddingBatch:
    """Load the output of ``clip-client embed`` or :func:`save_vectors`.

    ``path`` is a folder, a ``.parquet`` file or an ``.npz`` file. In the result, ``sources`` are the absolute paths of
    the photos and None for texts, and ``errors`` says why some have no vector. If a photo has several rows in a folder,
    the last row counts.

    Raises VectorsError if the file cannot be read, has no vectors, or has vectors of several ids. Raises OSError if the
    file cannot be opened, and ImportError if ``pyarrow`` is missing, which all files except ``.npz`` need.
    """
    parts = list(stored_batches(path))
    if not parts:
        raise VectorsError(f"there are no vectors in {os.fspath(path)}")
    errors: dict[int, ItemError] = {}
    start = 0
    for part in parts:
        for index, error in part.errors.items():
            error.index = start + index
            errors[start + index] = error
        start += len(part)
    return EmbeddingBatch(
        vectors=np.concatenate([part.vectors for part in parts]),
        errors=errors,
        model_id=parts[0].model_id,
        vector_id=parts[0].vector_id,
        sources=tuple(source for part in parts for source in part.sources),
    )


def stored_batches(path: str | os.PathLike[str]) -> Iterator[EmbeddingBatch]:
    """Yield the results in a file or folder in parts of bounded size. Raises the errors of :func:`load_vectors`."""
    path = Path(path).expanduser()
    if path.is_dir() or path.suffix != ".npz":
        require("pyarrow", "cli")
    from clip_client._storage.vector_file import VectorFolder, read_npz, read_parquet

    try:
        if path.is_dir():
            folder = VectorFolder.existing(path)
            if folder is None:
                raise VectorsError(f"there are no vectors in {path}")
            yield from folder.batches()
        elif path.suffix == ".npz":
            yield read_npz(path)
        else:
            yield from read_parquet(path)
    except VectorsError:
        raise
    except ReportedError as error:  # a StoreError, whose message names the file
        raise VectorsError(str(error)) from error
    except (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise VectorsError(f"{path} is not a file of vectors, or is damaged ({first_line(error)})") from error


def save_vectors(path: str | os.PathLike[str], batch: EmbeddingBatch) -> None:
    """Write a batch in the formats of ``clip-client embed``.

    A name that ends in ``.parquet`` or ``.npz`` is a file, which is replaced. Any other name is a folder, to which the
    batch is added. In a folder the path is the key, so each image needs a path, and texts need a file, which does not
    keep them. The size and time of the photos are not known here, so ``clip-client embed`` embeds the photos again if
    it continues the folder.

    Raises VectorsError if the batch cannot be stored there, OSError if the disk refuses, and ImportError if ``pyarrow``
    is missing, which all files except ``.npz`` need.
    """
    path = Path(path).expanduser()
    if path.suffix != ".npz":
        require("pyarrow", "cli")
    from clip_client._storage.vector_file import FileModel, npz_file, parquet_file

    model = FileModel(batch.model_id, batch.vector_id, batch.vectors.shape[1])
    if path.suffix not in VECTOR_SUFFIXES or path.is_dir():
        _save_folder(path, batch, model)
        return
    opened = npz_file if path.suffix == ".npz" else parquet_file
    with whole_file(path) as file, opened(file, model) as add:
        _add_rows(batch, add)


def _save_folder(path: Path, batch: EmbeddingBatch, model: FileModel) -> None:
    require("filelock", "cli")
    from clip_client._storage.lock import AlreadyLocked, exclusive_lock
    from clip_client._storage.sqlite import StoreError
    from clip_client._storage.vector_file import VectorFolder

    if None in batch.sources:
        raise VectorsError(
            f"{tower_of(batch.vector_id).value} {batch.sources.index(None)} has no path, and a folder finds vectors by "
            "path: save to a .parquet or .npz file"
        )
    path.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive_lock(path / ".lock"):
            folder = VectorFolder(path, model)
            folder.remove_abandoned()
            _add_rows(batch, folder.add)
            folder.flush()
    except AlreadyLocked:
        raise VectorsError(f"another process is writing into {path}; wait for it, or stop it") from None
    except StoreError as error:
        raise VectorsError(str(error)) from error


def _add_rows(batch: EmbeddingBatch, add: Callable[[Mapping[str, Any]], None]) -> None:
    from clip_client._storage.vector_file import FileVersion, vector_row

    for index, (source, vector) in enumerate(zip(batch.sources, batch.vectors, strict=True)):
        file = None if source is None else FileVersion(path=os.path.abspath(source))
        failure = batch.errors.get(index)
        add(vector_row(file, None if failure else vector, failure))

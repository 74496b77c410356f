"""The index of a store's vectors. It lies beside them in the store, and is made again from them if it is lost."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from clip_client._errors import VectorsError
from clip_client._model import ModelInfo
from clip_client._results import Embedder
from clip_client._storage.lock import AlreadyLocked, exclusive_lock
from clip_client._storage.parquet_store import ParquetStore
from clip_client._storage.sqlite import StoreError
from clip_client.dedup.features.collect import collect_features
from clip_client.dedup.features.image_features import ALGORITHM, cached_features
from clip_client.dedup.store.store import Store, folder_name
from clip_client.dedup.types import OnProgress, PhotoFile
from clip_client.search.filters import FACTS, facts_table
from clip_client.search.photo_index import MOST_IN_SEGMENT, PhotoIndex
from clip_client.search.space import SearchSpace

_PATIENCE_S: Final = 120.0
"""Longest wait, in seconds, for another process that updates the index; a million vectors take half a minute."""


def stored_ids(store: Store) -> dict[str, int]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = {}
    for folder in sorted((store.directory / "vectors").glob("*")):
        for path in sorted(folder.glob("*.parquet"))[:1]:
            try:
                with open(path, "rb") as file:
                    schema = pq.read_schema(file)
                found[schema.metadata[b"vector_id"].decode()] = schema.field("vector").type.list_size
            except (OSError, KeyError, TypeError, AttributeError, pa.ArrowException):
                continue  # damaged; a search for duplicates computes its vectors again
    return found


def store_index(store: Store, vector_id: str, on_progress: OnProgress | None = None) -> PhotoIndex:
    """Update the index of one ``vector_id`` from the store, and open it. Its keys are SHA-256s of files.

    The index has the columns :data:`~clip_client.search.filters.FACTS`. Raises VectorsError if the store has no vectors
    of this id, and StoreError if the store cannot be read or written.
    """
    known = stored_ids(store)
    if vector_id not in known:
        others = f"; it has vectors of {', '.join(known)}" if known else ""
        raise VectorsError(
            f"the store {store.directory} has no vectors of {vector_id}{others}; name the folder of the photos, and "
            "they are embedded with this model"
        )
    folder = store.directory / "index" / folder_name(vector_id)
    vectors, features = store.vectors(vector_id, known[vector_id]), cached_features(store)
    stamp = _stamp(vectors, features)
    for path in folder.glob("neutral-*.npz"):  # left by earlier versions, which compared results with these vectors
        with suppress(OSError):
            path.unlink()
    index = _opened(folder)
    if index is not None and index.about.get("stamp") == stamp:
        return index
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder.with_suffix(".lock"), wait_s=_PATIENCE_S):
            index = _opened(folder) or PhotoIndex(known[vector_id], vector_id=vector_id)
            if index.about.get("stamp") != stamp:
                _update(index, folder, vectors, features, on_progress or (lambda what, done, total: None))
                index.about.update(stamp=stamp, algorithm=ALGORITHM)
                index.save(folder)
    except AlreadyLocked:
        raise StoreError(f"another process is writing the index in {folder}; wait for it, or stop it") from None
    except OSError as error:
        raise StoreError(f"the index in {folder} cannot be written: {error.strerror or error}") from error
    return index


async def embed_files(
    embedder: Embedder, files: Sequence[PhotoFile], store: Store, on_progress: OnProgress
) -> SearchSpace:
    model = await embedder.model()
    index, known = await to_thread.run_sync(_index_and_known, store, model, files, on_progress)
    held = set(index.keys())
    failed = []
    if new := [file for file in files if known.get(file.path) not in held]:
        collected = await collect_features(embedder, new, store, on_progress)
        failed = [*collected.failed, *collected.undecodable]
        index, known = await to_thread.run_sync(_index_and_known, store, model, files, on_progress)
    paths: dict[str, list[str]] = {}
    for path, content in known.items():
        paths.setdefault(content, []).append(path)
    return SearchSpace(index=index, store=store, paths=paths, inside=index.holding(paths), failed=failed)


def _index_and_known(
    store: Store, model: ModelInfo, files: Sequence[PhotoFile], on_progress: OnProgress
) -> tuple[PhotoIndex, dict[str, str]]:
    known = store.files.known(files)
    if model.vector_id in stored_ids(store):
        return store_index(store, model.vector_id, on_progress), known
    return PhotoIndex(model.dimension, vector_id=model.vector_id), known


def _stamp(*tables: ParquetStore) -> str:
    """Return a digest of the tables' file names. It changes with every new file; the files themselves never change."""
    names = (name for table in tables for name in sorted(os.listdir(table.folder)) if name.endswith(".parquet"))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _opened(folder: Path) -> PhotoIndex | None:
    """Open an index; None if it has to be made again, because it is damaged or has facts of another version."""
    try:
        index = PhotoIndex.open(folder)
    except (FileNotFoundError, VectorsError):
        return None
    return index if index.about.get("algorithm") == ALGORITHM else None


def _update(
    index: PhotoIndex, folder: Path, vectors: ParquetStore, features: ParquetStore, on_progress: OnProgress
) -> None:
    """Add the contents of the store that the index lacks. A content without features is added once it has them."""
    import pyarrow as pa

    new = sorted((vectors.keys() & features.keys()) - {bytes.fromhex(key) for key in index.keys()})
    for start in range(0, len(new), MOST_IN_SEGMENT):
        on_progress("indexing", start, len(new))
        keys = new[start : start + MOST_IN_SEGMENT]
        found: list[NDArray[np.float32]] = []
        contents: list[bytes] = []
        for positions, table in vectors.find(keys, ["vector", "code"]):
            has_vector = np.array([not code for code in table.column("code").to_pylist()], dtype=bool)
            numbers = table.column("vector").combine_chunks().flatten().to_numpy().reshape(len(table), -1)
            contents += [keys[position] for position in positions[has_vector].tolist()]
            found.append(numbers[has_vector])
        if not contents:
            continue
        order = np.empty(len(contents), dtype=np.intp)
        facts: list[pa.Table] = []
        for positions, table in features.find(contents, [*FACTS, "taken"]):
            order[positions] = np.arange(len(table)) + sum(map(len, facts))
            facts.append(table)
        about = facts_table(pa.concat_tables(facts).take(order))
        index.add([key.hex() for key in contents], np.concatenate(found), about)
        if len(new) > MOST_IN_SEGMENT:
            index.save(folder)  # frees memory, because saved segments are memory-mapped
    on_progress("indexing", len(new), len(new))

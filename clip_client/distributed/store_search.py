"""The search for duplicates of one machine, with a cluster that embeds new photos and divides photos into groups."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from anyio import to_thread

from clip_client._config import ClientConfig
from clip_client._files import FailedFile
from clip_client._results import Embedder
from clip_client._storage.vector_file import FileModel, FileVersion, VectorFolder, vector_row
from clip_client.dedup.features.collect import CollectedFeatures
from clip_client.dedup.features.image_features import cached_features
from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.files.scanner import Scan
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.search import GroupRules, collect, group_contents, judge, told_by_thread
from clip_client.dedup.store.store import Store, folder_name
from clip_client.dedup.types import OnProgress, PhotoFile
from clip_client.distributed.duplicates import ROWS_AT_ONCE, FolderSearch
from clip_client.distributed.embedded_rows import EmbeddedRows, embedded_schema, vectors_in
from clip_client.distributed.embedding import embed_partitions, served_model
from clip_client.distributed.sources import image_files
from clip_client.distributed.storage import Location


def cluster_folder(store: Store) -> Path:
    """Return the folder of a store that a cluster uses; one program at a time may use it."""
    return store.directory / "cluster"


def fill_store(
    files: Sequence[PhotoFile],
    store: Store,
    config: ClientConfig,
    *,
    workers: int | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> FileModel:
    """Add the features and vectors of ``files`` to ``store`` where they are missing; return the model of the vectors.

    Every worker must see the files and the store. Files that a worker could not read, and RAW files without a preview,
    are left to the search, which reports the reason. Arguments and errors are those of :func:`.embed_partitions`. Also
    raises StoreError.
    """
    config, model = served_model(None, config)
    folder = cluster_folder(store) / folder_name(model.vector_id)
    _take_over(folder, store, model, files)
    known = store.files.known(files)
    with_features = cached_features(store).keys()
    with_vector = store.vectors(model.vector_id, model.dimension).keys()

    def is_done(file: PhotoFile) -> bool:
        key = bytes.fromhex(known.get(file.path, ""))
        return key in with_features and (key in with_vector or is_raw(file.path))

    partitions = image_files([file.path for file in files if not is_done(file)])
    embed_partitions(partitions, output=folder, features=True, config=config, workers=workers, on_progress=on_progress)
    _take_over(folder, store, model, files)
    return model


def _take_over(folder: Path, store: Store, model: FileModel, examined: Sequence[PhotoFile]) -> None:
    """Copy the rows of a cluster's files into the caches of the store, and remove the files.

    A row does not have the time of the last change of any kind (ctime). If a file of ``examined`` has not changed since
    the rows were written, the file is as it was read. The search hashes the other files.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    features, vectors = cached_features(store), store.vectors(model.vector_id, model.dimension)
    before = {os.path.abspath(file.path): file for file in examined}
    for path in sorted(folder.glob("part-*.parquet")):
        files, written_ns = [], path.stat().st_mtime_ns
        with open(path, "rb") as file, pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(1024, use_threads=False):
                table = pa.Table.from_batches([batch])
                for row, vector in zip(table.drop_columns(["vector"]).to_pylist(), vectors_in(table), strict=True):
                    if row["sha256"] is None:
                        continue
                    features.add(row)
                    if row["error_code"] is None:
                        vectors.add({"sha256": row["sha256"], "vector": np.array(vector), "code": "", "message": ""})
                    elif not is_raw(os.fsdecode(row["path_bytes"])):
                        failure = {"code": row["error_code"], "message": row["error"]}
                        vectors.add({"sha256": row["sha256"], "vector": None, **failure})
                    if row["mtime_ns"] is not None:
                        version = PhotoFile(os.fsdecode(row["path_bytes"]), row["size_bytes"], row["mtime_ns"])
                        found = before.get(os.path.abspath(version.path), version)
                        is_as_read = found.is_as(version) and (found.ctime_ns or 0) < written_ns
                        files.append((found if is_as_read else version, row["sha256"].hex()))
        features.flush()
        vectors.flush()
        store.files.remember(files)
        path.unlink()


async def find_on_cluster(
    clip: Embedder | None,
    model: FileModel,
    found: Scan,
    store: Store,
    *,
    merge_metadata: bool,
    on_progress: OnProgress,
    **how: Any,
) -> DuplicateReport:
    """Find duplicates as on one machine, with groups from the cluster; ``model`` is :func:`fill_store`'s."""
    collected, rules = await collect(clip, found, store, on_progress, **how)
    grouped = await to_thread.run_sync(_group_on_cluster, model, collected, rules, store, told_by_thread(on_progress))
    return await judge(grouped, collected, found, store, on_progress, merge_metadata=merge_metadata)


def _group_on_cluster(
    model: FileModel, collected: CollectedFeatures, rules: GroupRules, store: Store, on_progress: OnProgress
) -> DuplicateReport:
    """Divide the contents into groups, as :func:`.group_contents` does; continue where a killed search has stopped."""
    if not collected.contents:
        return group_contents(collected, rules, store, on_progress)
    folder = cluster_folder(store) / "search"
    _write_rows(collected, model, folder / "vectors")
    _, grouped = FolderSearch(
        rows=EmbeddedRows.of(Location.of(folder / "vectors"), ROWS_AT_ONCE // 2),
        output=Location.of(folder / "duplicates"),
        rules=rules,
        returns_groups_in=os.getcwd(),
        progress=on_progress,
    ).run()
    shutil.rmtree(folder, ignore_errors=True)
    return grouped


def _write_rows(collected: CollectedFeatures, model: FileModel, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    rows = VectorFolder(folder, model)
    rows.schema = embedded_schema(model, features=True)  # more columns than those of vectors alone
    for vector, sha256 in zip(collected.vectors_of(collected.contents), collected.contents, strict=True):
        features = collected.features[sha256]
        code, message = collected.refused.get(sha256, (features.code, features.message))
        columns = {"sha256": bytes.fromhex(sha256), **features.to_row()}
        for file in collected.copies[sha256]:
            version = FileVersion(path=file.path, size_bytes=file.size_bytes, mtime_ns=file.mtime_ns)
            failure = FailedFile(path=file.path, code=code, message=message) if np.isnan(vector[0]) else None
            rows.add({**vector_row(version, None if failure else vector, failure), **columns})
    rows.flush()

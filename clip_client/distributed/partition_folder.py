"""A folder of vectors that a cluster fills: one Parquet file for each partition of the input.

The files belong to a :class:`.vector_file.VectorFolder`, so ``clip-client embed`` continues the folder, and a cluster
continues a folder of ``clip-client embed``. A cluster's file is called ``part-NUMBER-KEY.parquet``. The key is a hash
of the partition's id and the vector id, so a file with this key means that the partition is finished, and work that is
repeated replaces its file. The number orders the files of different runs: of two rows of one path the later counts.
``Dataset.write_parquet`` is not used: the file of a worker that was killed stays there incomplete, and no file says
which part of the input it holds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from clip_client._errors import VectorsError
from clip_client._vectors.vector_file import WRITER_OPTIONS, FileModel, vector_schema, version_key
from clip_client.dedup.features.image_features import ALGORITHM, feature_columns
from clip_client.dedup.store.parquet_store import table_of
from clip_client.distributed.cluster import DistributedError
from clip_client.distributed.sources import Partition, id_of
from preprocess_ensemble.errors import first_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.distributed.storage import Location

PART_FILE: Final = re.compile(r"part-(\d{5,})(?:-([0-9a-f]{32}))?\.parquet")
"""A file of vectors: the number of its run, and its key if a cluster wrote it."""
_KEY_COLUMNS: Final = ("path_bytes", "size_bytes", "mtime_ns")
_ABANDONED_S: Final = 3600.0
"""An unfinished file that is this old belongs to a worker that was killed."""


def embedded_schema(model: FileModel, *, features: bool) -> Any:
    """Return the ``pyarrow.Schema`` of the rows: :func:`.vector_file.vector_schema` and, with ``features``, more.

    These are ``sha256`` and the columns of :class:`~clip_client.dedup.features.image_features.ImageFeatures`, as in a
    store; null for an image that could not be read.
    """
    import pyarrow as pa

    schema = vector_schema(model)
    if features:
        for name, kind in {"sha256": pa.binary(32), **feature_columns()}.items():
            schema = schema.append(pa.field(name, kind))
        schema = schema.with_metadata({**schema.metadata, "algorithm": ALGORITHM})
    return schema


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionFolder:
    """A folder for the vectors of one model; workers get a copy."""

    location: Location
    model: FileModel
    features: bool
    number: int = 0
    """Of this run."""
    finished: NDArray[np.bytes_] = field(default_factory=lambda: np.empty(0, "S16"))
    """Keys of the images that files of other runs hold, sorted, (N,) of 16 bytes. An anti-join of Ray Data would
    shuffle the keys of all images instead."""

    def begin(self, partitions: Sequence[Partition]) -> tuple[Self, list[Partition]]:
        """Return the folder as this run sees it, and which of its ``partitions`` are not finished.

        Raises VectorsError if the folder holds vectors of another id or without features, and DistributedError if it
        cannot be read or written.
        """
        try:
            self.location.filesystem.create_dir(self.location.path, recursive=True)
            infos = self.location.files(recursive=False)
            self._remove_abandoned(infos)
        except OSError as error:
            raise DistributedError(f"{self.location} cannot be used for the output: {first_line(error)}") from error
        keys = {self._key(partition): partition for partition in partitions}
        files = [match for info in infos if (match := PART_FILE.fullmatch(info.base_name))]
        held = {match[2] for match in files}
        last = max((int(match[1]) for match in files), default=0)
        # A run that starts again keeps its number: a file that a worker of the dead driver still writes is replaced.
        is_again = all(match[2] in keys for match in files if int(match[1]) == last)
        finished = self._finished_keys([match[0] for match in files if match[2] not in keys])
        started = replace(self, number=last if is_again else last + 1, finished=finished)
        return started, [partition for key, partition in keys.items() if key not in held]

    @contextmanager
    def writing(self, partition: Partition) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], None]]:
        """Give what writes a row group of a partition's file, as :meth:`Location.written` does."""
        import pyarrow.parquet as pq

        place = self.location / f"part-{self.number:05}-{self._key(partition)}.parquet"
        schema = embedded_schema(self.model, features=self.features)
        with place.written() as file, pq.ParquetWriter(file, schema, **WRITER_OPTIONS) as writer:
            yield lambda rows: writer.write_table(table_of(rows, schema))

    def _key(self, partition: Partition) -> str:
        return id_of(partition.id, self.model.vector_id, self.features and ALGORITHM)

    def _finished_keys(self, names: Sequence[str]) -> NDArray[np.bytes_]:
        """Return the keys of the images in files that belong to none of the partitions."""
        import pyarrow.parquet as pq

        keys: list[bytes] = []
        for place in (self.location / name for name in names):
            with place.opened("move it away") as file, pq.ParquetFile(file) as parquet:
                schema = parquet.schema_arrow
                held = FileModel.of(place, schema.metadata or {}).vector_id
                if held != self.model.vector_id:
                    raise VectorsError(
                        f"{place} holds vectors of {held}, which must not be compared with those of "
                        f"{self.model.vector_id}; name another folder, or use the same model and transfer"
                    )
                if self.features and "sha256" not in schema.names:
                    raise VectorsError(f"{place} holds vectors without features of the photos; name another folder")
                for batch in parquet.iter_batches(columns=list(_KEY_COLUMNS)):
                    rows = zip(*(batch.column(column).to_pylist() for column in _KEY_COLUMNS), strict=True)
                    keys += [version_key(path or b"", size, mtime) for path, size, mtime in rows]
        finished: NDArray[np.bytes_] = np.unique(np.array(keys, dtype="S16"))
        return finished

    def _remove_abandoned(self, infos: Sequence[Any]) -> None:
        for info in infos:
            if info.base_name.startswith(".") and info.base_name.endswith(".part"):
                if info.mtime_ns is None or time.time() - info.mtime_ns / 1e9 > _ABANDONED_S:
                    self.location.filesystem.delete_file(info.path)

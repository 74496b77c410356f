"""What Ray calls to embed: with a partition, or with the rows of a dataset."""

from __future__ import annotations

import hashlib
import itertools
import logging
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client._encoding import EncodedImage
from clip_client._errors import ImageError, VectorsError
from clip_client._pipeline.encoder import ImageEncoder
from clip_client._pipeline.images import too_large
from clip_client._sync import SyncClipClient
from clip_client._vectors.vector_file import vector_row
from clip_client.dedup.features.image_features import BYTES_ONLY, ModelInput, extract_features
from clip_client.dedup.features.preview import picture_file
from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.store.parquet_store import table_of
from clip_client.distributed.cluster import DistributedError
from clip_client.distributed.partition_folder import embedded_schema
from clip_client.distributed.sources import DamagedInput, check_column, column_values, image_in_row
from preprocess_ensemble.errors import ReportedError, first_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client._config import ClientConfig
    from clip_client._model import ModelInfo
    from clip_client._vectors.vector_file import FileModel, FileVersion
    from clip_client.distributed.partition_folder import PartitionFolder
    from clip_client.distributed.sources import Partition, SourceImage

_logger = logging.getLogger("clip_client")

_THREADS: Final = 16
"""Threads that read and reduce images: more than cores, because most of them wait for a disk or a bucket."""

_AHEAD: Final = 32
"""Images of one partition that are read before the client takes them."""

_ROWS_PER_GROUP: Final = 1024
"""Of a Parquet file: 2 MB of vectors, which is what a worker holds of a partition of any size."""

_COUNTED_AT_ONCE: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """One image that was read."""

    index: int
    file: FileVersion
    sent: bytes | None = None
    """What the client sends; None if the image failed."""
    failure: ImageError | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Hash and features, if they were asked for."""
    is_lost: bool = False
    """Its place could not be reached, which differs from a file that never was there."""


class ImageEmbedder:
    """Embeds images for one worker."""

    def __init__(self, clip: SyncClipClient, config: ClientConfig, expected: FileModel, *, features: bool) -> None:
        self._clip = clip
        self._config = config
        self._expected = expected
        self._features = features
        self._encoder = ImageEncoder(config)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="clip_client reader")

    def rows(
        self, images: Iterable[SourceImage], finished: NDArray[np.bytes_] | None = None
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the index and the row of each image, in any order; those whose keys are in ``finished`` are skipped.

        A row has the columns of :func:`.partition_folder.embedded_schema`. Raises what ``embed_stream`` and ``images``
        raise, VectorsError if the servers have another model than the job, and DistributedError if not one image could
        be reached.
        """
        model = self._clip.model()
        if model.vector_id != self._expected.vector_id:
            raise VectorsError(
                f"the servers now serve {model.vector_id}, and the job has vectors of {self._expected.vector_id}"
            )
        sent: list[_Prepared] = []
        failed: list[_Prepared] = []

        def payloads() -> Iterator[bytes]:
            for one in self._prepared(images, model, finished):
                if one.sent is None:
                    failed.append(one)
                else:
                    sent.append(replace(one, sent=None))
                    yield one.sent

        for item in self._clip.embed_stream(payloads(), ordered=False):
            one = sent[item.index]
            yield one.index, {**vector_row(one.file, item.vector, item.error), **one.columns}
        if not sent and failed and all(one.is_lost for one in failed):
            first = str(failed[0].failure).rstrip(".")
            raise DistributedError(f"not one of its {len(failed):,} images could be read; the first: {first}")
        for one in failed:
            yield one.index, {**vector_row(one.file, failure=one.failure), **one.columns}

    def _prepared(
        self, images: Iterable[SourceImage], model: ModelInfo, finished: NDArray[np.bytes_] | None
    ) -> Iterator[_Prepared]:
        """Read images in other threads, a few ahead. The client takes no more than it can send, so reading waits."""
        ahead: deque[Future[_Prepared]] = deque()
        for index, image in enumerate(images):
            if finished is not None and _holds(finished, image.file.key):
                continue
            ahead.append(self._pool.submit(self._prepare, index, image, model))
            if len(ahead) == _AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _prepare(self, index: int, image: SourceImage, model: ModelInfo) -> _Prepared:
        """Read one image and make of it what is sent. Raises ProtocolMismatch, as :meth:`ImageEncoder.encode` does."""
        file = image.file
        columns: dict[str, Any] = {}
        try:
            if file.size_bytes is not None and file.size_bytes > self._config.max_image_bytes:
                raise too_large(file.size_bytes, self._config.max_image_bytes)
            data, mtime_ns = image.read()
            if file.size_bytes is not None:
                # A disk of this machine may hold another file under the path that the driver has examined.
                file = replace(file, size_bytes=len(data), mtime_ns=mtime_ns or file.mtime_ns)
            if not data:
                raise ImageError("The file is empty.", code="EMPTY")
        except ImageError as error:
            return _Prepared(index=index, file=file, failure=error)
        except Exception as error:  # object stores and their libraries raise all kinds
            # A file that the driver has seen and a worker does not find is on a disk that only one of them has.
            is_gone = isinstance(error, FileNotFoundError) and file.size_bytes is None
            is_lost = not (is_gone or isinstance(error, PermissionError | IsADirectoryError))
            reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
            failure = ImageError(f"The file cannot be read: {reason}.", code="UNREADABLE", source=file.path)
            return _Prepared(index=index, file=file, failure=failure, is_lost=is_lost)
        try:
            payload = self._extract(file.path, data, model, columns) if self._features else None
            if payload is None:
                payload = EncodedImage.of(self._encoder.encode(data, model), data)
        except ImageError as error:
            return _Prepared(index=index, file=file, failure=error, columns=columns)
        return _Prepared(index=index, file=file, sent=payload, columns=columns)

    def _extract(self, path: str, data: bytes, model: ModelInfo, columns: dict[str, Any]) -> bytes | None:
        """Put hash and features into ``columns``; return what is sent if that falls off, None if not."""
        as_raw = is_raw(path)
        features, payload = extract_features(data, ModelInput.of(model), is_raw=as_raw)
        columns |= {"sha256": hashlib.sha256(data).digest(), **features.to_row()}
        if features.code == BYTES_ONLY:
            raise ImageError(features.message, code=BYTES_ONLY)
        if payload is None and as_raw:
            preview = picture_file(path, data)
            return EncodedImage.of(self._encoder.encode(preview, model), preview)
        return payload


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a partition."""

    images: int = 0
    failed: int = 0
    error: str = ""
    """Why the partition could not be finished."""


def embed_partition(
    partition: Partition, config: ClientConfig, folder: PartitionFolder, number: int, finished: NDArray[np.bytes_]
) -> Iterator[int | Outcome]:
    """Write the rows of a partition, except of images in ``finished``, into its file with the ``number`` of a run.

    Yields how many images are embedded, several times, and the outcome. Raises DistributedError, which names the
    partition, for what the other partitions would meet, too; then there is no file.
    """
    images = failed = 0
    waiting: list[Mapping[str, Any]] = []
    try:
        with folder.writing(partition, number) as write, SyncClipClient(config=config) as clip:
            rows = ImageEmbedder(clip, config, folder.model, features=folder.features).rows(
                partition.images(), finished
            )
            while some := [row for _, row in itertools.islice(rows, _COUNTED_AT_ONCE)]:
                images += len(some)
                failed += sum(row["error_code"] is not None for row in some)
                waiting += some
                if len(waiting) >= _ROWS_PER_GROUP:
                    write(waiting)
                    waiting = []
                yield images
            if waiting:
                write(waiting)
        yield Outcome(images=images, failed=failed)
    except DamagedInput as error:  # it names the partition
        yield Outcome(error=str(error))
    except OSError as error:
        # Each machine may have a disk of its own under the same name.
        raise DistributedError(
            f"{partition.name}: {socket.gethostname()} cannot write into {folder.location}: "
            f"{error.strerror or first_line(error)}"
        ) from error
    except ReportedError as error:
        raise DistributedError(f"{partition.name}: {error}") from error
    except Exception as error:  # a fault, whose traceback is in Ray's log files
        _logger.exception("%s failed", partition.name)
        yield Outcome(error=f"{partition.name}: {type(error).__name__}: {first_line(error)}")


class RowWorker:
    """The actor that adds vectors to the rows of a dataset; any number of threads may call it."""

    def __init__(self, config: ClientConfig, model: FileModel, column: str, *, features: bool) -> None:
        import pyarrow as pa

        self._embedder = ImageEmbedder(SyncClipClient(config=config).open(), config, model, features=features)
        schema = embedded_schema(model, features=features)
        new = [name for name in schema.names if name not in ("path", "path_bytes", "size_bytes", "mtime_ns")]
        self._schema = pa.schema([schema.field(name) for name in new])
        self._column = column

    def __call__(self, table: Any) -> Any:
        """Return a ``pyarrow.Table`` with the columns of :func:`embedded_schema` after its own."""
        check_column(table.schema, self._column, "the dataset")
        values = column_values(table, self._column)
        images = (image_in_row(one, one if isinstance(one, str) else str(row)) for row, one in enumerate(values))
        rows = [row for _, row in sorted(self._embedder.rows(images), key=lambda one: one[0])]
        new = table_of(rows, self._schema)
        for name in self._schema.names:
            table = table.append_column(self._schema.field(name), new.column(name))
        return table


def _holds(keys: NDArray[np.bytes_], key: bytes) -> bool:
    at = int(np.searchsorted(keys, np.bytes_(key)))
    return at < len(keys) and bool(keys[at] == np.bytes_(key))

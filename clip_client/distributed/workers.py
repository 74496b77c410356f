"""The actors of a job: Ray calls them with partitions, or with rows that hold images."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from anyio import to_thread

from clip_client._client import ClipClient
from clip_client._encoding import EncodedImage
from clip_client._errors import ImageError, VectorsError
from clip_client._pipeline.encoder import ImageEncoder
from clip_client._pipeline.images import too_large
from clip_client._vectors.vector_file import vector_row
from clip_client.dedup.features.image_features import BYTES_ONLY, extract_features
from clip_client.dedup.features.model_input import ModelInput, extract_with_input
from clip_client.dedup.features.preview import raw_preview
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
    from clip_client._vectors.file_model import FileModel
    from clip_client._vectors.file_version import FileVersion
    from clip_client.distributed.partition_folder import PartitionFolder
    from clip_client.distributed.sources import Partition, SourceImage

Result = TypeVar("Result")

_logger = logging.getLogger("clip_client")

_THREADS: Final = 16
"""Threads that read and reduce images: more than cores, because most of them wait for a disk or a bucket."""

_AHEAD: Final = 32
"""Images of one partition that are read before the client takes them."""

_ROWS_PER_GROUP: Final = 1024
"""Of a Parquet file: 2 MB of vectors, which is what a worker holds of a partition of any size."""

_PARTITIONS_AT_ONCE: Final = 2
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
    """Embeds images for one worker. It belongs to the event loop that first uses it."""

    def __init__(self, config: ClientConfig, expected: FileModel, *, features: bool) -> None:
        self._config = config
        self._expected = expected
        self._features = features
        self._encoder = ImageEncoder(config)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="clip_client reader")
        self._opening = asyncio.Lock()
        self._client: ClipClient | None = None

    async def rows(
        self, images: Iterable[SourceImage], *, finished: NDArray[np.bytes_] | None = None
    ) -> AsyncGenerator[tuple[int, Mapping[str, Any]], None]:
        """Yield the index and the row of each image, in any order; those whose keys are in ``finished`` are skipped.

        A row has the columns of :func:`.partition_folder.embedded_schema`. Raises what ``embed_stream`` and ``images``
        raise, VectorsError if the servers have another model than the job, and OSError if not one image could be
        reached.
        """
        async with self._opening:
            if self._client is None:
                self._client = await ClipClient(config=self._config).__aenter__()
        model = await self._client.model()
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

        async with aclosing(self._client.embed_stream(payloads(), ordered=False)) as items:
            async for item in items:
                one = sent[item.index]
                yield one.index, {**vector_row(one.file, item.vector, item.error), **one.columns}
        if not sent and failed and all(one.is_lost for one in failed):
            first = str(failed[0].failure).rstrip(".")
            raise OSError(f"not one of its {len(failed):,} images could be read; the first: {first}")
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
        features, payload = extract_with_input(extract_features, data, ModelInput.of(model), is_raw=as_raw)
        columns |= {"sha256": hashlib.sha256(data).digest(), **features.to_row()}
        if features.code == BYTES_ONLY:
            raise ImageError(features.message, code=BYTES_ONLY)
        if payload is None and as_raw and (preview := raw_preview(data)) is not None:
            return EncodedImage.of(self._encoder.encode(preview, model), preview)
        return payload


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a partition: a row of a few bytes in Ray's object store."""

    partition: str
    images: int = 0
    failed: int = 0
    error: str = ""
    """Why the partition could not be finished."""
    ends_job: bool = False
    """The reason will hold for the other partitions, too."""


class PartitionWorker:
    """Embeds whole partitions, each into its file."""

    def __init__(
        self,
        config: ClientConfig,
        folder: PartitionFolder,
        number: int,
        finished: NDArray[np.bytes_],
        count: Callable[[int], object] = lambda images: None,
    ) -> None:
        """Write files with the ``number`` of a run, without the images in ``finished``; ``count`` gets how many."""
        self._embedder = ImageEmbedder(config, folder.model, features=folder.features)
        self._folder = folder
        self._number = number
        self._finished = finished
        self._count = count
        self._free = asyncio.Semaphore(_PARTITIONS_AT_ONCE)

    async def __call__(self, batch: Mapping[str, Any]) -> AsyncGenerator[dict[str, list[Any]], None]:
        """Embed the partition in each row of ``batch`` and yield its :class:`Outcome` as a row."""
        for packed in batch["partition"]:
            outcome = await self._outcome(pickle.loads(packed))
            yield {name: [value] for name, value in vars(outcome).items()}

    async def _outcome(self, partition: Partition) -> Outcome:
        try:
            async with self._free:
                return await self.embed(partition)
        except DistributedError as error:  # it names the partition
            reason, ends_job = str(error), not isinstance(error, DamagedInput)
        except (ReportedError, OSError) as error:
            reason, ends_job = f"{partition.name}: {error}", True
        except Exception as error:  # a fault, whose traceback is in Ray's log files
            _logger.exception("%s failed", partition.name)
            reason, ends_job = f"{partition.name}: {type(error).__name__}: {first_line(error)}", False
        return Outcome(partition=partition.name, error=reason, ends_job=ends_job)

    async def embed(self, partition: Partition) -> Outcome:
        """Write the rows of a partition.

        Raises DistributedError, or what :meth:`ImageEmbedder.rows` and writing a file raise; then there is no file.
        """
        images = failed = 0
        waiting: list[Mapping[str, Any]] = []
        file = await self._tried(partition, self._folder.open_file, partition, self._number)
        try:
            async with aclosing(self._embedder.rows(partition.images(), finished=self._finished)) as rows:
                async for _, row in rows:
                    images += 1
                    failed += row["error_code"] is not None
                    waiting.append(row)
                    if images % _COUNTED_AT_ONCE == 0:
                        self._count(_COUNTED_AT_ONCE)
                    if len(waiting) == _ROWS_PER_GROUP:
                        await self._tried(partition, file.write, waiting)
                        waiting = []
            if waiting:
                await self._tried(partition, file.write, waiting)
            await self._tried(partition, file.commit)
        except BaseException as error:
            with suppress(OSError):
                file.abort(error)
            raise
        self._count((partition.count or images) - images // _COUNTED_AT_ONCE * _COUNTED_AT_ONCE)
        return Outcome(partition=partition.name, images=images, failed=failed)

    async def _tried(self, partition: Partition, step: Callable[..., Result], *arguments: Any) -> Result:
        """Do one step with the output in a thread. Raises DistributedError if a disk is full or a bucket is away."""
        try:
            return await to_thread.run_sync(step, *arguments)
        except OSError as error:
            # Each machine may have a disk of its own under the same name.
            raise DistributedError(
                f"{partition.name}: {socket.gethostname()} cannot write into {self._folder.location}: "
                f"{error.strerror or first_line(error)}"
            ) from error


class RowWorker:
    """Adds vectors to rows that hold images."""

    def __init__(self, config: ClientConfig, model: FileModel, column: str, *, features: bool) -> None:
        import pyarrow as pa

        self._embedder = ImageEmbedder(config, model, features=features)
        schema = embedded_schema(model, features=features)
        new = [name for name in schema.names if name not in ("path", "path_bytes", "size_bytes", "mtime_ns")]
        self._schema = pa.schema([schema.field(name) for name in new])
        self._column = column

    async def __call__(self, table: Any) -> AsyncGenerator[Any, None]:
        """Yield a ``pyarrow.Table`` with the columns of :func:`embedded_schema` after its own."""
        check_column(table.schema, self._column, "the dataset")
        values = column_values(table, self._column)
        images = (image_in_row(one, one if isinstance(one, str) else str(row)) for row, one in enumerate(values))
        rows: list[Mapping[str, Any]] = [{}] * len(table)
        async with aclosing(self._embedder.rows(images)) as embedded:
            async for index, row in embedded:
                rows[index] = row
        new = table_of(rows, self._schema)
        for name in self._schema.names:
            table = table.append_column(self._schema.field(name), new.column(name))
        yield table


def _holds(keys: NDArray[np.bytes_], key: bytes) -> bool:
    at = int(np.searchsorted(keys, np.bytes_(key)))
    return at < len(keys) and bool(keys[at] == np.bytes_(key))

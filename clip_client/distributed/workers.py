"""The actors of a job: Ray calls them with partitions, or with rows that hold images."""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from anyio import to_thread

from clip_client.dedup.store.parquet_store import table_of
from clip_client.distributed.cluster import DistributedError
from clip_client.distributed.image_embedder import ImageEmbedder
from clip_client.distributed.partition_folder import embedded_schema
from clip_client.distributed.sources import check_column, column_values, image_in_row
from preprocess_ensemble.errors import ReportedError, first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client._config import ClientConfig
    from clip_client._vectors.vector_file import FileModel
    from clip_client.distributed.partition_folder import PartitionFolder
    from clip_client.distributed.sources import Partition

Result = TypeVar("Result")

_logger = logging.getLogger("clip_client")

_ROWS_PER_GROUP: Final = 1024
"""Of a Parquet file: 2 MB of vectors, which is what a worker holds of a partition of any size."""

_PARTITIONS_AT_ONCE: Final = 2
_MOST_DEATHS: Final = 2
"""Workers that may die while they are at one partition and at nothing else."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a partition: a row of a few bytes in Ray's object store."""

    partition: str
    images: int = 0
    failed: int = 0
    error: str = ""
    """Why the partition could not be finished; a job ends with the first one."""


class PartitionWorker:
    """Embeds whole partitions, each into its file."""

    def __init__(
        self, config: ClientConfig, folder: PartitionFolder, number: int, finished: NDArray[np.bytes_]
    ) -> None:
        self._embedder = ImageEmbedder(config, folder.model, features=folder.features)
        self._folder = folder
        self._number = number
        self._finished = finished
        self._free = asyncio.Semaphore(_PARTITIONS_AT_ONCE)
        self._emptying = asyncio.Lock()

    async def __call__(self, batch: Mapping[str, Any]) -> AsyncGenerator[dict[str, list[Any]], None]:
        """Embed the partition in each row of ``batch`` and yield its :class:`Outcome` as a row."""
        for packed in batch["partition"]:
            partition: Partition = pickle.loads(packed)
            outcome = await self._outcome(partition)
            yield {name: [value] for name, value in vars(outcome).items()}

    async def _outcome(self, partition: Partition) -> Outcome:
        try:
            deaths, alone = await self._tried(partition, self._folder.deaths, partition)
            if alone >= _MOST_DEATHS:
                reason = (
                    f"{deaths} workers died while they embedded it, the last {alone} of them while they did nothing "
                    "else; does an image need more memory than a worker has, or crash a library?"
                )
                return Outcome(partition=partition.name, error=f"{partition.name}: {reason}")
            async with self._place(alone=deaths > 0):
                note = await self._tried(partition, partial(self._folder.note_start, partition, alone=deaths > 0))
                try:
                    return await self.embed(partition)
                finally:
                    with suppress(OSError):
                        note.filesystem.delete_file(note.path)
        except DistributedError as error:  # it names the partition
            return Outcome(partition=partition.name, error=str(error))
        except (ReportedError, OSError) as error:
            return Outcome(partition=partition.name, error=f"{partition.name}: {error}")
        except Exception as error:  # a fault, whose traceback is in Ray's log files
            _logger.exception("%s failed", partition.name)
            reason = f"{type(error).__name__}: {first_line(error)}"
            return Outcome(partition=partition.name, error=f"{partition.name}: {reason}")

    @asynccontextmanager
    async def _place(self, *, alone: bool) -> AsyncGenerator[None, None]:
        """Wait until this worker is at few enough partitions, or, if ``alone``, at no other one."""
        if not alone:
            async with self._free:
                yield
            return
        async with self._emptying, AsyncExitStack() as places:
            for _ in range(_PARTITIONS_AT_ONCE):
                await places.enter_async_context(self._free)
            yield

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

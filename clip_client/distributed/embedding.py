"""Embeds images on a Ray cluster through a fleet of Triton servers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clip_client._client import ClipClient, make_config
from clip_client._config import ClientConfig
from clip_client._errors import require
from clip_client._storage.parquet_store import table_of
from clip_client._storage.vector_file import FileModel
from clip_client._sync import SyncClipClient
from clip_client.distributed.cluster import ATTEMPTS, EXTRA, DistributedError, cluster, in_tasks
from clip_client.distributed.embedded_rows import PartitionFolder, embedded_schema
from clip_client.distributed.image_rows import embed_images
from clip_client.distributed.sources import DamagedInput, Partition, check_column, flattened, image_in_row
from clip_client.distributed.storage import Location
from preprocess_ensemble.errors import ReportedError, first_line

if TYPE_CHECKING:
    from ray.data import Dataset

_logger = logging.getLogger("clip_client")

_WORKER_CPUS: Final = 4
"""A worker is a process whose threads decode; its client keeps about this many cores busy."""
_FEW_CPUS: Final = 4
_ROWS_AT_ONCE: Final = 128
"""Images of a dataset that a worker embeds in one call; Ray makes four calls at a time."""
_ROWS_PER_GROUP: Final = 1024
"""2 MB of vectors. A worker holds this much of a partition of any size."""
_COUNTED_AT_ONCE: Final = 64
_MOST_NAMED: Final = 10  # unfinished partitions in an error
_OF_FILES: Final = ("path", "path_bytes", "size_bytes", "mtime_ns")  # columns that a dataset does not get


@dataclass(frozen=True, kw_only=True)
class EmbeddingSummary:
    """The result of :func:`embed_partitions`, in numbers."""

    output: str
    images: int = 0
    """Rows that this run wrote."""
    failed: int = 0
    """Rows that have an error code instead of a vector, among ``images``."""
    partitions: int = 0
    """Partitions that this run finished."""
    partitions_before: int
    """Partitions that were finished before this run."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    images: int = 0
    failed: int = 0
    seen: int = 0  # done, including images in files of other runs
    error: str = ""


def embed_dataset(
    dataset: Dataset,
    url: str | Sequence[str] | None = None,
    *,
    column: str = "bytes",
    features: bool = False,
    config: ClientConfig | None = None,
    workers: int | None = None,
) -> Dataset:
    """Add the vectors of images to a Ray dataset. Like every operation of a dataset, this runs when it is consumed.

    ``column`` holds the bytes of image files, or texts, which are paths or URLs that every worker can read. A name with
    a dot is a field of a struct, such as ``"image.bytes"``. The new columns are ``vector``, ``error_code`` and
    ``error``, and with ``features`` the hash and the features that a search for duplicates needs. A vector is (D,)
    float32, NaN for an image that failed; ``error_code`` and ``error`` are null for other images. The servers limit the
    speed: a worker takes its next rows after the servers have answered, and Ray stops its readers until then.

    ``url`` and ``config`` are those of :class:`clip_client.ClipClient`. ``workers`` is the most processes, by default
    one for each CPU. If a job must survive a killed driver, use :func:`embed_partitions`, or Ray's own
    ``CheckpointConfig``, which needs a column with unique ids.

    Raises ImportError if Ray is missing, ClipError if the servers do not answer, and DistributedError if the dataset is
    known to have no such column.
    """
    require("ray.data", EXTRA)
    import pyarrow as pa
    import ray
    from ray.data import ActorPoolStrategy

    config, model = served_model(url, config)
    schema = dataset.schema(fetch_if_missing=False)
    # After a step that has not run, and with pandas, the schema is not known here, and the workers check the column.
    if schema is not None and isinstance(schema.base_schema, pa.Schema):
        check_column(schema.base_schema, column, "the dataset")
    # A worker holds its CPU as long as the dataset runs, and the tasks that read also need a CPU. If there are few
    # CPUs, workers share them with those tasks. Other actors of the dataset may hold CPUs, too.
    cpus = int(ray.cluster_resources().get("CPU", 0))
    is_shared = 0 < cpus < _FEW_CPUS
    return dataset.map_batches(
        RowWorker,
        fn_constructor_args=(config, model, column, features),
        batch_size=_ROWS_AT_ONCE,
        batch_format="pyarrow",
        num_cpus=0 if is_shared else 1,
        compute=ActorPoolStrategy(min_size=1, max_size=min(workers or cpus, cpus) if is_shared else workers),
    )


def embed_partitions(
    partitions: Sequence[Partition],
    url: str | Sequence[str] | None = None,
    *,
    output: str | os.PathLike[str],
    features: bool = False,
    config: ClientConfig | None = None,
    address: str | None = None,
    workers: int | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> EmbeddingSummary:
    """Embed the images of ``partitions`` into a folder of Parquet files, one for each partition.

    ``partitions`` come from the functions of :mod:`.sources`. ``output`` is a folder that every worker can write, or a
    URL such as ``"s3://bucket/vectors"``. ``ray.data.read_parquet(output)`` and ``load_vectors`` read it, and
    ``clip-client embed`` can continue it. Its columns are those of :func:`.embedded_schema`. An image that fails is a
    row with an error code.

    A partition's file appears when the file is complete. If the job ends early for any reason, call this again with the
    same images: finished partitions stay, and each image has one row in the end. Images that another run or
    ``clip-client embed`` has written are skipped. One job at a time may fill a folder.

    ``url`` and ``config`` are those of :class:`clip_client.ClipClient`; workers wait ``timeout_s`` for absent servers.
    ``address`` is the address of a Ray cluster; ``"auto"`` is the cluster that this machine belongs to. Without
    ``address``, the cluster that the program is connected to is used, or Ray is started on this machine. ``workers`` is
    the most processes, by default one for every four CPUs of a node. ``on_progress`` gets the number of embedded
    images, and their total if it is known before they are read.

    Raises DistributedError, which names the partitions. It is raised at the end if partitions cannot be read or kill
    their workers, and at once if the output cannot be written or all images of a partition are unreachable. Raises
    VectorsError if ``output`` holds vectors of another id, ClipError if the servers do not answer, and ImportError if
    Ray is missing.
    """
    require("ray.data", EXTRA)
    config, model = served_model(url, config)
    folder, left = PartitionFolder(location=Location.of(output), model=model, features=features).begin(partitions)
    counts = [partition.count for partition in partitions]
    total = None if None in counts else sum(filter(None, counts))
    done = sum(filter(None, counts)) - sum(one.count or 0 for one in left)
    outcomes: dict[int, Outcome] = {}

    def name_deadly(number: int) -> Outcome:
        return Outcome(
            error=f"{left[number].name}: {ATTEMPTS} workers died while they embedded it, the last one while nothing "
            "else ran; does an image need more memory than a worker has, or crash a library?"
        )

    if not left:
        return EmbeddingSummary(output=str(folder.location), partitions_before=len(partitions))
    with cluster(address):
        calls = ((one,) for one in left)
        results = in_tasks(
            embed_partition, calls, config, folder, cpus=_WORKER_CPUS, workers=workers, on_death=name_deadly
        )
        try:
            with closing(results):
                for number, outcome in results:
                    # A worker that repeats the work of a dead one counts from the beginning.
                    done += outcome.seen - outcomes.get(number, Outcome()).seen
                    outcomes[number] = outcome
                    if on_progress is not None:
                        on_progress(done, total)
        except DistributedError as error:
            raise DistributedError(f"{error}; finished partitions stay: run the same again to continue") from error
    if errors := [outcome.error for outcome in outcomes.values() if outcome.error]:
        more = f"; {len(errors) - _MOST_NAMED:,} more" if len(errors) > _MOST_NAMED else ""
        raise DistributedError(f"{'; '.join(errors[:_MOST_NAMED])}{more}; all other partitions are finished")
    return EmbeddingSummary(
        output=str(folder.location),
        images=sum(outcome.images for outcome in outcomes.values()),
        failed=sum(outcome.failed for outcome in outcomes.values()),
        partitions=len(outcomes),
        partitions_before=len(partitions) - len(left),
    )


def served_model(url: str | Sequence[str] | None, config: ClientConfig | None) -> tuple[ClientConfig, FileModel]:
    config = make_config(url, config=config)
    with SyncClipClient(config=config) as clip:
        model = clip.model()
    return config, FileModel(model.id, model.vector_id, model.dimension)


def embed_partition(partition: Partition, config: ClientConfig, folder: PartitionFolder) -> Iterator[Outcome]:
    """Write the rows of a partition into its file.

    Yields the outcome so far, several times. Between two outcomes nothing is sent or received. Raises DistributedError,
    which names the partition, for an error that the other partitions would also meet; then there is no file.
    """
    outcomes = _outcomes(partition, config, folder)
    with asyncio.Runner() as runner:
        try:
            while (outcome := runner.run(anext(outcomes, None))) is not None:
                yield outcome
        finally:
            runner.run(outcomes.aclose())


async def _outcomes(
    partition: Partition, config: ClientConfig, folder: PartitionFolder
) -> AsyncGenerator[Outcome, None]:
    images = failed = 0
    waiting: list[Mapping[str, Any]] = []
    try:
        with folder.writing(partition) as write:
            async with (
                ClipClient(config=config) as clip,
                aclosing(
                    embed_images(partition.images(), clip, config, folder.model, folder.features, folder.finished)
                ) as rows,
            ):
                async for _, row in rows:
                    images += 1
                    failed += row["error_code"] is not None
                    waiting.append(row)
                    if len(waiting) == _ROWS_PER_GROUP:
                        await asyncio.to_thread(write, waiting)  # answers come meanwhile
                        waiting = []
                    if images % _COUNTED_AT_ONCE == 0:
                        yield Outcome(images=images, failed=failed, seen=images)
            if waiting:
                write(waiting)
        yield Outcome(images=images, failed=failed, seen=partition.count or images)
    except DamagedInput as error:  # it names the partition
        yield Outcome(error=str(error))
    except ReportedError as error:
        raise DistributedError(f"{partition.name}: {error}") from error
    except Exception as error:  # a bug; its traceback goes to Ray's log files
        _logger.exception("%s failed", partition.name)
        yield Outcome(error=f"{partition.name}: {type(error).__name__}: {first_line(error)}")


class RowWorker:
    """The actor that adds vectors to the rows of a dataset. Ray calls it in one event loop."""

    def __init__(self, config: ClientConfig, model: FileModel, column: str, features: bool) -> None:
        import pyarrow as pa

        self._column = column
        self._how = (config, model, features)
        schema = embedded_schema(model, features=features)
        self._new = pa.schema(field for field in schema if field.name not in _OF_FILES)
        self._clip: ClipClient | None = None

    async def __call__(self, table: Any) -> Any:
        if self._clip is None:
            self._clip = ClipClient(config=self._how[0])
            await self._clip.__aenter__()  # it stays open as long as Ray keeps this actor
        check_column(table.schema, self._column, "the dataset")
        values = enumerate(flattened(table, self._column)[self._column].to_pylist())
        images = (image_in_row(value, value if isinstance(value, str) else str(row)) for row, value in values)
        async with aclosing(embed_images(images, self._clip, *self._how)) as found:
            rows = {index: row async for index, row in found}
        new = table_of([row for _, row in sorted(rows.items())], self._new)
        for one in self._new:
            table = table.append_column(one, new.column(one.name))
        return table

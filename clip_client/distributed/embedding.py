"""Embeds images on a Ray cluster through a fleet of Triton servers."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client._client import make_config
from clip_client._errors import require
from clip_client._sync import SyncClipClient
from clip_client._vectors.file_model import FileModel
from clip_client.distributed.cluster import EXTRA, DistributedError, cluster, fed_pool, pool
from clip_client.distributed.partition_folder import PartitionFolder
from clip_client.distributed.sources import check_column
from clip_client.distributed.storage import Location
from clip_client.distributed.workers import Outcome, PartitionWorker, RowWorker
from preprocess_ensemble.errors import first_line

if TYPE_CHECKING:
    import os

    from ray.data import Dataset

    from clip_client._config import ClientConfig
    from clip_client.distributed.partition_folder import Plan
    from clip_client.distributed.sources import Partition

_ROWS_AT_ONCE: Final = 256
"""Images of a dataset that a worker embeds in one call: several batches of a server."""

_MOST_DEATHS: Final = 10
"""Workers that may die with one task: machines go away, but a partition that kills each worker must end the job."""

_MOST_TASKS: Final = 2000
"""Ray's driver holds about this many tasks without effort; with more partitions a task has several."""

_ROOT_CAUSE: Final = re.compile(r"^[\w.]+(?:Error|Exception): .+", re.MULTILINE)
"""In the tracebacks of Ray: the first exception, such as that of a package which a machine lacks."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingSummary:
    """What :func:`embed_partitions` did."""

    output: str
    images: int
    """Rows that this run wrote."""
    failed: int
    """Those of them that have an error code instead of a vector."""
    partitions: int
    """Partitions that this run finished."""
    partitions_before: int
    """Partitions that were finished already."""


def embed_dataset(
    dataset: Dataset,
    url: str | Sequence[str] | None = None,
    *,
    column: str = "bytes",
    features: bool = False,
    config: ClientConfig | None = None,
    workers: int | None = None,
) -> Dataset:
    """Add the vectors of images to a Ray dataset; like every operation of a dataset, this runs when it is consumed.

    ``column`` holds the bytes of image files, or texts, which are paths or URLs that every worker can read; with a dot
    it is a field of a struct, such as ``"image.bytes"``. Encoded images go to the servers; pixels never enter Ray's
    object store. New columns are ``vector``, (D,) float32, NaN for an image that failed, ``error_code`` and ``error``,
    null for the others, and with ``features`` the hash and features that a search for duplicates needs. The servers
    limit the speed: a worker takes its next rows when they have answered, and Ray then stops its readers.

    ``url`` and ``config`` are those of :class:`clip_client.ClipClient`; ``workers`` is the most processes, by default
    one for each CPU. A job that must survive a killed driver uses :func:`embed_partitions`, or Ray's own
    ``CheckpointConfig``, which needs a column with unique ids.

    Raises ImportError if Ray is missing, ClipError if the servers do not answer, and DistributedError if the dataset is
    known to have no such column.
    """
    require("ray.data", EXTRA)
    import pyarrow as pa

    config, model = _model(url, config)
    schema = dataset.schema(fetch_if_missing=False)
    # Behind a step that has not run, and with pandas, the workers find out.
    if schema is not None and isinstance(schema.base_schema, pa.Schema):
        check_column(schema.base_schema, column, "the dataset")
    cpus, strategy = fed_pool(workers)
    return dataset.map_batches(
        RowWorker,
        fn_constructor_args=(config, model, column),
        fn_constructor_kwargs={"features": features},
        batch_size=_ROWS_AT_ONCE,
        batch_format="pyarrow",
        num_cpus=cpus,
        compute=strategy,
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

    ``partitions`` come from :func:`.image_files`, :func:`.images_below`, :func:`.parquet_images` or
    :func:`.webdataset_images`. ``output`` is a folder that every worker can write, or a URL such as
    ``"s3://bucket/vectors"``. ``ray.data.read_parquet(output)`` reads it, and so do ``load_vectors`` and
    ``clip-client embed``, which can continue it. :func:`.partition_folder.embedded_schema` explains the columns. An
    image that fails is a row with an error code.

    A partition's file appears when it is complete. If the job ends early, for whatever reason, call this again with the
    same images: finished partitions stay, and each image has one row in the end. Images that another run or
    ``clip-client embed`` has written are skipped. One job at a time may fill a folder.

    ``url`` and ``config`` are those of :class:`clip_client.ClipClient`; workers wait ``timeout_s`` for absent servers.
    ``address`` is that of a Ray cluster, ``"auto"`` for the one that this machine belongs to; without it, the cluster
    that the program is connected to is used, or Ray is started on this machine. ``workers`` is the most processes, by
    default one for every four CPUs of a node. ``on_progress`` gets the images of finished partitions, and
    their total if it is known before they are read.

    Raises DistributedError, which names the partition, for input that cannot be read and output that cannot be
    written, VectorsError if ``output`` holds vectors of another id, ClipError if the servers do not answer, and
    ImportError if Ray is missing.
    """
    require("ray.data", EXTRA)
    config, model = _model(url, config)
    folder = PartitionFolder(location=Location.of(output), model=model, features=features)
    plan = folder.plan(partitions)
    progress = _Progress(partitions, plan.partitions, on_progress or (lambda done, total: None))
    images = failed = done = 0
    if plan.partitions:
        with cluster(address):
            for outcome in _outcomes(config, folder, plan, workers):
                if outcome.error:
                    raise DistributedError(f"{outcome.error}; finished partitions stay: run the same again to continue")
                images, failed, done = images + outcome.images, failed + outcome.failed, done + 1
                progress.add(outcome)
    return EmbeddingSummary(
        output=str(folder.location),
        images=images,
        failed=failed,
        partitions=done,
        partitions_before=len(partitions) - len(plan.partitions),
    )


class _Progress:
    """Counts the images of finished partitions."""

    def __init__(
        self, partitions: Sequence[Partition], left: Sequence[Partition], show: Callable[[int, int | None], None]
    ) -> None:
        counts = [partition.count for partition in partitions]
        self._total = None if None in counts else sum(filter(None, counts))
        self._left = {partition.name: partition.count for partition in left}
        self._done = sum(filter(None, counts)) - sum(filter(None, self._left.values()))
        self._show = show
        show(self._done, self._total)

    def add(self, outcome: Outcome) -> None:
        """Show one more partition; rows that it did not write because they were there count, too."""
        self._done += self._left.get(outcome.partition) or outcome.images
        self._show(self._done, self._total)


def _outcomes(config: ClientConfig, folder: PartitionFolder, plan: Plan, workers: int | None) -> Iterator[Outcome]:
    """Run the job and yield what became of each partition."""
    import ray
    from ray.exceptions import RayError
    from ray.util.annotations import RayDeprecationWarning

    cpus, strategy = pool(workers)
    work = [{"partition": pickle.dumps(partition)} for partition in plan.partitions]
    dataset = ray.data.from_items(work, override_num_blocks=min(len(work), _MOST_TASKS))
    with warnings.catch_warnings():
        # Ray 2.60 has no other way to limit the retries of an actor's task, and will drop this one in 2.64.
        warnings.filterwarnings("ignore", message="`ray_remote_args`", category=RayDeprecationWarning)
        outcomes = dataset.map_batches(
            PartitionWorker,
            fn_constructor_args=(config, folder, plan.number, plan.finished),
            batch_size=1,
            num_cpus=cpus,
            compute=strategy,
            max_task_retries=_MOST_DEATHS,
        )
    try:
        for row in outcomes.iter_rows():
            yield Outcome(**row)
    except RayError as error:
        cause = _ROOT_CAUSE.search(str(error))
        raise DistributedError(
            f"Ray ended the job ({cause[0] if cause else first_line(error)}); finished partitions stay: run the same "
            "again to continue"
        ) from error


def _model(url: str | Sequence[str] | None, config: ClientConfig | None) -> tuple[ClientConfig, FileModel]:
    """Return the settings of the workers' clients, and the model that the servers serve."""
    config = make_config(url, config=config)
    with SyncClipClient(config=config) as clip:
        model = clip.model()
    return config, FileModel(model.id, model.vector_id, model.dimension)

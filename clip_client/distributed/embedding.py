"""Embeds images on a Ray cluster through a fleet of Triton servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client._client import make_config
from clip_client._errors import require
from clip_client._sync import SyncClipClient
from clip_client._vectors.vector_file import FileModel
from clip_client.distributed.cluster import ATTEMPTS, EXTRA, DistributedError, cluster, in_tasks, worker_cpus
from clip_client.distributed.partition_folder import PartitionFolder
from clip_client.distributed.sources import check_column
from clip_client.distributed.storage import Location
from clip_client.distributed.workers import Outcome, RowWorker, embed_partition

if TYPE_CHECKING:
    import os

    from ray.data import Dataset

    from clip_client._config import ClientConfig
    from clip_client.distributed.partition_folder import Plan
    from clip_client.distributed.sources import Partition

    OnImages = Callable[[int, int | None], None]

_ROWS_AT_ONCE: Final = 256
"""Images of a dataset that a worker embeds in one call: several batches of a server."""

_FEW_CPUS: Final = 4
_MOST_NAMED: Final = 10


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
    import ray
    from ray.data import ActorPoolStrategy

    config, model = served_model(url, config)
    schema = dataset.schema(fetch_if_missing=False)
    # Behind a step that has not run, and with pandas, the workers find out.
    if schema is not None and isinstance(schema.base_schema, pa.Schema):
        check_column(schema.base_schema, column, "the dataset")
    # A worker holds its CPU for as long as the dataset runs, and the tasks that read need one, too. With few CPUs, some
    # of which other actors of the dataset may hold, workers share them with those tasks.
    cpus = int(ray.cluster_resources().get("CPU", 0))
    is_shared = 0 < cpus < _FEW_CPUS
    strategy = ActorPoolStrategy(
        min_size=1,
        max_size=min(workers or cpus, cpus) if is_shared else workers,
        max_concurrent_calls_per_actor=2,
        enable_true_multi_threading=True,
    )
    return dataset.map_batches(
        RowWorker,
        fn_constructor_args=(config, model, column),
        fn_constructor_kwargs={"features": features},
        batch_size=_ROWS_AT_ONCE,
        batch_format="pyarrow",
        num_cpus=0 if is_shared else 1,
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
    on_progress: OnImages | None = None,
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
    default one for every four CPUs of a node. ``on_progress`` gets the images that are embedded, and their total if it
    is known before they are read.

    Raises DistributedError, which names the partitions: at the end for those that cannot be read or kill their workers,
    at once for output that cannot be written and images of which not one can be reached. Raises VectorsError if
    ``output`` holds vectors of another id, ClipError if the servers do not answer, and ImportError if Ray is missing.
    """
    require("ray.data", EXTRA)
    config, model = served_model(url, config)
    folder = PartitionFolder(location=Location.of(output), model=model, features=features)
    plan = folder.plan(partitions)
    outcomes = _outcomes(config, folder, plan, partitions, address, workers, on_progress) if plan.partitions else []
    if errors := [outcome.error for outcome in outcomes if outcome.error]:
        more = f"; {len(errors) - _MOST_NAMED:,} more" if len(errors) > _MOST_NAMED else ""
        raise DistributedError(f"{'; '.join(errors[:_MOST_NAMED])}{more}; all other partitions are finished")
    return EmbeddingSummary(
        output=str(folder.location),
        images=sum(outcome.images for outcome in outcomes),
        failed=sum(outcome.failed for outcome in outcomes),
        partitions=len(outcomes),
        partitions_before=len(partitions) - len(plan.partitions),
    )


def _outcomes(
    config: ClientConfig,
    folder: PartitionFolder,
    plan: Plan,
    partitions: Sequence[Partition],
    address: str | None,
    workers: int | None,
    on_progress: OnImages | None,
) -> list[Outcome]:
    """Embed the partitions of the plan; return what became of each.

    Raises DistributedError for the first one whose reason holds for the others, too.
    """
    counts = [partition.count for partition in partitions]
    total = None if None in counts else sum(filter(None, counts))
    embedded = sum(filter(None, counts)) - sum(one.count or 0 for one in plan.partitions)
    seen = [0] * len(plan.partitions)
    """Images of each partition that are in ``embedded``: a worker that follows a dead one begins again."""
    outcomes: dict[int, Outcome] = {}

    def name_deadly(number: int) -> Outcome:
        return Outcome(
            error=f"{plan.partitions[number].name}: {ATTEMPTS} workers died while they embedded it, the last one while "
            "nothing else ran; does an image need more memory than a worker has, or crash a library?"
        )

    shared = (config, folder, plan.number, plan.finished)
    calls = ((partition,) for partition in plan.partitions)
    with cluster(address):
        results = in_tasks(embed_partition, calls, *shared, cpus=worker_cpus(), workers=workers, on_death=name_deadly)
        try:
            with closing(results):
                for number, result in results:
                    images = result
                    if isinstance(result, Outcome):
                        outcomes.setdefault(number, result)  # a worker may die after it has finished
                        images = plan.partitions[number].count or result.images
                    embedded, seen[number] = embedded + images - seen[number], images
                    if on_progress is not None:
                        on_progress(embedded, total)
        except DistributedError as error:
            raise DistributedError(f"{error}; finished partitions stay: run the same again to continue") from error
    return list(outcomes.values())


def served_model(url: str | Sequence[str] | None, config: ClientConfig | None) -> tuple[ClientConfig, FileModel]:
    """Return the settings of the workers' clients, and the model that the servers serve."""
    config = make_config(url, config=config)
    with SyncClipClient(config=config) as clip:
        model = clip.model()
    return config, FileModel(model.id, model.vector_id, model.dimension)

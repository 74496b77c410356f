"""What does a Ray cluster cost on one machine, and how does its grouping grow?

The same files are embedded by ``ClipClient.embed_stream`` in one process, by ``embed_partitions`` on Ray on this
machine, and by Ray's usual pipeline, which sends decoded pixels from ``ray.data.read_images`` to the workers. All three
write the vectors to Parquet. Each system embeds a small and a large number of files. The rate is that of the difference
between the two, so that it does not contain the start of Ray, which is shown on its own; so is the processor time,
which counts the client or the driver and the workers. The object store is what Ray holds in shared memory; the peak
memory is that of the largest worker, without shared memory.

A server whose model does no work shows the limit of the client's side; the server of ``--repository`` shows what
is left of the difference if a model computes.

Then ``find_duplicates`` groups planted vectors on Ray on this machine, with cells whatever their number: the ``dense``
ones of :mod:`.grouping`, which lie as close together as those of a trained model. Their Parquet files are written
before the time is taken; each row has another perceptual hash. There are no photos to align.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.fixtures.null_repository import write_null_repository
from benchmarks.fixtures.planted_vectors import THRESHOLDS, planted
from benchmarks.harness.experiment import PHOTOS, REPOSITORY, Run, experiment, option, rounds
from benchmarks.harness.meters import RayGauge
from benchmarks.harness.results import show
from benchmarks.harness.rounds import growth_exponent, median_of
from benchmarks.harness.worker import in_new_process, peak_memory_mb
from clip_client import ClipClient, SyncClipClient
from clip_client._vectors.file_model import FileModel
from clip_client._vectors.file_version import FileVersion
from clip_client._vectors.vector_file import parquet_file, vector_row
from clip_client.dedup.compare.union_find import UnionFind
from clip_client.dedup.photo import ImageFeatures
from clip_client.dedup.store.parquet_store import table_of
from clip_client.distributed import embed_partitions, find_duplicates, image_files
from clip_client.distributed.cell_join import read_edges
from clip_client.distributed.cluster import cluster
from clip_client.distributed.partition_folder import embedded_schema
from clip_client.distributed.storage import Location

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLAIN: Final = "one client"
PARTITIONS: Final = "embed_partitions on Ray"
PIXELS: Final = "ray.data.read_images"

GROUPED: Final = (10_000, 100_000, 1_000_000, 3_000_000)
MOST_GROUPED: Final = 1_000_000
SHAPE: Final = "dense"

MEASURED: Final = ("photos_per_second", "processor_ms_per_photo", "fixed_s", "worker_peak_mb")
"""What is shown of every system."""
_SHARE: Final = 4
"""The large number of files over the small one."""
_PARTITION_ROWS: Final = 10_000
_GROUP_ROWS: Final = 1024


def embed_plainly(url: str, paths: Sequence[str], output: Path) -> None:
    """Embed with one client in this process, as ``clip-client embed`` does."""

    async def embed(file: IO[bytes]) -> None:
        async with ClipClient(url) as clip:
            with parquet_file(file, await clip.model()) as add:
                files = (FileVersion.of(path) for path in paths)
                async with aclosing(clip.embed_stream(files, ordered=False)) as items:
                    async for item in items:
                        assert isinstance(item.source, FileVersion)
                        assert item.error is None, item.error
                        add(vector_row(item.source, item.vector))

    with open(output, "wb") as file:
        asyncio.run(embed(file))


def embed_on_ray(url: str, paths: Sequence[str], output: Path) -> None:
    """Embed on the cluster that this process is connected to."""
    summary = embed_partitions(image_files(paths), url, output=output)
    assert (summary.images, summary.failed) == (len(paths), 0), summary


class PixelWorker:
    """The actor of Ray's usual pipeline."""

    def __init__(self, url: str) -> None:
        self._clip = SyncClipClient(url).__enter__()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Embed a batch of pictures."""
        vectors = self._clip.embed(list(batch["image"])).vectors
        return {"path": batch["path"], "vector": list(vectors)}


def embed_pixels(url: str, paths: Sequence[str], output: Path) -> None:
    """Read pixels as Ray's documentation does, and embed them in actors."""
    import ray
    from ray.data import ActorPoolStrategy

    dataset = ray.data.read_images(list(paths), mode="RGB", include_paths=True)
    pool = ActorPoolStrategy(min_size=1, max_size=1)
    dataset.map_batches(PixelWorker, fn_constructor_args=(url,), batch_size=64, num_cpus=1, compute=pool).write_parquet(
        str(output)
    )


EMBED: Final[dict[str, Callable[[str, Sequence[str], Path], None]]] = {
    PLAIN: embed_plainly,
    PARTITIONS: embed_on_ray,
    PIXELS: embed_pixels,
}


def embed_twice(system: str, url: str, paths: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Embed a part of the files and then all of them; return seconds, rates and memory."""
    parts = (paths[::_SHARE], paths)
    if system == PLAIN:
        spent = [_spent(system, url, some, scratch, None) for some in parts]
        return {**_per_photo(parts, spent), "worker_peak_mb": peak_memory_mb()}
    started = time.perf_counter()
    with cluster(), RayGauge.running() as gauge:
        start_s = time.perf_counter() - started
        spent = [_spent(system, url, some, scratch, gauge) for some in parts]
        return {
            **_per_photo(parts, spent),
            "ray_start_s": start_s,
            "object_store_peak_mb": gauge.store_bytes / 1e6,
            "worker_peak_mb": gauge.worker_bytes / 1e6,
        }


def _spent(system: str, url: str, paths: Sequence[str], scratch: Path, gauge: RayGauge | None) -> tuple[float, float]:
    """Return the seconds that a run takes, and its processor seconds without those of servers and of Ray's daemons."""
    output = scratch / f"output {time.monotonic_ns()}"
    started, before_s = time.perf_counter(), time.process_time() + (gauge.processor_s if gauge else 0.0)
    EMBED[system](url, paths, output)
    seconds = time.perf_counter() - started
    processor_s = time.process_time() + (gauge.processor_s if gauge else 0.0) - before_s
    shutil.rmtree(output, ignore_errors=True)
    return seconds, processor_s


def _per_photo(parts: Sequence[Sequence[str]], spent: Sequence[tuple[float, float]]) -> dict[str, float]:
    (small_s, small_processor_s), (large_s, large_processor_s) = spent
    more, more_s = len(parts[1]) - len(parts[0]), large_s - small_s
    # On a busy machine the small run may take longer than the large one.
    rate = more / more_s if more_s > 0 else float("nan")
    return {
        "photos_per_second": rate,
        "processor_ms_per_photo": 1e3 * (large_processor_s - small_processor_s) / more,
        "fixed_s": large_s - len(parts[1]) / rate,
        "large_s": large_s,
    }


def _copies(photos: Path, folder: Path, count: int) -> list[str]:
    """Return the paths of ``count`` files with the contents of ``photos`` in turn."""
    folder.mkdir()
    sources = sorted(photos.iterdir())
    paths = []
    for number in range(count):
        source = sources[number % len(sources)]
        path = folder / f"{number:06}{source.suffix}"
        os.link(source, path)
        paths.append(str(path))
    return paths


def write_embedded(folder: Path, vectors: NDArray[np.float32]) -> None:
    """Write photos ``/photos/0.jpg`` and so on, each with other bytes and another perceptual hash."""
    import pyarrow.parquet as pq

    folder.mkdir()
    schema = embedded_schema(FileModel("planted", "planted", vectors.shape[1]), features=True)
    features = ImageFeatures(width=1024, height=768, format="JPEG").to_row()
    hashes = np.random.default_rng(1).integers(0, 2**64, len(vectors), dtype=np.uint64)
    for start in range(0, len(vectors), _PARTITION_ROWS):
        rows = [
            {
                **features,
                **vector_row(FileVersion(path=f"/photos/{number}.jpg", size_bytes=1, mtime_ns=1), vectors[number]),
                "sha256": hashlib.sha256(b"%d" % number).digest(),
                "perceptual_hash": hashes[number],
            }
            for number in range(start, min(len(vectors), start + _PARTITION_ROWS))
        ]
        path = folder / f"part-{start // _PARTITION_ROWS:05}.parquet"
        pq.write_table(table_of(rows, schema), path, row_group_size=_GROUP_ROWS, use_dictionary=False)


def write_planted(rows: int, folder: Path) -> dict[str, Any]:
    """Write planted vectors into ``folder``, and the number of each one's family."""
    vectors, family = planted(rows, SHAPE)
    write_embedded(folder / "vectors", vectors)
    np.save(folder / "family.npy", family)
    return {}


def group_once(rows: int, folder: Path) -> dict[str, Any]:
    """Group what :func:`write_planted` wrote, on Ray on this machine; return seconds, memory, skew and recall."""
    with cluster(), RayGauge.running() as gauge:
        started = time.perf_counter()
        summary = find_duplicates(
            folder / "vectors", output=folder, threshold=THRESHOLDS[SHAPE], exact_rows=0, verify="off"
        )
        seconds = time.perf_counter() - started
    # Every copy was planted within the threshold of its original; the number of a row is that of its photo.
    family = np.load(folder / "family.npy")
    edges = read_edges(map(Location.of, (folder / "edges").iterdir()))
    found = UnionFind(rows)
    found.join(*edges)
    copies = np.flatnonzero(family != np.arange(rows))
    together = found.labels[copies] == found.labels[family[copies]]
    return {
        "rows": rows,
        "seconds": seconds,
        "processor_seconds": gauge.processor_s,
        "worker_peak_mb": gauge.worker_bytes / 1e6,
        "driver_peak_mb": peak_memory_mb(),
        "object_store_peak_mb": gauge.store_bytes / 1e6,
        "pair_recall": float(together.mean()),
        "measured_recall": summary.recall.recall,
        "measured_recall_95": list(summary.recall.recall_95),
        "measured_pairs": summary.recall.pairs,
        "largest_cell": summary.largest_cell,
        "skew": summary.skew,
        "groups": summary.groups,
    }


def measure_grouping(run: Run) -> dict[str, Any]:
    """Measure every size once, each in a new process."""
    results = []
    for count in (count for count in GROUPED if count <= run.options.most):
        with tempfile.TemporaryDirectory(dir=run.scratch) as folder:
            in_new_process(write_planted, count, Path(folder))
            results.append(in_new_process(group_once, count, Path(folder)))
    rows = []
    for r in results:
        low, high = r["measured_recall_95"]
        rows.append((
            f"{r['rows']:,}", f"{r['seconds']:.1f}", f"{r['worker_peak_mb']:,.0f}",
            f"{r['driver_peak_mb']:,.0f}", f"{r['object_store_peak_mb']:,.0f}", f"{r['skew']:.1f}",
            f"{r['pair_recall']:.4f}", f"{r['measured_recall']:.4f}, {low:.4f} to {high:.4f}",
        ))  # fmt: skip
    headings = (
        "vectors", "s", "worker MB", "driver MB", "object store MB", "skew", "recall", "estimated, 95 %",
    )  # fmt: skip
    show("Grouping on Ray on one machine", headings, rows, width=120)
    exponent = growth_exponent(results)
    print(f"growth exponent of the seconds: {exponent}")
    return {"results": results, "growth": exponent}


@experiment(
    REPOSITORY,
    PHOTOS,
    rounds(2),
    option("--null-files", type=int, default=6_000, help="files for the server without work"),
    option("--model-files", type=int, default=3_200, help="files for the real server"),
    option("--most", type=int, default=MOST_GROUPED, help="largest number of vectors to group"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every system with both servers, in turn."""
    photos = run.photos
    local = run.scratch / "sample"  # hard links need one file system
    shutil.copytree(photos, local)
    servers = {
        "no work": (run.serve(write_null_repository(run.scratch / "null")), run.options.null_files),
        run.passport.id: (run.serve(), run.options.model_files),
    }
    cells: dict[str, Callable[[], dict[str, Any]]] = {}
    for number, (server, (running, count)) in enumerate(servers.items()):
        paths = _copies(local, run.scratch / f"files {number}", count)
        for system in EMBED:
            cells[f"{system}, {server}"] = partial(
                in_new_process, embed_twice, system, running.grpc_url, paths, run.scratch
            )
    results = run.in_rounds(cells)
    rows = []
    for server in servers:
        plain = median_of(results[f"{PLAIN}, {server}"], "photos_per_second")
        for name in (f"{system}, {server}" for system in EMBED):
            rate, processor_ms, fixed_s, worker_mb = (median_of(results[name], key) for key in MEASURED)
            has_store = "object_store_peak_mb" in results[name][0]
            store = f"{median_of(results[name], 'object_store_peak_mb'):,.1f}" if has_store else "-"
            overhead = f"{100 * (plain / rate - 1):+.1f} %"
            costs = (f"{processor_ms:.2f}", f"{fixed_s:.1f}", store, f"{worker_mb:,.0f}")
            rows.append((name, f"{rate:,.1f}", overhead, *costs))
    headings = ("", "photos/s", "overhead", "processor ms/photo", "fixed s", "object store MB", "worker MB")
    show("Embedding on one machine", headings, rows)
    return {"systems": results, "grouping": measure_grouping(run)}

"""What does a search of very many photos cost, and how many copies does it miss?

Vectors are planted (``fixtures.planted``): one in twenty is a copy, and no others are alike, so the pairs that
a search must find are known. On one machine a store holds them all, and a search for ten of the photos shows what the
store itself costs. On Ray they lie in Parquet files. There are no photos to align, and each measurement runs in a new
process, for its peak of memory.

Then JPEG files are embedded by one client and by ``embed_partitions`` on Ray, through a server whose model does no
work. Each embeds a quarter of the files and then all; the rate is that of the difference, without the start of Ray.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.fixtures.null_repository import write_null_repository
from benchmarks.fixtures.planted import THRESHOLD, StandIn, fill_store, photo_file, planted, write_embedded
from benchmarks.harness.experiment import PHOTOS, Run, experiment, option
from benchmarks.harness.meters import RayGauge, in_new_process, peak_memory_mb
from benchmarks.harness.results import show
from clip_client import SyncClipClient, save_vectors
from clip_client.dedup import Scan, Store
from clip_client.dedup import find_duplicates as find_on_one_machine
from clip_client.distributed import embed_partitions, find_duplicates, image_files
from clip_client.distributed.cluster import cluster

ONE_MACHINE: Final = "one machine"
RAY: Final = "Ray"
_FEW: Final = 10


def make(engine: str, rows: int, folder: Path) -> dict[str, Any]:
    """Plant ``rows`` vectors, as the engine reads them, and keep the family of each."""
    vectors, family = planted(rows)
    (fill_store if engine == ONE_MACHINE else write_embedded)(folder / "vectors", vectors)
    np.save(folder / "family.npy", family)
    return {}


def recall(folder: Path, groups: Iterable[tuple[int, str]]) -> float:
    """The share of copies that are in the group of their original, of (number of a group, path of a photo)."""
    family = np.load(folder / "family.npy")
    group_of = np.full(len(family), -1)
    numbers = {photo_file(number).path: number for number in range(len(family))}
    for group, path in groups:
        group_of[numbers[path]] = group
    # The number of a family is the row of its original.
    copies = np.flatnonzero(family != np.arange(len(family)))
    return float(((group_of[copies] == group_of[family[copies]]) & (group_of[copies] >= 0)).mean())


def search_store(folder: Path, rows: int, searched: int) -> dict[str, Any]:
    """Search for ``searched`` of the photos of a store, once, in this process."""
    some = tuple(map(photo_file, range(0, rows, rows // searched)))[:searched]
    before_mb = peak_memory_mb()
    started, started_cpu = time.perf_counter(), time.process_time()
    with Store(folder / "vectors") as store:
        clip: Any = StandIn()
        scan = Scan(files=some, failed=())
        report = asyncio.run(find_on_one_machine(clip, scan, store=store, threshold=THRESHOLD, verify=False))
    found: dict[str, Any] = {
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - started_cpu,
        "peak_mb": peak_memory_mb(),
        "peak_mb_before": before_mb,
        "groups": len(report.groups),
    }
    assert report.compared == searched
    if searched == rows:
        members = ((number, member.path) for number, group in enumerate(report.groups) for member in group.members)
        found |= {"recall": recall(folder, members), "coverage": report.coverage.recall if report.coverage else 1.0}
    return found


def search_on_ray(folder: Path) -> dict[str, Any]:
    """Group on Ray on this machine, with cells whatever the number of vectors."""
    import pyarrow.dataset

    with cluster(), RayGauge.running() as gauge:
        started = time.perf_counter()
        summary = find_duplicates(folder / "vectors", output=folder, threshold=THRESHOLD, exact_rows=0, verify=False)
        seconds = time.perf_counter() - started
    table = pyarrow.dataset.dataset(summary.output, format="parquet", exclude_invalid_files=True)
    rows = table.to_table(columns=["group", "path"]).to_pydict()
    return {
        "seconds": seconds,
        "processor_seconds": gauge.processor_s,
        "peak_mb": gauge.worker_bytes / 1e6,
        "driver_peak_mb": peak_memory_mb(),
        "object_store_peak_mb": gauge.store_bytes / 1e6,
        "groups": summary.groups,
        "recall": recall(folder, zip(rows["group"], rows["path"], strict=True)),
        "coverage": summary.recall.recall,
    }


def embed(engine: str, url: str, paths: Sequence[str], output: Path) -> None:
    """Embed with one client in this process, or on the cluster that it is connected to."""
    if engine == RAY:
        summary = embed_partitions(image_files(paths), url, output=output)
        assert (summary.images, summary.failed) == (len(paths), 0), summary
        return
    with SyncClipClient(url) as clip:
        batch = clip.embed(paths)
    batch.raise_for_errors()
    save_vectors(output, batch)


def embed_twice(engine: str, url: str, paths: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Embed a quarter of the files and then all of them; return rates and memory."""
    spent: list[tuple[int, float, float]] = []
    with ExitStack() as stack:
        if engine == RAY:
            stack.enter_context(cluster())
        gauge = stack.enter_context(RayGauge.running()) if engine == RAY else RayGauge()
        # The first files are a warm-up.
        for number, some in enumerate((paths[:64], paths[::4], paths)):
            started, before_s = time.perf_counter(), time.process_time() + gauge.processor_s
            embed(engine, url, some, scratch / f"output {engine} {number}")
            processor_s = time.process_time() + gauge.processor_s - before_s
            spent.append((len(some), time.perf_counter() - started, processor_s))
    _, (few, few_s, few_processor_s), (count, seconds, processor_s) = spent
    # On a busy machine the small run may take longer than the large one.
    rate = (count - few) / (seconds - few_s) if seconds > few_s else float("nan")
    return {
        "photos_per_second": rate,
        "processor_ms_per_photo": 1e3 * (processor_s - few_processor_s) / (count - few),
        "fixed_s": seconds - count / rate,
        "worker_peak_mb": gauge.worker_bytes / 1e6 or peak_memory_mb(),
        "object_store_peak_mb": gauge.store_bytes / 1e6,
    }


def measure_embedding(run: Run) -> dict[str, Any]:
    url = run.serve(write_null_repository(run.scratch / "null")).grpc_url
    local = shutil.copytree(run.photos, run.scratch / "sample")  # hard links need one file system
    sources, paths = sorted(local.iterdir()), []
    for number in range(run.options.files):
        paths.append(str(run.scratch / f"{number:06}.jpg"))
        os.link(sources[number % len(sources)], paths[-1])
    return {
        engine: run.saved.cell(
            f"embed, {engine}", partial(in_new_process, embed_twice, engine, url, paths, run.scratch)
        )
        for engine in (ONE_MACHINE, RAY)
    }


@experiment(
    PHOTOS,
    option("--vectors", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="numbers of photos to search"),
    option("--engines", nargs="+", choices=(ONE_MACHINE, RAY), default=[ONE_MACHINE, RAY], help="default: both"),
    option("--files", type=int, default=6_000, help="JPEG files to embed; 0 leaves this out"),
)
def measure(run: Run) -> dict[str, Any]:
    searches = {}
    for engine, count in itertools.product(run.options.engines, run.options.vectors):
        name = f"{count:,} vectors, {engine}"
        wanted: dict[str, Callable[[Path], dict[str, Any]]] = {name: search_on_ray}
        if engine == ONE_MACHINE:
            wanted = {f"{_FEW} of {name}": partial(search_store, rows=count, searched=_FEW)}
            wanted[name] = partial(search_store, rows=count, searched=count)
        folder = run.scratch / name
        if not run.saved.has(*wanted):
            folder.mkdir()
            in_new_process(make, engine, count, folder)
        for what, search in wanted.items():
            searches[what] = run.saved.cell(what, partial(in_new_process, search, folder))
        shutil.rmtree(folder, ignore_errors=True)
    show("Searches of planted vectors", searches)
    embedding = measure_embedding(run) if run.options.files else {}
    show("Embedding", embedding)
    return {"searches": searches, "embedding": embedding}

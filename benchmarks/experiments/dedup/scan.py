"""What does a search cost besides the model, the first and the second time?

A second search should decode and embed nothing again. This searches 10,000 generated files once and then three times
more, with a small model of random weights, because the model's speed is not the question. The scan walks the folders
and reads the store; the comparison follows. Then it searches ten files, and all, of a store of a million files that do
not exist, and measures time and peak memory (``--files 0`` measures only this).
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.dedup import large_store
from benchmarks.fixtures.pictures import blobs
from benchmarks.harness.experiment import Run, experiment, option
from benchmarks.harness.results import show
from benchmarks.harness.rounds import median_of
from benchmarks.harness.worker import in_new_process
from clip_client import ClipClient
from preprocess_ensemble.cores import usable_cores
from preprocess_ensemble.export.exporter import export_model
from preprocess_ensemble.testing.tiny_model import TINY_CLIP

_SIDE: Final = 256
_FILES_PER_FOLDER: Final = 500
_TIMES: Final = 3
_FEW: Final = 10


def generate(folder: str, first: int, count: int) -> None:
    """Write ``count`` JPEG files of about 10 kB, of which no two are alike."""
    Path(folder).mkdir(parents=True)
    for number in range(first, first + count):
        blobs((_SIDE * 4 // 3, _SIDE), (12, 9), number).save(Path(folder, f"IMG_{number:07d}.jpg"), quality=88)


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def search(url: str, photos: Path, store: Path) -> dict[str, Any]:
    """Search once through a server."""
    async with ClipClient(url) as clip:
        await clip.model()
        report, times = await large_store.timed_search(clip, [photos], store)
        return {**times, "compared": report.compared, "work": asdict(report.work), "groups": len(report.groups)}


def command_s(url: str, photos: Path, store: Path) -> float:
    """Time the whole command, Python's start included."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "clip_client.cli.main", "dedup", str(photos), "--url", url, "--store", str(store)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def search_large_store(store: Path, files: int) -> dict[str, Any]:
    """Make a store of ``files`` photos, and search for a few of them and for all."""
    large_store.fill(store, files)
    return {
        "store_mb_per_100k": folder_bytes(store) / files * 0.1,
        "few": in_new_process(large_store.search, store, files, _FEW),
        "all": in_new_process(large_store.search, store, files, files),
    }


def search_generated(run: Run) -> dict[str, Any]:
    """Search generated files once, then again three times."""
    files, photos, store = run.options.files, run.scratch / "photos", run.scratch / "store"
    with ProcessPoolExecutor(usable_cores()) as pool:
        firsts = range(0, files, _FILES_PER_FOLDER)
        counts = [min(_FILES_PER_FOLDER, files - first) for first in firsts]
        list(pool.map(generate, [str(photos / f"{first}") for first in firsts], firsts, counts))
    repository = run.scratch / "triton_models"
    export_model(model=str(TINY_CLIP), pretrained="random:0", repository=repository)
    with run.block():
        url = run.serve(repository).grpc_url
        first = asyncio.run(search(url, photos, store))
        again = [asyncio.run(search(url, photos, store)) for _ in range(_TIMES)]
        command = statistics.median(command_s(url, photos, store) for _ in range(_TIMES))
    median = median_of(again, "scan_seconds")
    return {
        "first": first,
        "second": min(again, key=lambda one: abs(one["scan_seconds"] - median)),
        "again": again,
        "second_command_seconds": command,
        "store_mb": folder_bytes(store) / 1e6,
    }


@experiment(
    option("--files", type=int, default=10_000, help="generated files; 0 leaves them out"),
    option("--known", type=int, default=1_000_000, help="files of the large store; 0 leaves it out"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure searches of generated files, and of a large store; ``0`` leaves one of them out."""
    files, known = run.options.files, run.options.known
    result = search_generated(run) if files else {}
    large = search_large_store(run.scratch / "large", known) if known else {}
    # What the store does for all of them before the comparison.
    result["bookkeeping"] = {"files": known, "seconds": large["all"]["scan_seconds"]} if large else {}
    result["large_store"] = large
    rows = []
    for name in ("first", "second") if files else ():
        one = result[name]
        counts = (str(one["work"][key]) for key in ("files_read", "decoded", "embedded"))
        rows.append((f"{name} search", f"{one['scan_seconds']:.2f}", f"{one['seconds']:.2f}", *counts))
    if files:
        rows.append(("second, whole command", "", f"{result['second_command_seconds']:.2f}", "", "", ""))
    if large:
        rows.append((f"store only, {known:,} files", f"{large['all']['scan_seconds']:.2f}", "", "0", "0", "0"))
    title = f"Searching {files:,} files of 10 kB, small model of random weights"
    show(title, ("", "scan, s", "total, s", "read", "decoded", "embedded"), rows)
    for name in ("few", "all") if large else ():
        one = large[name]
        print(
            f"{one['searched']:,} files against a store of {one['files']:,}: {one['seconds']:.1f} s, "
            f"peak {one['peak_mb']:,.0f} MB, of which {one['peak_mb_before']:,.0f} MB before the search"
        )
    if large:
        print(f"store: {large['store_mb_per_100k']:.0f} MB per 100,000 photos")
    return result

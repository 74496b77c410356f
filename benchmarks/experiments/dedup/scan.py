"""What a search costs besides the model, the first and the second time: ``python -m benchmarks scan``.

The question: does the store keep its promise that a second search does nothing again? 10,000 generated files are
searched with a small model of random weights, since the model's own speed is not the subject, and then again, three
times: walking the folders and asking the store is the scan, comparing all with all comes after it. Then ten
files, and all, are searched against a store of a million files, which are never opened: time and peak memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.fixtures.large_store import fill, search_in_own_process
from benchmarks.harness.results import RESULTS, write_result
from clip_client import ClipClient
from clip_client.dedup import Store, find_duplicates
from preprocess_ensemble.export.exporter import export_model
from preprocess_ensemble.testing.server import QUIET, serving
from preprocess_ensemble.testing.tiny_model import TINY_CLIP

_SIDE: Final = 256
_FILES_PER_FOLDER: Final = 500
_TIMES: Final = 3
_FEW: Final = 10


def generate(folder: str, first: int, count: int) -> None:
    """Write ``count`` JPEG files of some 10 kB: coarse noise, enlarged, so that no two are alike."""
    Path(folder).mkdir(parents=True)
    for number in range(first, first + count):
        random = np.random.default_rng(number)
        coarse = Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8))
        fine = coarse.resize((_SIDE * 4 // 3, _SIDE), Image.Resampling.BICUBIC)
        fine.save(Path(folder, f"IMG_{number:07d}.jpg"), quality=88)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def search(url: str, photos: Path, store: Path) -> dict[str, Any]:
    """Search once; ``scan_seconds`` is until the comparing begins, ``seconds`` is all."""
    comparing: list[float] = []

    def note(what: str, *_: object) -> None:
        if what == "comparing":
            comparing.append(time.perf_counter())

    async with ClipClient(url) as clip:
        await clip.model()
        started = time.perf_counter()
        with Store(store) as opened:
            report = await find_duplicates(clip, [photos], store=opened, on_progress=note)
        return {
            "scan_seconds": comparing[0] - started,
            "seconds": time.perf_counter() - started,
            "compared": report.compared,
            "work": asdict(report.work),
            "groups": len(report.groups),
        }


def command_s(url: str, photos: Path, store: Path) -> float:
    """Time the whole command, Python's start included."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "clip_client.cli.main", "dedup", str(photos), "--url", url, "--store", str(store)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def large_store(store: Path, files: int) -> dict[str, Any]:
    """Make a store of ``files`` contents that nobody has, and search for a few of them and for all."""
    fill(store, files)
    return {
        "store_mb_per_100k": folder_bytes(store) / files * 0.1,
        "few": search_in_own_process(store, files, _FEW),
        "all": search_in_own_process(store, files, files),
    }


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


def main() -> None:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--known", type=int, default=1_000_000, help="files of the large store; 0 leaves it out")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        photos, store = Path(temporary, "photos"), Path(temporary, "store")
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            firsts = range(0, arguments.files, _FILES_PER_FOLDER)
            counts = [min(_FILES_PER_FOLDER, arguments.files - first) for first in firsts]
            list(pool.map(generate, [str(photos / f"{first}") for first in firsts], firsts, counts))
        repository = Path(temporary, "triton_models")
        export_model(model=str(TINY_CLIP), pretrained="random:0", repository=repository)
        with serving(repository, *QUIET) as server:
            first = asyncio.run(search(server.grpc_url, photos, store))
            again = [asyncio.run(search(server.grpc_url, photos, store)) for _ in range(_TIMES)]
            second = min(again, key=lambda run: abs(run["scan_seconds"] - _median(again, "scan_seconds")))
            whole_s = statistics.median(command_s(server.grpc_url, photos, store) for _ in range(_TIMES))
        large = large_store(Path(temporary, "large"), arguments.known) if arguments.known else {}
        # What the store does for all of them, before anything is compared.
        known = {"files": arguments.known, "seconds": large["all"]["scan_seconds"]} if large else {}
        result = {
            "first": first,
            "second": second,
            "again": again,
            "second_command_seconds": whole_s,
            "store_mb": folder_bytes(store) / 1e6,
            "bookkeeping": known,
            "large_store": large,
        }
    table = Table(title=f"Searching {arguments.files:,} files of 10 kB, small model of random weights")
    for heading in ("", "scan, s", "in all, s", "read", "decoded", "embedded"):
        table.add_column(heading, justify="right")
    for name, run in (("first search", first), ("second search", second)):
        work = run["work"]
        seconds = (f"{run['scan_seconds']:.2f}", f"{run['seconds']:.2f}")
        table.add_row(name, *seconds, str(work["files_read"]), str(work["decoded"]), str(work["embedded"]))
    table.add_row("second, whole command", "", f"{whole_s:.2f}", "", "", "")
    if known:
        table.add_row(f"bookkeeping, {known['files']:,} files", f"{known['seconds']:.2f}", "", "0", "0", "0")
    Console().print(table)
    if large:
        for name in ("few", "all"):
            run = large[name]
            print(
                f"{run['searched']:,} files against a store of {run['files']:,}: {run['seconds']:.1f} s, "
                f"{run['peak_mb']:,.0f} MB at most, {run['peak_mb_before']:,.0f} MB of it before the search"
            )
        print(f"store: {large['store_mb_per_100k']:.0f} MB per 100,000 photos")
    print(f"kept in {write_result('scan', result, arguments.results)}")


if __name__ == "__main__":
    main()

"""How many photos a second does a first search take, from folder to groups?

Searches a folder with an empty store, in this process (``local:``) and through a running ``clip-serve``, for originals
of 12 megapixels, 2 megapixels and 256 pixels, and tells where the processor time goes. The photos are cut from the
sample photos, no two alike; one in ten has a copy at half the size. Python's start and loading the model are not
counted, and shown on their own. Processor time is that of the client and the server together; unlike the rate, it says
little about what else the machine does.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
from PIL import Image

from benchmarks.experiments.dedup import large_store
from benchmarks.experiments.dedup.step_times import REST, STEPS, StepTimes
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, rounds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import median_of
from benchmarks.harness.worker import in_new_process, peak_memory_mb
from clip_client import ClipClient
from preprocess_ensemble.testing.sample_photos import write_originals

if TYPE_CHECKING:
    from collections.abc import Mapping

SIZES: Final[Mapping[str, tuple[int, int]]] = {
    "12 MP": (4000, 3000),
    "2 MP": (1632, 1224),
    "256 px": (341, 256),
    "24 MP": (6000, 4000),
    "2 MP PNG": (1632, 1224),
}
"""Name -> width and height of the originals in pixels."""
USUAL: Final = ("12 MP", "2 MP", "256 px")
SYSTEMS: Final = ("local:", "clip-serve")
_COPY_EVERY: Final = 10
_GRAIN: Final = 5
"""Levels of 255: with it, a JPEG of 12 megapixels has about 3 MB, as from a camera."""


def write_photo(source: str, path: str, size: tuple[int, int], number: int) -> None:
    """Write a part of ``source``, enlarged to ``size``, with grain and a camera's EXIF data; part and grain depend on
    ``number``.
    """
    width, height = size
    random = np.random.default_rng(number)
    with Image.open(source) as opened:
        picture = opened.convert("RGB")
    share = random.uniform(0.5, 0.9)
    left, top = ((1 - share) * random.random() * side for side in picture.size)
    box = (left, top, left + share * picture.width, top + share * picture.height)
    levels = np.asarray(picture.resize(size, Image.Resampling.BICUBIC, box), np.int16)
    grain = random.integers(-_GRAIN, _GRAIN + 1, (height, width, 1), np.int16)
    photo = Image.fromarray((levels + grain).clip(0, 255).astype(np.uint8))
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0132] = (
        "Canon",
        "Canon EOS R5",
        f"2024:05:01 10:{number // 60:02}:{number % 60:02}",
    )
    photo.save(path, quality=90, exif=exif)
    if number % _COPY_EVERY == 0:
        photo.resize((width // 2, height // 2), Image.Resampling.LANCZOS).save(f"{path}.half.jpg", quality=80)


def write_photos(folder: Path, name: str, count: int) -> None:
    """Write about ``count`` photos, copies included, of the size in :data:`SIZES` into ``folder``."""
    size, suffix = SIZES[name], "png" if name.endswith("PNG") else "jpg"
    folder.mkdir()
    sources = write_originals(folder.parent / "originals")
    originals = range(round(count * _COPY_EVERY / (_COPY_EVERY + 1)))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            pool.submit(
                write_photo,
                str(sources[number % len(sources)]),
                str(folder / f"IMG_{number:05}.{suffix}"),
                size,
                number,
            )
            for number in originals
        ]
        for job in jobs:
            job.result()


def search(url: str, photos: Path, store: Path, server: int | None) -> dict[str, Any]:
    """Search once, with an empty store; ``server`` is the process of the server, whose time counts too."""
    return asyncio.run(_search(url, photos, sorted(photos.iterdir())[0], store, server))


async def _search(url: str, photos: Path, first: Path, store: Path, server: int | None) -> dict[str, Any]:
    times = StepTimes()
    started = time.perf_counter()
    async with ClipClient(url) as clip:
        await clip.embed(first)  # loads the model
        ready, before_s, server_before_s = time.perf_counter(), time.process_time(), tree_s(server)
        with times.counting():
            report, _ = await large_store.timed_search(clip, [photos], store)
        seconds, own_s, server_s = (
            time.perf_counter() - ready, time.process_time() - before_s, tree_s(server) - server_before_s,
        )  # fmt: skip
    assert not report.failed, report.failed
    counted = {step: times.seconds[step] for step in STEPS}
    return {
        "photos": report.compared,
        "groups": len(report.groups),
        "start_s": ready - started,
        "photos_per_second": report.compared / seconds,
        "processor_ms_per_photo": 1e3 * (own_s + server_s) / report.compared,
        "server_ms_per_photo": 1e3 * server_s / report.compared,
        "steps_ms_per_photo": {
            step: 1e3 * spent / report.compared
            for step, spent in {**counted, REST: own_s + server_s - sum(counted.values())}.items()
        },
        "peak_mb": peak_memory_mb(),
    }


def tree_s(process: int | None) -> float:
    """Processor seconds of a process and its children so far; 0 without a process."""
    if process is None:
        return 0.0
    parent = psutil.Process(process)
    times = [one.cpu_times() for one in (parent, *parent.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def measure_own(run: Run, system: str, photos: Path, server: Any) -> dict[str, Any]:
    """Search ``photos`` once in a new process, with a new store."""
    store = run.scratch / f"store of {system} {photos.name} {time.monotonic_ns()}"
    url = server.grpc_url if system == "clip-serve" else f"local:{run.options.repository}"
    return in_new_process(search, url, photos, store, server.process.pid if system == "clip-serve" else None)


@experiment(
    REPOSITORY,
    rounds(3),
    option("--files", type=int, default=66, help="photos of each size, copies included (default: %(default)s)"),
    option("--sizes", nargs="+", choices=tuple(SIZES), default=USUAL, help="default: %(default)s"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every size with every system, in turn."""
    cells = {}
    server = run.serve()
    for size in run.options.sizes:
        folder = run.scratch / size
        write_photos(folder, size, run.options.files)
        for system in SYSTEMS:
            cells[f"{size}, {system}"] = partial(measure_own, run, system, folder, server)
    results = run.in_rounds(cells)
    show(
        "First search, from folder to groups",
        ("", "photos/s", "processor ms/photo", "of which server", "peak MB", "groups", "start s"),
        [
            (
                name,
                *(
                    f"{median_of(one, key):.1f}"
                    for key in ("photos_per_second", "processor_ms_per_photo", "server_ms_per_photo")
                ),
                *(f"{median_of(one, key):.0f}" for key in ("peak_mb", "groups")),
                f"{median_of(one, 'start_s'):.1f}",
            )
            for name, one in results.items()
        ],
    )
    steps = [*STEPS, REST]
    show(
        "Processor time, ms per photo",
        ("", *results),
        [
            (
                step,
                *(f"{median_of([found['steps_ms_per_photo'] for found in one], step):.2f}" for one in results.values()),
            )
            for step in steps
        ],
    )
    return {"searches": results}

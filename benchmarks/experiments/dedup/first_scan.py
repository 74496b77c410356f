"""How many photos a second does a first search take, from folder to groups?

Searches a folder with an empty store, in this process (``local:``), with alignment and without, without a model, and
through a running ``clip-serve``, for originals of 12 megapixels, 2 megapixels and 256 pixels. The photos are cut from
the sample photos, no two alike; one in ten has a copy at half the size. So each photo resembles some others and is
aligned with them, which happens to few photos of a usual folder. Python's start and loading the model are not counted,
and shown on their own. Beside them stand imagehash and, if it is installed, czkawka (``pip install czkawka``), which
only hash the photos. Processor time is that of client and server, and hardly depends on the rest of the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from benchmarks.fixtures.sample_photos import write_originals
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, rounds
from benchmarks.harness.meters import in_new_process, peak_memory_mb, tree_s
from clip_client import ClipClient
from clip_client.dedup import Store, find_duplicates

SIZES: Final[Mapping[str, tuple[int, int]]] = {"12 MP": (4000, 3000), "2 MP": (1632, 1224), "256 px": (341, 256)}
"""Name -> width and height of the originals in pixels."""
SYSTEMS: Final[Mapping[str, str]] = {
    "local:": "in process",
    "unaligned": "in process, `verify=False`",
    "clip-serve": "through `clip-serve`",
    "no model": "without a model",
    "imagehash": "imagehash, hashes only",
    "czkawka": "czkawka, hashes only",
}
_COPY_EVERY: Final = 10
_GRAIN: Final = 5
"""Levels of 255: with it, a JPEG of 12 megapixels has about 3 MB, as from a camera."""


def write_photo(source: Path, path: Path, size: tuple[int, int], number: int) -> None:
    """Write a part of ``source``, enlarged to ``size``, with grain and EXIF data; ``number`` decides on both."""
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
    exif, taken = Image.Exif(), f"2024:05:01 10:{number // 60:02}:{number % 60:02}"
    exif.update({0x010F: "Canon", 0x0110: "Canon EOS R5", 0x0132: taken})
    photo.save(path, quality=90, exif=exif)
    if number % _COPY_EVERY == 0:
        with Image.open(path) as saved:
            saved.resize((width // 2, height // 2), Image.Resampling.LANCZOS).save(f"{path}.half.jpg", quality=80)


def write_photos(folder: Path, name: str, count: int) -> None:
    """Write about ``count`` photos, copies included, of the size in :data:`SIZES` into ``folder``."""
    folder.mkdir()
    sources = write_originals(folder.parent / "originals")
    originals = range(round(count * _COPY_EVERY / (_COPY_EVERY + 1)))
    paths = [folder / f"IMG_{number:05}.jpg" for number in originals]
    with ProcessPoolExecutor() as pool:
        list(pool.map(write_photo, itertools.cycle(sources), paths, itertools.repeat(SIZES[name]), originals))


def hash_all(tool: str, photos: Path) -> dict[str, Any]:
    if tool == "imagehash":
        import imagehash

        def hash_one(path: Path) -> object:
            with Image.open(path) as image:
                return imagehash.phash(image)
    else:
        from czkawka import ImageSimilarity

        hash_one = ImageSimilarity().hash_image
    paths = sorted(photos.iterdir())
    started, processor_s = time.perf_counter(), time.process_time()
    for path in paths:
        hash_one(path)
    seconds, processor_s = time.perf_counter() - started, time.process_time() - processor_s
    return {
        "photos": len(paths),
        "photos_per_second": len(paths) / seconds,
        "processor_ms_per_photo": 1e3 * processor_s / len(paths),
        "peak_mb": peak_memory_mb(),
    }


def search(url: str | None, photos: Path, store: Path, server: int | None, verify: bool) -> dict[str, Any]:
    """Search once, with an empty store; ``server`` is the process of the server, whose time counts too."""
    first = next(photos.iterdir())

    def now() -> list[float]:
        return [time.perf_counter(), time.process_time() + (0.0 if server is None else tree_s(server))]

    async def timed() -> dict[str, Any]:
        started_at = time.perf_counter()
        async with AsyncExitStack() as stack:
            clip = None if url is None else await stack.enter_async_context(ClipClient(url))
            if clip is not None:
                await clip.embed(first)  # loads the model
            started = now()
            with Store(store) as opened:
                report = await find_duplicates(clip, [photos], store=opened, verify=verify)
            seconds, processor_s = (after - before for after, before in zip(now(), started, strict=True))
        assert not report.failed, report.failed
        return {
            "photos": report.compared,
            "groups": len(report.groups),
            "aligned": report.work.aligned,
            "start_s": started[0] - started_at,
            "photos_per_second": report.compared / seconds,
            "processor_ms_per_photo": 1e3 * processor_s / report.compared,
            "peak_mb": peak_memory_mb(),
        }

    return asyncio.run(timed())


def measure_once(run: Run, system: str, photos: Path, server: Any) -> dict[str, Any]:
    if system in ("imagehash", "czkawka"):
        return in_new_process(hash_all, system, photos)
    store = run.scratch / f"store of {system} {photos.name} {time.monotonic_ns()}"
    url: str | None = None if system == "no model" else f"local:{run.options.repository}"
    process = None
    if system == "clip-serve":
        url, process = server.grpc_url, server.process.pid
    return in_new_process(search, url, photos, store, process, system != "unaligned")


@experiment(
    REPOSITORY,
    rounds(3),
    option("--files", type=int, default=66, help="photos of each size, copies included"),
    option("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES), help="default: all"),
)
def measure(run: Run) -> dict[str, Any]:
    cells = {}
    server = run.serve()
    for size in run.options.sizes:
        folder = run.scratch / size
        write_photos(folder, size, run.options.files)
        for system in SYSTEMS:
            if system == "czkawka" and find_spec(system) is None:
                continue
            cells[f"{size}, {system}"] = partial(measure_once, run, system, folder, server)
    return {"searches": run.in_rounds(cells)}

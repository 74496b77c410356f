"""How many photos a second does a first search take, from folder to groups?

Searches a folder with an empty store, in this process (``local:``), with alignment and without, and through a running
``clip-serve``, for originals of 12 megapixels, 2 megapixels and 256 pixels, and tells where the processor time goes.
The photos are cut from the sample photos, no two alike; one in ten has a copy at half the size. So each photo resembles
some others and is aligned with them, which happens to few photos of a usual folder. Python's start and loading the
model are not counted, and shown on their own. Processor time is that of the client and the server together; unlike the
rate, it says little about what else the machine does.

``--peers`` measures other systems on the same files, in the same rounds: infinity, which embeds with the same weights
but finds no groups, and fastdup, which searches with a small network of its own or with the same weights. A peer that
pip cannot install here is left out.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import pkgutil
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np
from PIL import Image

from benchmarks.fixtures.float_models import write_images_model
from benchmarks.fixtures.sample_photos import write_originals
from benchmarks.harness.checkpoint import say
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, rounds
from benchmarks.harness.meters import Stopwatch
from benchmarks.harness.worker import in_new_process, peak_memory_mb
from benchmarks.peers.folder_search import embed_with_infinity, search_with_fastdup
from benchmarks.peers.services import EnvironmentFailed, infinity, venv_python
from clip_client import ClipClient
from clip_client.dedup import Store, find_duplicates
from clip_client.dedup.search import CANDIDATES, OFF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SIZES: Final[Mapping[str, tuple[int, int]]] = {
    "12 MP": (4000, 3000),
    "2 MP": (1632, 1224),
    "256 px": (341, 256),
}
"""Name -> width and height of the originals in pixels."""
SYSTEMS: Final[Mapping[str, str]] = {
    "local:": "this, in process",
    "unaligned": "this, in process, `--verify off`",
    "clip-serve": "this, through `clip-serve`",
    "infinity": "infinity, fp32: vectors, no groups",
    "fastdup-clip": "fastdup, the same weights, fp32",
    "fastdup": "fastdup, a small network of its own",
}
OWN: Final = ("local:", "unaligned", "clip-serve")
PEERS: Final = {"infinity": "infinity", "fastdup-clip": "fastdup", "fastdup": "fastdup"}
"""System -> its environment."""
STEPS: Final = {
    "decode": ("preprocess_ensemble.imaging.decode:decode", "preprocess_ensemble.imaging.preprocessor:decode_image"),
    "align": (
        "clip_client.dedup.alignment.aligner:keep_small_picture",
        "clip_client.dedup.alignment.aligner:keypoints_in",
        "clip_client.dedup.alignment.keypoints:_find_keypoints",
        "clip_client.dedup.alignment.aligner:align",
        "clip_client.dedup.alignment.aligner:full_photo",
        "clip_client.dedup.alignment.aligner:check_at_full_size",
    ),
}
"""Step -> its functions. A function that another one calls counts for its own step alone."""
REST: Final = "model and the rest"
"""What no step counts: ONNX Runtime, reading, features, comparison, gRPC."""
_COPY_EVERY: Final = 10
_GRAIN: Final = 5
"""Levels of 255: with it, a JPEG of 12 megapixels has about 3 MB, as from a camera."""


def write_photo(source: Path, path: Path, size: tuple[int, int], number: int) -> None:
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
    folder.mkdir()
    sources = write_originals(folder.parent / "originals")
    originals = range(round(count * _COPY_EVERY / (_COPY_EVERY + 1)))
    paths = [folder / f"IMG_{number:05}.jpg" for number in originals]
    with ProcessPoolExecutor() as pool:
        list(pool.map(write_photo, itertools.cycle(sources), paths, itertools.repeat(SIZES[name]), originals))


@contextmanager
def counted_steps() -> Iterator[dict[str, float]]:
    """Count the processor seconds of each of :data:`STEPS`, over all threads, until the end of the block."""
    seconds, lock, thread = dict.fromkeys(STEPS, 0.0), threading.Lock(), threading.local()

    def counted(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            outer_inside, thread.inside = getattr(thread, "inside", 0.0), 0.0
            started = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                spent = time.thread_time() - started
                with lock:
                    seconds[step] += spent - thread.inside
                thread.inside = outer_inside + spent

        return call

    with ExitStack() as stack:
        for step, functions in STEPS.items():
            for function in functions:
                original = pkgutil.resolve_name(function)
                stack.enter_context(mock.patch(function.replace(":", "."), counted(step, original)))
        yield seconds


def search(url: str, photos: Path, store: Path, server: int | None, verify: str) -> dict[str, Any]:
    """Search once, with an empty store; ``server`` is the process of the server, whose time counts too."""
    return asyncio.run(_search(url, photos, sorted(photos.iterdir())[0], store, server, verify))


async def _search(url: str, photos: Path, first: Path, store: Path, server: int | None, verify: str) -> dict[str, Any]:
    started = time.perf_counter()
    async with ClipClient(url) as clip:
        await clip.embed(first)  # loads the model
        start_s = time.perf_counter() - started
        stopwatch = Stopwatch(server)
        with counted_steps() as counted, Store(store) as opened:
            report = await find_duplicates(clip, [photos], store=opened, verify=verify)
        spent = stopwatch.per_photo(report.compared)
    assert not report.failed, report.failed
    steps = {step: 1e3 * seconds / report.compared for step, seconds in counted.items()}
    return {
        "photos": report.compared,
        "groups": len(report.groups),
        "start_s": start_s,
        **spent,
        "steps_ms_per_photo": {**steps, REST: spent["processor_ms_per_photo"] - sum(steps.values())},
        "peak_mb": peak_memory_mb(),
    }


def measure_own(run: Run, system: str, photos: Path, server: Any) -> dict[str, Any]:
    """Search ``photos`` once in a new process, with a new store."""
    store = run.scratch / f"store of {system} {photos.name} {time.monotonic_ns()}"
    url, process = f"local:{run.options.repository}", None
    if system == "clip-serve":
        url, process = server.grpc_url, server.process.pid
    return in_new_process(search, url, photos, store, process, OFF if system == "unaligned" else CANDIDATES)


def start_peers(run: Run) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """Install and start the peers of the options; return how each measures a folder once.

    One that cannot be installed is said to be left out, and is no longer in the options.
    """
    for name in tuple(run.options.peers):
        try:
            venv_python(PEERS[name])
        except EnvironmentFailed as error:
            say(f"{name} is left out: {error}")
            run.options.peers.remove(name)
    started: dict[str, Callable[[Path], dict[str, Any]]] = {}
    for name in run.options.peers:
        if name == "infinity":
            service = run.stack.enter_context(infinity(run.passport.model, run.passport.pretrained))
            started[name] = partial(in_new_process, embed_with_infinity, service, run.options.repository)
        else:
            model = []
            if name == "fastdup-clip":
                model = [str(run.scratch / "clip.onnx"), str(run.passport.dimension)]
                write_images_model(run.options.repository, Path(model[0]))
            started[name] = partial(search_with_fastdup, run.scratch / name, model)
    return started


@experiment(
    REPOSITORY,
    rounds(3),
    option("--files", type=int, default=66, help="photos of each size, copies included"),
    option("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES), help="default: all"),
    option("--peers", nargs="+", choices=PEERS, default=[], help="measured beside it, in environments that pip makes"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every size with every system, in turn."""
    cells = {}
    peers = start_peers(run)
    server = run.serve()
    for size in run.options.sizes:
        folder = run.scratch / size
        write_photos(folder, size, run.options.files)
        for system in OWN:
            cells[f"{size}, {system}"] = partial(measure_own, run, system, folder, server)
        for system, measure_peer in peers.items():
            cells[f"{size}, {system}"] = partial(measure_peer, folder)
    return {"searches": run.in_rounds(cells)}

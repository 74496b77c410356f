"""Do threads or processes decode faster?

``clip_preprocess`` has one instance with a thread per core. A thread waits for Python's global lock between two images.
An instance is a process of its own and does not, but it takes memory and splits Triton's batches. Both decode and
transform the same files, on 1 core, 2, and so on up to all, in rounds, all combinations in turn.

More cores than this machine has, 8 and 16, are *simulated*: a sleep of the measured length replaces each decode and
each resize, during which the lock is free. Sleeping takes no core, so all threads compete for a real lock, held by the
real rest of the program. The simulation leaves out contention for caches and memory. It is valid as long as the Python
part of all threads fits on the real cores. Efficiency is the rate over the number of cores times the rate of one such
thread. ``server_threads`` measures in Triton.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import statistics
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np
from PIL import Image

from benchmarks.harness.experiment import Experiment, Run, rounds, seconds
from benchmarks.load.loops import repeat
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.imaging.turbojpeg_decoder import TurboJpeg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.synchronize import Barrier

CONFIG: Final = PreprocessConfig(size=(224, 224), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
SIZES: Final = {"256 px": (341, 256), "12 MP": (4000, 3000)}
BATCH: Final = 32
SIMULATED: Final = (8, 16)


def file(size: tuple[int, int]) -> bytes:
    """Encode blobs with the noise of a sensor: compresses about as a photo does."""
    generator = np.random.default_rng(0)
    blobs = generator.integers(0, 256, (size[1] // 20 + 1, size[0] // 20 + 1, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(blobs).resize(size, Image.Resampling.BICUBIC))
    noise = generator.normal(0, 4, picture.shape)
    buffer = io.BytesIO()
    Image.fromarray((picture + noise).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def work(data: bytes, threads: int, cores: list[int], seconds: float, start: Barrier, results: Any) -> None:
    """Decode batches as the server does, and report images per second."""
    os.sched_setaffinity(0, cores)
    preprocessor = Preprocessor(CONFIG, threads=threads)
    batch = [data] * BATCH
    preprocessor.run([batch])
    start.wait()
    results.put(repeat(lambda: len(preprocessor.run([batch])[0]), seconds)["rate"])


def rate(data: bytes, processes: int, threads: int, cores: list[int], seconds: float) -> float:
    """Images a second of so many processes, with so many threads each, together."""
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(processes), context.SimpleQueue()
    workers = [
        context.Process(target=work, args=(data, threads, cores, seconds, start, results)) for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    total = sum(results.get() for _ in workers)
    for worker in workers:
        worker.join()
    return float(total)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What becomes of the processor time of one image, in seconds."""

    decode: float
    resizes: tuple[float, ...]
    """In the order in which they are called."""
    python: float
    """All the rest; the lock is held."""


def parts(data: bytes, images: int = 100) -> Parts:
    """Measure one file in one thread; medians."""
    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            start = time.thread_time()
            result = function(*positional, **named)
            spent.append(time.thread_time() - start)
            return result

        return call

    preprocessor = Preprocessor(CONFIG, threads=1)
    preprocessor.run([[data]])  # loads the library, which decodes its probes
    rows = []
    with (
        mock.patch.object(TurboJpeg, "decode", timed(TurboJpeg.decode)),
        mock.patch.object(Image.Image, "resize", timed(Image.Image.resize)),
    ):
        for _ in range(images):
            spent.clear()
            start = time.thread_time()
            preprocessor.run([[data]])
            rows.append([*spent, time.thread_time() - start - sum(spent)])
    decoding, *resizes, python = np.median(rows, axis=0).tolist()
    return Parts(decode=decoding, resizes=tuple(resizes), python=python)


@contextmanager
def asleep(data: bytes, measured: Parts) -> Iterator[None]:
    """Replace decode and resize by sleeps of the same length, for one file, in this process and those it forks."""
    pixels: list[Any] = []
    blank: dict[tuple[int, int], Image.Image] = {}
    decode, resize = TurboJpeg.decode, Image.Image.resize

    def decoding(*arguments: Any) -> Any:
        pixels.append(decode(*arguments))
        return pixels[0]

    def resizing(self: Image.Image, size: tuple[int, int], *positional: Any, **named: Any) -> Image.Image:
        blank[size] = Image.new("RGB", size)
        return resize(self, size, *positional, **named)

    with mock.patch.object(TurboJpeg, "decode", decoding), mock.patch.object(Image.Image, "resize", resizing):
        Preprocessor(CONFIG, threads=1).run([[data]])
    stages = threading.local()

    def decoded(*_: Any, **__: Any) -> Any:
        stages.resizes = itertools.cycle(measured.resizes)
        time.sleep(measured.decode)
        return pixels[0]

    def resized(self: Image.Image, size: tuple[int, int], *_: Any, **__: Any) -> Image.Image:
        time.sleep(next(stages.resizes))
        return blank[size]

    with mock.patch.object(TurboJpeg, "decode", decoded), mock.patch.object(Image.Image, "resize", resized):
        yield


def splits(cores: int) -> list[int]:
    """Numbers of processes to share so many cores."""
    return [processes for processes in (1, 2, 4, cores) if processes <= cores and (processes <= 2 or cores >= 8)]


def rates_of_splits(
    data: bytes, counts: list[int], run: Run, cores: list[int], *, pinned: bool = True
) -> dict[tuple[int, int], list[float]]:
    """(cores, processes) -> images per second in each round, all splits in turn."""
    rates: dict[tuple[int, int], list[float]] = {
        (count, processes): [] for count in counts for processes in sorted(set(splits(count)))
    }
    for _ in run.rounds:
        for (count, processes), values in rates.items():
            used = cores[:count] if pinned else cores
            values.append(rate(data, processes, count // processes, used, run.options.seconds))
    return rates


def label(cores: int, processes: int) -> str:
    """Name one split."""
    return f"{cores} cores: {processes} x {cores // processes} threads"


def measure(run: Run) -> dict[str, Any]:
    """Measure the cores of this machine, and simulate more."""
    usable = sorted(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= len(usable)]
    simulated = [count for count in SIMULATED if count > len(usable)]
    found: dict[str, Any] = {}
    for name, size in SIZES.items():
        data = file(size)
        rates = {label(*key): values for key, values in rates_of_splits(data, counts, run, usable).items()}
        split = parts(data)
        with asleep(data, split):
            # No core is pinned: the sleepers need none.
            sleepers = rates_of_splits(data, [1, *simulated], run, usable, pinned=False)
        alone = statistics.median(sleepers.pop((1, 1)))
        efficiencies = {label(*key): statistics.median(values) / (key[0] * alone) for key, values in sleepers.items()}
        found[name] = {
            "images_per_second": rates,
            "seconds": asdict(split),
            "simulated_images_per_second": {label(*key): values for key, values in sleepers.items()},
            "simulated_one_thread": alone,
            "simulated_efficiency": efficiencies,
        }
        for case, values in rates.items():
            print(f"{name:8} {case:32} {statistics.median(values):8.0f} images/s")
        print(f"{name:8} Python's part of an image: {1e6 * split.python:.0f} us, with the lock held")
        for case, efficiency in efficiencies.items():
            print(f"{name:8} simulated: {case:32} {efficiency:8.2f} of one thread's rate times the cores")
    return {"library": turbojpeg_decoder.library() or "Pillow", "batch": BATCH, "sizes": found}


EXPERIMENT: Final = Experiment("decode_threads", __doc__, measure, (rounds(3), seconds(1.0, "per split and round")))

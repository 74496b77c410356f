"""Do threads or processes decode faster?

``clip_preprocess`` has one instance with a thread per core. A thread waits for Python's global lock between two images.
An instance is a separate process and does not, but it takes memory and splits Triton's batches. Both decode and
transform the same files on 1 core, 2, and so on up to all; each round measures all combinations in turn.

More cores than this machine has, 8 and 16, are *simulated*: a sleep of the measured length replaces each decode and
each resize, during which the lock is free. Sleeping uses no core, so all threads compete for a real lock, held by the
real rest of the program. The simulation leaves out contention for caches and memory. It is valid if the Python part of
all threads fits on the real cores. Efficiency is the rate over the number of cores times the rate of one such
thread. ``server_threads`` measures in Triton.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any, Final
from unittest import mock

import numpy as np
from PIL import Image

from benchmarks.fixtures.pictures import blobs, encoded, noisy
from benchmarks.harness.experiment import Run, experiment, rounds, seconds
from benchmarks.harness.rounds import in_turn
from benchmarks.load.loops import repeat
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.imaging.turbojpeg_decoder import TurboJpeg

CONFIG: Final = PreprocessConfig(size=(224, 224), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
SIZES: Final = {"256 px": (341, 256), "12 MP": (4000, 3000)}
BATCH: Final = 32
SIMULATED: Final = (8, 16)


def work(data: bytes, threads: int, cores: list[int], seconds: float, start: Barrier, results: Any) -> None:
    """Decode batches as the server does, and report images per second."""
    os.sched_setaffinity(0, cores)
    preprocessor = Preprocessor(CONFIG, threads=threads)
    batch = [data] * BATCH
    preprocessor.run([batch])
    start.wait()
    results.put(repeat(lambda: len(preprocessor.run([batch])[0]), seconds)["rate"])


def rate(data: bytes, processes: int, threads: int, cores: list[int], seconds: float) -> float:
    """Images a second of all ``processes`` together, with ``threads`` each."""
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
    """Processor time of one image, in seconds."""

    decode: float
    resizes: tuple[float, ...]
    """In the order in which they are called."""
    python: float
    """All the rest; the lock is held."""


@contextmanager
def library_calls(through: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Wrap the decode and the resize of the libraries, which release the lock, until the block ends."""
    with (
        mock.patch.object(TurboJpeg, "decode", through(TurboJpeg.decode)),
        mock.patch.object(Image.Image, "resize", through(Image.Image.resize)),
    ):
        yield


def parts(data: bytes, images: int = 100) -> tuple[Parts, list[Any]]:
    """Measure one file in one thread: medians, and what the decode and the resizes of one image returned."""
    spent: list[float] = []
    returned: list[Any] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            start = time.thread_time()
            returned.append(function(*positional, **named))
            spent.append(time.thread_time() - start)
            return returned[-1]

        return call

    preprocessor = Preprocessor(CONFIG, threads=1)
    preprocessor.run([[data]])  # loads the library, which decodes its probes
    rows = []
    with library_calls(timed):
        for _ in range(images):
            spent.clear()
            returned.clear()
            start = time.thread_time()
            preprocessor.run([[data]])
            rows.append([*spent, time.thread_time() - start - sum(spent)])
    decoding, *resizes, python = np.median(rows, axis=0).tolist()
    return Parts(decode=decoding, resizes=tuple(resizes), python=python), returned


@contextmanager
def asleep(measured: Parts, returned: Sequence[Any]) -> Iterator[None]:
    """Replace decode and resize by sleeps of the same length, for one file, in this process and those it forks."""
    thread = threading.local()

    def sleeping(_: Callable[..., Any]) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            # A worker thread makes the calls of one image in the same order as those of the next.
            if not hasattr(thread, "calls"):
                thread.calls = itertools.cycle(zip((measured.decode, *measured.resizes), returned, strict=True))
            seconds, result = next(thread.calls)
            time.sleep(seconds)
            return result

        return call

    with library_calls(sleeping):
        yield


def rates_of_splits(
    data: bytes, counts: list[int], run: Run, cores: list[int], *, pinned: bool = True
) -> dict[tuple[int, int], list[float]]:
    """(cores, processes) -> images per second in each round, all splits in turn."""
    splits = {
        (count, processes): partial(rate, data, processes, count // processes, cores[:count] if pinned else cores)
        for count in counts
        for processes in sorted({1, 2, 4, count})
        if processes <= count and (processes <= 2 or count >= 8)
    }
    return in_turn(splits, run.options.rounds, run.options.seconds)


def label(split: tuple[int, int]) -> str:
    """Name one split of cores into processes."""
    cores, processes = split
    return f"{cores} cores: {processes} x {cores // processes} threads"


@experiment(rounds(3), seconds(1.0, "per split and round"))
def measure(run: Run) -> dict[str, Any]:
    """Measure the cores of this machine, and simulate more."""
    usable = sorted(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= len(usable)]
    simulated = [count for count in SIMULATED if count > len(usable)]
    found: dict[str, Any] = {}
    for name, size in SIZES.items():
        # The noise of a sensor, so that the file compresses about as a photo does.
        data = encoded(noisy(blobs(size, (size[0] // 20 + 1, size[1] // 20 + 1)), 4), quality=80)
        rates = {label(split): values for split, values in rates_of_splits(data, counts, run, usable).items()}
        times, returned = parts(data)
        with asleep(times, returned):
            # No core is pinned: the sleepers need none.
            sleepers = rates_of_splits(data, [1, *simulated], run, usable, pinned=False)
        alone = statistics.median(sleepers.pop((1, 1)))
        efficiencies = {label(key): statistics.median(values) / (key[0] * alone) for key, values in sleepers.items()}
        found[name] = {
            "images_per_second": rates,
            "seconds": asdict(times),
            "simulated_images_per_second": {label(split): values for split, values in sleepers.items()},
            "simulated_one_thread": alone,
            "simulated_efficiency": efficiencies,
        }
        for case, values in rates.items():
            print(f"{name:8} {case:32} {statistics.median(values):8.0f} images/s")
        print(f"{name:8} Python's part of an image: {1e6 * times.python:.0f} us, with the lock held")
        for case, efficiency in efficiencies.items():
            print(f"{name:8} simulated: {case:32} {efficiency:8.2f} of one thread's rate times the cores")
    return {"library": turbojpeg_decoder.library() or "Pillow", "batch": BATCH, "sizes": found}

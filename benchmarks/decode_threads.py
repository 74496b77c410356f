"""Threads or processes for decoding: ``python -m benchmarks.decode_threads``.

The question behind one instance of ``clip_preprocess`` with a thread for each core: a thread waits for Python's global
lock between two images, an instance is a process of its own and does not, but takes memory and splits Triton's batches.
Both decode and transform the same files, on 1 core, 2, and so on up to all, in rounds, all combinations in turn.

For more cores than this machine has there is a bound only: the time that Python itself needs for an image, which is
measured with the pixel work, during which the lock is free, replaced by results that are there already.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np
from PIL import Image

from benchmarks.harness import RESULTS, write_result
from preprocess_ensemble import turbo_jpeg
from preprocess_ensemble.decode import decode, decode_into, quiet_libraries
from preprocess_ensemble.transform import PreprocessConfig, preprocess

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

CONFIG: Final = PreprocessConfig(size=(224, 224), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
SIZES: Final = {"256 px": (341, 256), "12 MP": (4000, 3000)}
BATCH: Final = 32


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
    """Decode batches as the server does, and report images a second."""
    os.sched_setaffinity(0, cores)
    out = np.empty((BATCH, *CONFIG.size, 3), np.uint8)

    def one(row: int) -> None:
        if not decode_into(data, out[row]):
            preprocess(decode(data, at_least=CONFIG.decode_at_least), CONFIG, out[row])

    with ThreadPoolExecutor(threads) as executor, quiet_libraries():
        list(executor.map(one, range(min(BATCH, threads))))
        start.wait()
        begin, images = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            images += sum(1 for _ in executor.map(one, range(BATCH)))
        results.put(images / (time.perf_counter() - begin))


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


def python_seconds(data: bytes, images: int = 2000) -> float:
    """Processor seconds an image for which the lock is held: all but libjpeg-turbo's and Pillow's pixel work."""
    image = decode(data, at_least=CONFIG.decode_at_least)
    pixels = np.asarray(image)
    resized = Image.new("RGB", (CONFIG.size[1], CONFIG.size[0]))
    out = np.empty((*CONFIG.size, 3), np.uint8)
    with (
        quiet_libraries(),
        mock.patch.object(turbo_jpeg, "decode", return_value=pixels),
        mock.patch.object(Image.Image, "resize", return_value=resized),
    ):
        start = time.thread_time()
        for _ in range(images):
            preprocess(decode(data, at_least=CONFIG.decode_at_least), CONFIG, out)
        return (time.thread_time() - start) / images


def main() -> None:
    """Measure, print, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= len(usable)]
    found: dict[str, dict[str, list[float]]] = {}
    held: dict[str, float] = {}
    for name, size in SIZES.items():
        data = file(size)
        cases = {(cores, split) for cores in counts for split in (1, 2, cores) if split <= cores}
        rates: dict[tuple[int, int], list[float]] = {case: [] for case in sorted(cases)}
        for _ in range(arguments.rounds):
            for (cores, processes), values in rates.items():
                values.append(rate(data, processes, cores // processes, usable[:cores], arguments.seconds))
        found[name] = {}
        for (cores, processes), values in rates.items():
            label = f"{cores} cores: {processes} x {cores // processes} threads"
            found[name][label] = values
            print(f"{name:8} {label:32} {statistics.median(values):8.0f} images/s")
        held[name] = python_seconds(data)
        print(f"{name:8} Python's part {1e6 * held[name]:.0f} us: at most {1 / held[name]:.0f} images/s a process")
    result = {
        "library": turbo_jpeg.library() or "Pillow",
        "batch": BATCH,
        "images_per_second": found,
        "python_seconds": held,
    }
    print(f"kept in {write_result('decode_threads', result, arguments.results)}")


if __name__ == "__main__":
    main()

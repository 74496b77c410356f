"""Does anything grow under a long load?

The load is steady: 200,000 requests or an hour, whichever ends first. Once a second, this reads the memory of every
process, open files and shared-memory regions. Caches and pools may fill during the first tenth of the run. After it,
the median memory of the last tenth may be 5 % above that of the second tenth, and files and regions may not exceed the
most of the second tenth; tritonserver may not restart. The full model on two cores reaches the hour first; to reach the
200,000 requests, give ``--repository`` a small model. A run of less than a minute has too few readings and fails.

With ``--mixed``, of 15 calls one sends a 12-megapixel original and two send bad files, and every fourth is cancelled
right after it is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import psutil
from PIL import Image

from benchmarks.fixtures.pictures import encoded
from benchmarks.fixtures.sample_photos import coarse_noise
from benchmarks.fixtures.server import Server, serving
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, seconds
from benchmarks.harness.results import show
from benchmarks.load.loops import closed_loop
from clip_client import ClipClient
from preprocess_ensemble.contract import DEFAULT_NAMES
from preprocess_ensemble.tritonserver.cleanup import SHARED_MEMORY, region_prefix

PICTURES: Final = 24
CANCELLED_AFTER_S: Final = 0.002
"""Long enough for a request to be sent."""
MOST_GROWTH: Final = 0.05
LEAST_READINGS: Final = 50
"""Least number of readings. With fewer readings, a tenth of the run is too short to tell growth from chance."""
MIB: Final = 2**20
_IN_MIB: Final = " in MiB"
"""Ends the names of memory, which may grow by 5 %; counted things may not grow at all."""


class Watch:
    """Reads clip-serve, tritonserver, its stubs and this process."""

    def __init__(self, server: Server) -> None:
        self.readings: defaultdict[str, list[float]] = defaultdict(list)
        self._server = server
        self._restarts = 0
        self._find()

    def _find(self) -> None:
        own, serve, triton = psutil.Process(), psutil.Process(self._server.process.pid), self._server.triton
        stubs = {model: self._server.stub(model) for model in (DEFAULT_NAMES.preprocess, DEFAULT_NAMES.encoder)}
        self._processes = {"client": own, "clip-serve": serve, "tritonserver": triton, **stubs}
        self._prefix = region_prefix(triton.pid)

    def read(self) -> None:
        """Read everything once; nothing while clip-serve replaces a process, which counts as a restart."""
        if all(process.is_running() for process in self._processes.values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._read()
            return
        with contextlib.suppress(ValueError, psutil.Error):  # until all new processes exist
            self._find()
            self._restarts += 1

    def _read(self) -> None:
        self.readings["restarts"].append(self._restarts)
        for name, process in self._processes.items():
            self.readings[f"{name}, memory{_IN_MIB}"].append(process.memory_info().rss / MIB)
            self.readings[f"{name}, open files"].append(process.num_fds())
        regions = list(SHARED_MEMORY.glob(f"{self._prefix}*"))
        self.readings["shared-memory regions"].append(len(regions))
        self.readings[f"shared memory{_IN_MIB}"].append(sum(region.stat().st_size for region in regions) / MIB)


def record(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Whether a quantity is flat after the first tenth, and why."""
    tenth = max(1, len(values) // 10)
    second, last = values[tenth : 2 * tenth], values[-tenth:]
    early, late = statistics.median(second), statistics.median(last)
    flat = late <= ((1 + MOST_GROWTH) * early if name.endswith(_IN_MIB) else max(second))
    if name == "restarts":
        flat = not any(values)  # even a late one, which a median would hide
    return {"flat": flat, "second_tenth": early, "last_tenth": late}


class Call(NamedTuple):
    """One call of ``embed`` with one file."""

    file: bytes
    is_bad: bool = False
    """True if the call must fail."""
    is_cancelled: bool = False


def mixed_calls() -> list[Call]:
    """Good files with 12-megapixel originals, bad files and cancellations among them."""
    good = coarse_noise(PICTURES)
    with Image.open(io.BytesIO(good[0])) as noise:
        original = encoded(noise.resize((4032, 3024), Image.Resampling.BICUBIC), quality=90)
    bad = (b"", b"no image", good[0][: len(good[0]) // 2], original[: len(original) // 2])
    calls = []
    for number in range(240):
        # Of fifteen positions, so that every fourth call, which is cancelled, is of each kind in turn.
        position = number % 15
        is_bad = position in (7, 14)
        file = bad[number // 7 % len(bad)] if is_bad else good[number % len(good)] if position else original
        calls.append(Call(file, is_bad, is_cancelled=number % 4 == 3))
    return calls


async def soak(
    server: Server, calls: Sequence[Call], *, requests: int, seconds: float, concurrency: int, **config: Any
) -> tuple[dict[str, Any], Mapping[str, Sequence[float]]]:
    """Embed the files of ``calls`` in turn, one a request, until either limit; return counts, and what was read."""
    watch = Watch(server)
    start = time.monotonic()
    sent = cancelled = 0

    async def work(clip: ClipClient, number: int) -> None:
        nonlocal sent, cancelled
        call = calls[number % len(calls)]
        sent += 1
        embedding = asyncio.create_task(clip.embed([call.file]))
        if call.is_cancelled:
            await asyncio.wait({embedding}, timeout=CANCELLED_AFTER_S)
            cancelled += embedding.cancel()
            await asyncio.wait({embedding})
            return
        batch = await embedding
        if not call.is_bad:
            batch.raise_for_errors()
        elif not batch.errors:
            raise RuntimeError("a bad file got a vector")

    async with ClipClient(server.grpc_url, **config) as clip:
        model = (await clip.model()).id
        loop = closed_loop(partial(work, clip), callers=concurrency, seconds=seconds, most=requests)
        load = asyncio.create_task(loop)
        while not load.done():
            watch.read()
            await asyncio.wait({load}, timeout=1.0)
        await load
    counts = {"model": model, "requests": sent, "cancelled": cancelled, "seconds": round(time.monotonic() - start)}
    return counts, watch.readings


@experiment(
    REPOSITORY,
    option("--requests", type=int, default=200_000, help="most requests"),
    seconds(3600.0, "most seconds"),
    option("--concurrency", type=int, default=16, help="callers"),
    option("--mixed", action="store_true", help="with 12-megapixel originals, bad files and cancellations"),
)
def measure(run: Run) -> dict[str, Any]:
    """Soak; the exit code is 1 if something grew."""
    options = run.options
    server = run.stack.enter_context(serving(options.repository))
    calls = mixed_calls() if options.mixed else [Call(file) for file in coarse_noise(PICTURES)]
    limits = {name: getattr(options, name) for name in ("requests", "seconds", "concurrency")}
    transfer = "original" if options.mixed else "thumbnail"
    counts, readings = asyncio.run(soak(server, calls, **limits, transfer=transfer))
    if (count := len(readings["restarts"])) < LEAST_READINGS:
        raise SystemExit(
            f"{counts['requests']:,} requests took {counts['seconds']} s: {count} readings, one a second, too few to "
            f"tell whether anything grows. {LEAST_READINGS} are needed: raise --requests or --seconds."
        )
    series = {name: record(name, values) for name, values in readings.items()}
    show(f"{counts['requests']:,} requests in {counts['seconds'] / 60:.0f} min, {counts['model']}", series)
    run.name = "soak_mixed" if options.mixed else "soak"
    run.exit_code = int(not all(one["flat"] for one in series.values()))
    load = "mixed" if options.mixed else "steady"
    return {"load": load, "concurrency": options.concurrency, **counts, "series": series}

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
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil
from PIL import Image

from benchmarks.fixtures.pictures import encoded
from benchmarks.fixtures.sample_photos import coarse_noise
from benchmarks.fixtures.server import Server, serving
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, seconds
from benchmarks.harness.results import show
from benchmarks.load.loops import closed_loop
from clip_client import ClipClient
from preprocess_ensemble.contract import ENCODER, PREPROCESSOR
from preprocess_ensemble.serving.cleanup import SHARED_MEMORY, region_prefix

if TYPE_CHECKING:
    from clip_client._encoding import TransferName

PICTURES: Final = 24
CANCELLED_AFTER_S: Final = 0.002
"""Long enough for a request to be sent."""
MOST_GROWTH: Final = 0.05
LEAST_READINGS: Final = 50
"""With fewer, a tenth of the run is too short to tell growth from chance."""
MOST_KEPT: Final = 360
"""Values of a series that are kept in the results."""
MIB: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class Series:
    """One quantity over the run."""

    exact: bool
    """Counted things may not grow at all; memory may by 5 %."""
    values: list[float] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """Whether it is flat after the first tenth, and why; with at most :data:`MOST_KEPT` of the values."""
        tenth = max(1, len(self.values) // 10)
        second = self.values[tenth : 2 * tenth]
        early, late = statistics.median(second), statistics.median(self.values[-tenth:])
        flat = late <= (max(second) if self.exact else (1 + MOST_GROWTH) * early)
        kept = [round(value, 1) for value in self.values[:: math.ceil(len(self.values) / MOST_KEPT)]]
        return {"flat": flat, "exact": self.exact, "second_tenth": early, "last_tenth": late, "values": kept}


def records(series: Mapping[str, Series]) -> dict[str, dict[str, Any]]:
    """Return the record of each series. A restart is never flat, even a late one, which a median would hide."""
    found = {name: one.record() for name, one in series.items()}
    found["restarts"]["flat"] = not any(series["restarts"].values)
    return found


class Watch:
    """Reads clip-serve, tritonserver, its stubs and this process."""

    def __init__(self, server: Server) -> None:
        self.series: dict[str, Series] = {}
        """What was read, by name."""
        self._server = server
        self._restarts = 0
        self._find()

    def _find(self) -> None:
        own, serve, triton = psutil.Process(), psutil.Process(self._server.process.pid), self._server.triton
        stubs = {model: self._server.stub(model) for model in (PREPROCESSOR, ENCODER)}
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
        self._add("restarts", self._restarts, exact=True)
        for name, process in self._processes.items():
            self._add(f"{name}, memory in MiB", process.memory_info().rss / MIB, exact=False)
            self._add(f"{name}, open files", process.num_fds(), exact=True)
        regions = list(SHARED_MEMORY.glob(f"{self._prefix}*"))
        self._add("shared-memory regions", len(regions), exact=True)
        self._add("shared memory in MiB", sum(region.stat().st_size for region in regions) / MIB, exact=False)

    def _add(self, name: str, value: float, *, exact: bool) -> None:
        self.series.setdefault(name, Series(exact=exact)).values.append(value)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of ``embed`` with one file."""

    file: bytes
    is_bad: bool = False
    """It must fail."""
    is_cancelled: bool = False


def steady_calls() -> list[Call]:
    """Good files."""
    return [Call(file=file) for file in coarse_noise(PICTURES)]


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
        calls.append(Call(file=file, is_bad=is_bad, is_cancelled=number % 4 == 3))
    return calls


class Soaked(NamedTuple):
    """What was sent, and what was read meanwhile."""

    model_id: str
    requests: int
    cancelled: int
    seconds: float
    series: dict[str, Series]


async def soak(
    server: Server, calls: Sequence[Call], *, transfer: TransferName, requests: int, seconds: float, concurrency: int
) -> Soaked:
    """Embed the files of ``calls`` in turn, one a request, until either limit."""
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

    async with ClipClient(server.grpc_url, transfer=transfer) as clip:
        model_id = (await clip.model()).id
        loop = closed_loop(partial(work, clip), callers=concurrency, seconds=seconds, most=requests)
        load = asyncio.create_task(loop)
        while not load.done():
            watch.read()
            await asyncio.wait({load}, timeout=1.0)
        await load
    return Soaked(model_id, sent, cancelled, time.monotonic() - start, watch.series)


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
    mixed, concurrency = options.mixed, options.concurrency
    soaked = asyncio.run(
        soak(
            run.stack.enter_context(serving(options.repository)),
            mixed_calls() if mixed else steady_calls(),
            transfer="original" if mixed else "thumbnail",
            requests=options.requests,
            seconds=options.seconds,
            concurrency=concurrency,
        )
    )
    readings = len(soaked.series["restarts"].values)
    if readings < LEAST_READINGS:
        raise SystemExit(
            f"{soaked.requests:,} requests took {soaked.seconds:.0f} s: {readings} readings, one a second, too few "
            f"to tell whether anything grows. {LEAST_READINGS} are needed: raise --requests or --seconds."
        )
    series = records(soaked.series)
    rows = [
        (name, f"{one['second_tenth']:,.1f}", f"{one['last_tenth']:,.1f}", "yes" if one["flat"] else "NO")
        for name, one in series.items()
    ]
    title = f"{soaked.requests:,} requests in {soaked.seconds / 60:.0f} min, {soaked.model_id}"
    show(title, ("", "second tenth", "last tenth", "flat"), rows)
    run.name = "soak_mixed" if mixed else "soak"
    run.exit_code = int(not all(one["flat"] for one in series.values()))
    return {
        "model": soaked.model_id,
        "load": "mixed" if mixed else "steady",
        "concurrency": concurrency,
        "requests": soaked.requests,
        "cancelled": soaked.cancelled,
        "seconds": round(soaked.seconds),
        "series": series,
    }

"""What is lost when something breaks?

A steady stream of images with known vectors goes to a server under ``clip-serve``; in the middle a fault kills,
freezes, fills up or replaces something. Each image has a deadline. ``wrong`` counts answers that are not the image's
vector, ``lost`` those that missed their deadline, by the client's error. ``s to recover`` is the longest time without
an answer.

By default the rate is two fifths of what the server did just before: the images that arrive during a fault must be
caught up with before their deadline, and a machine that cannot keep up loses images without any fault.

A full disk is simulated by a limit on the size of a file (``RLIMIT_FSIZE``). That works for any user and on any file
system, and a program meets it in the middle of a write, as it would meet a full disk.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from benchmarks.harness.experiment import REPOSITORY, Experiment, Run, option, seconds
from benchmarks.harness.results import show
from benchmarks.load.loops import closed_loop, open_loop
from clip_client import ClipClient, ClipError
from preprocess_ensemble.testing.sample_photos import coarse_noise
from preprocess_ensemble.testing.server import python_with_shared_memory, serving
from preprocess_ensemble.testing.tiny_model import TINY_CLIP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

PICTURES: Final = 24
MOST_RATE: Final = 8.0
"""Images per second. More shows nothing new, and takes the processor from what is being restored."""
SHARE: Final = 0.4
"""Of the server's own rate: it catches up with ten seconds of images in seven."""
CALIBRATION_S: Final = 4.0
DEADLINE_S: Final = 30.0
LEAST_COSINE: Final = 0.999
"""What is exported to the full disk; its size does not matter there."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Counts of one fault."""

    fault: str
    offered: int
    right: int
    wrong: int
    lost: int
    recovery_s: float
    rate: float
    """Images offered a second."""
    lost_by: dict[str, int] = field(default_factory=dict)
    """The client's error -> how many were lost by it."""
    remark: str = ""


class Broken:
    """A server that is to break, and how to reach it."""

    def __init__(self, repository: Path, grpc_url: str, process: psutil.Process) -> None:
        self.repository = repository
        self.grpc_url = grpc_url
        self.process = process

    @property
    def triton(self) -> psutil.Process:
        """tritonserver itself, the only child of clip-serve."""
        (triton,) = self.process.children()
        return triton


def _kill_stub(server: Broken) -> str:
    next(child for child in server.triton.children() if "/clip_preprocess/" in " ".join(child.cmdline())).kill()
    return ""


def _kill_server(server: Broken) -> str:
    server.triton.kill()
    return ""


def _freeze_server(server: Broken) -> str:
    server.triton.suspend()
    return ""


def _export_to_a_full_disk(server: Broken) -> str:
    options = ("--model", str(TINY_CLIP), "--pretrained", "random:1", "--force")
    return _on_a_full_disk("preprocess_ensemble.export.command", *options, "--repository", str(server.repository))


def _store_on_a_full_disk(server: Broken) -> str:
    with tempfile.TemporaryDirectory() as name:
        photos, store = Path(name, "photos"), Path(name, "store")
        photos.mkdir()
        for number, data in enumerate(coarse_noise(PICTURES)):
            (photos / f"{number}.jpg").write_bytes(data)
        options = ("dedup", str(photos), "--url", server.grpc_url, "--store", str(store), "--threshold", "0.97")
        return _on_a_full_disk("clip_client.cli.main", *options, limit=4096)


def _journal_on_a_full_disk(server: Broken) -> str:
    """Copies are moved away until the journal cannot be written; then all photos must be there, and come back."""
    with tempfile.TemporaryDirectory() as name:
        photos, store = Path(name, "photos"), Path(name, "store")
        photos.mkdir()
        for number, data in enumerate(coarse_noise(PICTURES)):
            for copy in ("first", "second"):
                (photos / f"{number}-{copy}.jpg").write_bytes(data)
        before = {path: path.read_bytes() for path in photos.iterdir()}
        options = ("dedup", str(photos), "--url", server.grpc_url, "--store", str(store), "--threshold", "0.9999")
        _on_a_full_disk("clip_client.cli.main", *options)
        ended = _on_a_full_disk("clip_client.cli.main", *options, "--apply", limit=100_000)
        there = sorted(path.read_bytes() for path in photos.rglob("*.jpg"))
        moved = sum(not path.exists() for path in before)
        _on_a_full_disk("clip_client.cli.main", "undo", "--store", str(store))
        after = {path: path.read_bytes() for path in before if path.exists()}
        kept = "all photos are there" if there == sorted(before.values()) else "PHOTOS ARE GONE"
        undone = "undo brought back what was moved" if after == before else "UNDO DID NOT BRING ALL BACK"
        return f"{ended.replace(f'{store}/', '')}: {moved} are in the quarantine, {kept}, {undone}"


def _on_a_full_disk(module: str, *options: str, limit: int = 1_000_000) -> str:
    """Run a command that may write no file over ``limit`` bytes; return how it ended, and its last words."""
    code = (
        f"import resource, runpy, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
        f"signal.signal(signal.SIGXFSZ, signal.SIG_IGN); sys.argv[0] = {module!r}; "
        f"runpy.run_module({module!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, check=False)
    return f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"


def _fill_shared_memory(server: Broken) -> str:
    rows = np.array([[bytes(2**20)]] * 32, dtype=object)
    image = triton.InferInput("image", [32, 1], "BYTES")
    image.set_data_from_numpy(rows)
    with triton.InferenceServerClient(server.grpc_url) as client:
        try:
            client.infer("clip_image", [image], client_timeout=DEADLINE_S)
        except InferenceServerException as error:
            return f"the request of 32 MiB: {str(error.message()).splitlines()[0][:90]}"
    return "the request of 32 MiB was answered"


def _swap_models(server: Broken) -> str:
    """As after an export of the same weights: other files, which clip-serve is told to serve."""
    for file in (server.repository / "clip_encoder" / "1").iterdir():
        os.utime(file)
    server.process.send_signal(signal.SIGUSR1)
    return "clip-serve was told to serve what is there now"


FAULTS: Final[dict[str, Callable[[Broken], str]]] = {
    "stub killed": _kill_stub,
    "server killed": _kill_server,
    "server frozen": _freeze_server,
    "disk full, export": _export_to_a_full_disk,
    "disk full, embedding store": _store_on_a_full_disk,
    "disk full, journal": _journal_on_a_full_disk,
    "/dev/shm of 16 MB": _fill_shared_memory,
    "models swapped": _swap_models,
}


@contextmanager
def _server(repository: Path, fault: str) -> Iterator[Broken]:
    options = ("--canary-interval-s", "1", "--canary-timeout-s", "2", "--frozen-after-s", "3")
    with tempfile.TemporaryDirectory() as name:
        python = Path(sys.executable)
        if fault == "/dev/shm of 16 MB":
            python = python_with_shared_memory(Path(name), mebibytes=16)
        with serving(repository, *options, python=python) as server:
            yield Broken(repository, server.grpc_url, psutil.Process(server.process.pid))


class _Stream:
    """Images at a steady rate, each judged when its answer comes."""

    def __init__(self, clip: ClipClient, files: list[bytes], vectors: NDArray[np.float32]) -> None:
        self._clip = clip
        self._files = files
        self._vectors = vectors
        self.answered: list[float] = []
        self.verdicts: list[str] = []
        self.lost_by: Counter[str] = Counter()

    async def offer(self, number: int) -> None:
        which = number % len(self._files)
        try:
            batch = await self._clip.embed([self._files[which]])
        except ClipError as error:
            self.verdicts.append("lost")
            self.lost_by[type(error).__name__] += 1
            return
        self.answered.append(time.monotonic())
        good = not batch.errors and float(batch.vectors[0] @ self._vectors[which]) >= LEAST_COSINE
        self.verdicts.append("right" if good else "wrong")


async def _bearable_rate(clip: ClipClient, files: list[bytes]) -> float:
    """Images per second that this server can take now, with room to catch up after a fault."""
    answers = await closed_loop(lambda _: clip.embed(files), callers=1, seconds=CALIBRATION_S)
    return min(MOST_RATE, SHARE * len(files) * answers.rate)


async def run_fault(repository: Path, fault: str, *, seconds: float, rate: float | None = None) -> Outcome:
    """Offer images for ``seconds``, break the server after a third of them, and count the answers."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name, "models")
        shutil.copytree(repository, copy)
        with _server(copy, fault) as broken:
            async with ClipClient(broken.grpc_url, timeout_s=DEADLINE_S) as clip:
                files = coarse_noise(PICTURES)
                stream = _Stream(clip, files, (await clip.embed(files)).vectors)
                rate = rate or await _bearable_rate(clip, files)
                offered = max(3, int(seconds * rate))
                numbers = itertools.count()
                breaking: asyncio.Future[str] | None = None

                async def call(due_s: float) -> None:
                    nonlocal breaking
                    number = next(numbers)
                    if number == offered // 3:
                        breaking = asyncio.ensure_future(asyncio.to_thread(FAULTS[fault], broken))
                    await stream.offer(number)

                # The gaps make the first call due at once, and the last one within the time.
                gaps = itertools.chain([0.0], itertools.repeat(1 / rate))
                await open_loop(call, gaps, seconds=(offered - 0.5) / rate)
                remark = "" if breaking is None else await breaking
    times = sorted(stream.answered)
    return Outcome(
        fault=fault,
        offered=offered,
        right=stream.verdicts.count("right"),
        wrong=stream.verdicts.count("wrong"),
        lost=stream.verdicts.count("lost"),
        recovery_s=max((later - earlier for earlier, later in itertools.pairwise(times)), default=float("inf")),
        rate=rate,
        lost_by=dict(stream.lost_by),
        remark=remark,
    )


def measure(run: Run) -> dict[str, Any]:
    """Break a server in every way; the exit code is 1 if an answer was wrong or lost."""
    options = run.options
    outcomes = []
    for fault in options.faults:
        if fault == "/dev/shm of 16 MB" and os.geteuid() != 0:
            print(f"{fault}: left out, because only root can mount", file=sys.stderr)
            continue
        outcomes.append(asyncio.run(run_fault(options.repository, fault, seconds=options.seconds, rate=options.rate)))
        print(outcomes[-1], file=sys.stderr)
    rows = []
    for one in outcomes:
        counts = map(str, (one.offered, one.right, one.wrong, one.lost))
        rows.append((one.fault, f"{one.rate:.1f}", *counts, f"{one.recovery_s:.1f}"))
    headings = ("fault", "images/s", "offered", "right", "wrong", "lost", "s to recover")
    show(f"{DEADLINE_S:g} s for each image", headings, rows)
    for one in outcomes:
        if one.remark:
            print(f"{one.fault}: {one.remark}")
        if one.lost_by:
            print(f"{one.fault}: lost by {', '.join(f'{error} ({count})' for error, count in one.lost_by.items())}")
    run.exit_code = int(any(one.wrong or one.lost for one in outcomes))
    return {"outcomes": [asdict(one) for one in outcomes]}


EXPERIMENT: Final = Experiment(
    "faults",
    __doc__,
    measure,
    (
        REPOSITORY,
        seconds(30.0, "for each fault"),
        option("--rate", type=float, help="images per second (default: two fifths of the server's rate, at most 8)"),
        option("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="default: all"),
    ),
)

"""What is lost when something breaks?

A steady stream of images with known vectors goes to a server under ``clip-serve``. After a third of the images, a fault
kills, freezes, fills up or replaces something. Each image has a deadline. ``wrong`` counts answers that are not the
image's vector, and ``lost`` counts images that got no answer by their deadline, by the client's error. ``recovery_s``
is the longest time without an answer.

The server runs with ``--canary-interval-s 1 --canary-timeout-s 2 --frozen-after-s 3``. The defaults are 3, 5 and 20 s,
with which a frozen server recovers later.

The rate is two fifths of the server's own rate, measured just before. The server must catch up with the images
that arrive during a fault before their deadlines, and a machine that cannot keep up loses images without any fault.

A limit on the size of a file (``RLIMIT_FSIZE``) simulates a full disk. It works for any user and on any file system,
and a program meets it in the middle of a write, as it would meet a full disk.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from benchmarks.fixtures.sample_photos import coarse_noise
from benchmarks.fixtures.server import TINY_CLIP, Server, python_with_shared_memory, serving
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, say, seconds
from benchmarks.harness.results import show
from benchmarks.load.loops import closed_loop, open_loop
from clip_client import ClipClient, ClipError
from preprocess_ensemble.contract import DEFAULT_NAMES

PICTURES: Final = 24
MOST_RATE: Final = 8.0
"""Images per second. More would show nothing new, and would take processor time from the recovery."""
SHARE: Final = 0.4
"""Share of the server's own rate. After ten seconds without answers, a server catches up in seven."""
CALIBRATION_S: Final = 4.0
DEADLINE_S: Final = 30.0
LEAST_COSINE: Final = 0.999
SMALL_SHARED_MEMORY: Final = "/dev/shm of 16 MB"


def _export_to_a_full_disk(server: Server) -> str:
    options = ("--model", str(TINY_CLIP), "--pretrained", "random:1", "--force")
    return _on_a_full_disk("preprocess_ensemble.export.command", *options, "--repository", str(server.repository))


def _store_on_a_full_disk(server: Server) -> str:
    with _photos("") as (photos, store):
        search = _search(server, photos, store, threshold=0.97)
        return _on_a_full_disk("clip_client", *search, limit=4096)


def _journal_on_a_full_disk(server: Server) -> str:
    """Move copies away until the journal cannot be written. All photos must still exist, and undo must restore them."""
    with _photos("-first", "-second") as (photos, store):
        search = _search(server, photos, store, threshold=0.9999)
        before = {path: path.read_bytes() for path in photos.iterdir()}
        _on_a_full_disk("clip_client", *search)
        ended = _on_a_full_disk("clip_client", *search, "--apply", limit=100_000)
        there = sorted(path.read_bytes() for path in photos.rglob("*.jpg"))
        moved = sum(not path.exists() for path in before)
        _on_a_full_disk("clip_client", "undo", "--store", str(store))
        after = {path: path.read_bytes() for path in before if path.exists()}
        kept = "all photos are there" if there == sorted(before.values()) else "PHOTOS ARE GONE"
        undone = "undo brought back what was moved" if after == before else "UNDO DID NOT BRING ALL BACK"
        return f"{ended.replace(f'{store}/', '')}: {moved} are in the quarantine, {kept}, {undone}"


@contextmanager
def _photos(*copies: str) -> Iterator[tuple[Path, Path]]:
    """A folder with a file of each picture for each ending of ``copies``, and the place of a store."""
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder, "photos")
        photos.mkdir()
        for number, data in enumerate(coarse_noise(PICTURES)):
            for copy in copies:
                (photos / f"{number}{copy}.jpg").write_bytes(data)
        yield photos, Path(folder, "store")


def _search(server: Server, photos: Path, store: Path, *, threshold: float) -> tuple[str, ...]:
    options = ("--url", server.grpc_url, "--store", str(store), "--threshold", str(threshold))
    return "dedup", str(photos), *options


def _on_a_full_disk(module: str, *options: str, limit: int = 1_000_000) -> str:
    """Run a command that may write no file over ``limit`` bytes; return its exit code and its last line of errors."""
    # Python ignores the signal that comes with the error.
    command = ("prlimit", f"--fsize={limit}", sys.executable, "-m", module, *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"


def _fill_shared_memory(server: Server) -> str:
    image = triton.InferInput("image", [32, 1], "BYTES")
    image.set_data_from_numpy(np.array([[bytes(2**20)]] * 32, dtype=object))
    with triton.InferenceServerClient(server.grpc_url) as client:
        try:
            client.infer("clip_image", [image], client_timeout=DEADLINE_S)
        except InferenceServerException as error:
            return f"the request of 32 MiB: {str(error.message()).splitlines()[0][:90]}"
    return "the request of 32 MiB was answered"


def _swap_models(server: Server) -> str:
    """Do what an export of the same weights does: change the files, and tell clip-serve to reload them."""
    for file in (server.repository / "clip_encoder" / "1").iterdir():
        os.utime(file)
    server.process.send_signal(signal.SIGUSR1)
    return "clip-serve was told to serve what is there now"


FAULTS: Final[dict[str, Callable[[Server], str | None]]] = {
    "stub killed": lambda server: server.stub(DEFAULT_NAMES.preprocess).kill(),
    "server killed": lambda server: server.triton.kill(),
    "server frozen": lambda server: server.triton.suspend(),
    "disk full, export": _export_to_a_full_disk,
    "disk full, embedding store": _store_on_a_full_disk,
    "disk full, journal": _journal_on_a_full_disk,
    SMALL_SHARED_MEMORY: _fill_shared_memory,
    "models swapped": _swap_models,
}
"""Name -> function that breaks the server, and may return a remark."""


async def run_fault(repository: Path, fault: str, *, seconds: float) -> dict[str, Any]:
    """Offer images for ``seconds``, break the server after a third of them, and count the answers."""
    options = ("--canary-interval-s", "1", "--canary-timeout-s", "2", "--frozen-after-s", "3")
    files = coarse_noise(PICTURES)
    counts, lost_by = Counter(right=0, wrong=0, lost=0), Counter[str]()
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        small = fault == SMALL_SHARED_MEMORY
        python = python_with_shared_memory(scratch, mebibytes=16) if small else Path(sys.executable)
        copy = shutil.copytree(repository, scratch / "models")
        server = stack.enter_context(serving(copy, *options, python=python))
        clip = await stack.enter_async_context(ClipClient(server.grpc_url, timeout_s=DEADLINE_S))
        vectors = (await clip.embed(files)).vectors
        answers = await closed_loop(lambda _: clip.embed(files), callers=1, seconds=CALIBRATION_S)
        rate = min(MOST_RATE, SHARE * len(files) * answers.rate)
        offered = max(3, int(seconds * rate))
        numbers = itertools.count()
        answered: list[float] = []
        breaking: asyncio.Future[str | None] | None = None

        async def call(due_s: float) -> None:
            nonlocal breaking
            number = next(numbers)
            if number == offered // 3:
                breaking = asyncio.ensure_future(asyncio.to_thread(FAULTS[fault], server))
            which = number % len(files)
            try:
                batch = await clip.embed([files[which]])
            except ClipError as error:
                counts["lost"] += 1
                lost_by[type(error).__name__] += 1
                return
            answered.append(time.monotonic())
            is_right = not batch.errors and float(batch.vectors[0] @ vectors[which]) >= LEAST_COSINE
            counts["right" if is_right else "wrong"] += 1

        # The gaps make the first call due at once, and the last one within the time.
        gaps = itertools.chain([0.0], itertools.repeat(1 / rate))
        await open_loop(call, gaps, seconds=(offered - 0.5) / rate)
        assert breaking is not None
        remark = await breaking or ""
    # Answers are noted as they arrive, so the times rise.
    recovery_s = max((later - earlier for earlier, later in itertools.pairwise(answered)), default=math.inf)
    figures = {"rate": rate, "offered": offered, **counts, "recovery_s": recovery_s}
    return {"fault": fault, **figures, "lost_by": lost_by, "remark": remark}


@experiment(
    REPOSITORY,
    seconds(30.0, "for each fault"),
    option("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="default: all"),
)
def measure(run: Run) -> dict[str, Any]:
    """Break a server in every way; the exit code is 1 if an answer was wrong or lost."""
    outcomes = []
    for fault in run.options.faults:
        if fault == SMALL_SHARED_MEMORY and os.geteuid() != 0:
            say(f"{fault}: left out, because only root can mount")
        else:
            outcomes.append(asyncio.run(run_fault(run.options.repository, fault, seconds=run.options.seconds)))
            say(str(outcomes[-1]))
    columns = ("rate", "offered", "right", "wrong", "lost", "recovery_s")
    show(f"{DEADLINE_S:g} s for each image", {one["fault"]: {key: one[key] for key in columns} for one in outcomes})
    run.exit_code = int(any(one["wrong"] or one["lost"] for one in outcomes))
    return {"outcomes": outcomes}

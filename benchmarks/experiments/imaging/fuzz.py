"""Does preprocessing survive damaged images?

In process, each mutated file goes through decode and transform, on the fast path and with the server's limits. Within
5 s of processor time and 4 GiB of memory, it must end as pixels or as a status other than INTERNAL. A JPEG file must
have the same status with exact and with scaled decode. Live, batches of mutated and good files go to a real server,
where every good file must get exactly the embedding that it gets alone.

Every input follows from the seed and its number. Inputs that fail are written to ``--findings``.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import random
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as triton

from benchmarks.fixtures.damaged_images import mutate, seeds
from benchmarks.harness.checkpoint import say
from benchmarks.harness.experiment import Run, experiment, option
from benchmarks.harness.worker import peak_memory_mb
from preprocess_ensemble.contract import EMBEDDING, ENSEMBLE, IMAGE, STATUS, ImageStatus
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
from preprocess_ensemble.imaging.formats import identify
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.testing.server import Server, peak_memory
from preprocess_ensemble.testing.tiny_model import TINY_CLIP

HANG_S: Final = 5.0
"""Longest processor time of one input; live, the longest time of one request."""
STANDSTILL_S: Final = 60
"""Longest time of one input that waits for something and uses no processor."""
MEMORY_BYTES: Final = 4 * 2**30
LEAST_HEADER_SHARE: Final = 0.3
BATCH: Final = 32
GOOD_IN_BATCH: Final = 8

CONFIG: Final = PreprocessConfig(size=(224, 224), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


class Inputs:
    """The mutated files, by number."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._files = [files for _, files in sorted(seeds().items())]

    def __getitem__(self, number: int) -> bytes:
        randomness = random.Random(f"{self._seed}/{number}")
        files = self._files[number % len(self._files)]
        return mutate(randomness.choice(files), randomness.choice(files), randomness)


@dataclass(kw_only=True)
class Outcome:
    """The results of some inputs."""

    statuses: Counter[str] = field(default_factory=Counter)
    passed_header: int = 0
    """Their header was read and is within the limits, so that the pixels were tried."""
    slowest_s: float = 0.0
    """Processor time of an input in process; elapsed time of a request live."""
    peak_bytes: int = 0
    findings: dict[int, str] = field(default_factory=dict)
    """Number of the input -> what is wrong."""

    def add(self, other: Outcome) -> None:
        """Add another outcome to this one."""
        self.statuses += other.statuses
        self.passed_header += other.passed_header
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.findings |= other.findings


def passes_header(data: bytes, limits: DecodeLimits) -> bool:
    """Whether the format's reader opens the file and its size is within the limits."""
    image_format = identify(data)
    if image_format is None or image_format.opener is None:
        return False
    try:
        with image_format.opener(io.BytesIO(data)) as image:
            return bool(image.width * image.height <= limits.max_pixels)
    except Exception:  # whatever Pillow's reader raises
        return False


def judge(data: bytes, limits: DecodeLimits) -> tuple[ImageStatus, str]:
    """Decode and transform one input; returns its status, and what is wrong, if anything."""
    status = attempt(data, limits, CONFIG.decode_at_least)
    if status is ImageStatus.INTERNAL:
        return status, "status INTERNAL"
    if data.startswith(b"\xff\xd8") and attempt(data, limits, None) is not status:
        return status, "the exact path has another status"
    return status, ""


def attempt(data: bytes, limits: DecodeLimits, at_least: tuple[int, int] | None) -> ImageStatus:
    """Return the status of one path."""
    try:
        pixels = preprocess(decode(data, limits, at_least=at_least), CONFIG)
    except DecodeError as error:
        return error.status
    except Exception:
        return ImageStatus.INTERNAL
    return ImageStatus.OK if pixels.shape == (*CONFIG.size, 3) else ImageStatus.INTERNAL


def try_inputs(inputs: Inputs, numbers: Sequence[int], on_input: Callable[[int], object] = lambda _: None) -> Outcome:
    """Try some inputs in this process; ``on_input`` is called with the number of each before it is tried."""
    limits = DecodeLimits()
    outcome = Outcome()
    for number in numbers:
        on_input(number)
        data = inputs[number]
        start = time.process_time()
        status, wrong = judge(data, limits)
        outcome.slowest_s = max(outcome.slowest_s, time.process_time() - start)
        outcome.statuses[status.name] += 1
        outcome.passed_header += status is ImageStatus.OK or passes_header(data, limits)
        if wrong:
            outcome.findings[number] = wrong
    outcome.peak_bytes = round(peak_memory_mb() * 1e6)
    return outcome


def _worker(seed: int, numbers: Sequence[int], current: Synchronized[int], results: Any) -> None:
    """Try some inputs; the kernel ends this process at an input that takes too long."""

    def begin(number: int) -> None:
        current.value = number
        signal.setitimer(signal.ITIMER_PROF, HANG_S)
        signal.alarm(STANDSTILL_S)

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # libtiff prints a complaint about every file to the standard error stream.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    results.send(try_inputs(Inputs(seed), numbers, begin))


def watch(seed: int, numbers: Sequence[int]) -> Outcome:
    """Try some inputs in a process of their own; try again without an input that ends it."""
    outcome = Outcome()
    ends = {-signal.SIGPROF: f"more than {HANG_S:g} s", -signal.SIGALRM: f"stood still for {STANDSTILL_S} s"}
    context = multiprocessing.get_context("spawn")
    while numbers:
        current = context.Value("q", -1)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_worker, args=(seed, numbers, current, sender))
        process.start()
        sender.close()
        try:
            outcome.add(receiver.recv())
            numbers = ()
        except EOFError:
            process.join()
            assert process.exitcode is not None
            what = ends.get(process.exitcode, f"exit code {process.exitcode}")
            outcome.findings[current.value] = f"ended its process: {what}"
            numbers = [number for number in numbers if number != current.value]
        process.join()
    return outcome


def fuzz_in_process(seed: int, count: int, chunk: int = 5000) -> Outcome:
    """Try ``count`` inputs, one worker process a core."""
    outcome = Outcome()
    chunks = [range(start, min(start + chunk, count)) for start in range(0, count, chunk)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        for part in executor.map(lambda numbers: watch(seed, numbers), chunks):
            outcome.add(part)
            say(f"{outcome.statuses.total():,} of {count:,}, {len(outcome.findings)} findings")
    return outcome


def embed_files(
    client: triton.InferenceServerClient, files: Sequence[bytes]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Return embeddings (N, D) and statuses (N,) of one request to the ensemble."""
    image = triton.InferInput(IMAGE, [len(files), 1], "BYTES")
    image.set_data_from_numpy(np.array(files, dtype=object)[:, None])
    wanted = [triton.InferRequestedOutput(name) for name in (EMBEDDING, STATUS)]
    answer = client.infer(ENSEMBLE, [image], outputs=wanted, client_timeout=60)
    return answer.as_numpy(EMBEDDING), answer.as_numpy(STATUS)[:, 0]


def fuzz_live(server: Server, seed: int, count: int, threads: int = 4) -> tuple[Outcome, dict[str, int]]:
    """Send ``count`` inputs among good ones; returns the outcome and the peak bytes of the server's processes."""
    inputs = Inputs(seed)
    client = triton.InferenceServerClient(server.grpc_url)
    alone = {}
    for file in itertools.chain.from_iterable(seeds().values()):
        vectors, statuses = embed_files(client, [file])
        assert statuses[0] == 0, "a seed is not a good image"
        alone[file] = vectors[0].tobytes()
    outcome = Outcome()
    lock = threading.Lock()

    def send(numbers: Sequence[int]) -> None:
        randomness = random.Random(f"{seed}/batch/{numbers[0]}")
        rows: list[tuple[int | None, bytes]] = [(number, inputs[number]) for number in numbers]
        rows += [(None, file) for file in randomness.choices(list(alone), k=GOOD_IN_BATCH)]
        randomness.shuffle(rows)
        start = time.perf_counter()
        vectors, statuses = embed_files(client, [file for _, file in rows])
        seconds = time.perf_counter() - start
        with lock:
            outcome.slowest_s = max(outcome.slowest_s, seconds)
            for (number, file), vector, status in zip(rows, vectors, statuses, strict=True):
                if number is None:
                    if status != 0 or vector.tobytes() != alone[file]:
                        outcome.findings[numbers[0]] = f"a good neighbour changed: status {status}"
                else:
                    outcome.statuses[ImageStatus(int(status)).name] += 1
                    if bool(np.isnan(vector).all()) is not bool(status) or status == ImageStatus.INTERNAL:
                        outcome.findings[number] = f"status {status} with a vector that does not fit it"

    bad_in_batch = BATCH - GOOD_IN_BATCH
    batches = [range(start, min(start + bad_in_batch, count)) for start in range(0, count, bad_in_batch)]
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(send, batches))
    for file, vector in alone.items():
        again, _ = embed_files(client, [file])
        if again[0].tobytes() != vector:
            outcome.findings[-1] = "a good image has another embedding at the end"
    return outcome, peak_memory(server)


def report(title: str, outcome: Outcome, inputs: Inputs, findings: Path) -> dict[str, Any]:
    """Print one outcome, keep the inputs of its findings, and return it for the record."""
    tried = outcome.statuses.total()
    print(f"{title}: {tried:,} inputs, {len(outcome.findings)} findings, slowest {outcome.slowest_s:.2f} s")
    print("  " + ", ".join(f"{name} {count:,}" for name, count in outcome.statuses.most_common()))
    for number, wrong in itertools.islice(outcome.findings.items(), 20):
        findings.mkdir(parents=True, exist_ok=True)
        (findings / f"{number}.bin").write_bytes(inputs[number] if number >= 0 else b"")
        print(f"  {findings / f'{number}.bin'}: {wrong}")
    statuses = dict(outcome.statuses)
    return {"inputs": tried, "statuses": statuses, "slowest_s": outcome.slowest_s, "findings": outcome.findings}


@experiment(
    option("--count", type=int, default=100_000, help="inputs in process"),
    option("--live", type=int, default=0, help="inputs through a server (default: none)"),
    option("--seed", type=int, default=0, help="of the inputs"),
    option("--findings", type=Path, default=Path("findings"), help="folder for inputs that fail"),
)
def measure(run: Run) -> dict[str, Any]:
    """Run both parts; the exit code is 1 if anything was found."""
    options = run.options
    inputs = Inputs(options.seed)
    record: dict[str, Any] = {"seed": options.seed}
    if options.count:
        outcome = fuzz_in_process(options.seed, options.count)
        share = outcome.passed_header / max(1, outcome.statuses.total())
        more = {"passed_header": share, "peak_bytes": outcome.peak_bytes}
        record["in_process"] = report("in process", outcome, inputs, options.findings) | more
        print(f"  {share:.1%} passed the header check; peak memory {outcome.peak_bytes / 2**20:.0f} MiB")
        run.exit_code |= bool(outcome.findings) or share < LEAST_HEADER_SHARE
    if options.live:
        from preprocess_ensemble.export.exporter import export_model

        repository = run.scratch / "triton_models"
        export_model(model=str(TINY_CLIP), pretrained="random:0", repository=repository)
        outcome, memory = fuzz_live(run.serve(repository), options.seed, options.live)
        record["live"] = report("live", outcome, inputs, options.findings) | {"peak_bytes": memory}
        for name, peak in memory.items():
            print(f"  {name}: peak memory {peak / 2**20:.0f} MiB")
        run.exit_code |= bool(outcome.findings) or outcome.slowest_s > HANG_S
    return record

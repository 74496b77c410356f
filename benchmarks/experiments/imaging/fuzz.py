"""Does preprocessing survive damaged images?

In process, each mutated file goes through decode and transform, on the fast path and with the server's limits. It must
end within 5 s as pixels or as a status other than INTERNAL, in a process with at most 4 GiB. A JPEG file must have the
same status with exact and with scaled decode. Live, mutated files travel in batches with good ones to a real server,
where every good neighbour must get exactly the embedding that it gets alone.

Every input follows from the seed and its number. Inputs that fail are written to ``--findings``.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import random
import resource
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
import tritonclient.grpc as triton

from benchmarks.fixtures.damaged_images import mutate, seeds
from benchmarks.harness.experiment import Experiment, Run, option
from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
from preprocess_ensemble.imaging.formats import identify
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.testing.server import Server, peak_memory, serving
from preprocess_ensemble.testing.tiny_model import TINY_CLIP

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.sharedctypes import Synchronized

    import numpy.typing as npt

HANG_S: Final = 5.0
STANDSTILL_S: Final = 60.0
MEMORY_BYTES: Final = 4 * 2**30
LEAST_HEADER_SHARE: Final = 0.3
BATCH: Final = 32
GOOD_IN_BATCH: Final = 8

CONFIG: Final = PreprocessConfig(size=(224, 224), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


class Inputs:
    """The mutated files, by number."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._files = seeds()
        self._formats = sorted(self._files)

    def __getitem__(self, number: int) -> bytes:
        randomness = random.Random(f"{self._seed}/{number}")
        files = self._files[self._formats[number % len(self._formats)]]
        return mutate(randomness.choice(files), randomness.choice(files), randomness)


@dataclass(kw_only=True)
class Outcome:
    """What became of some inputs."""

    statuses: Counter[str] = field(default_factory=Counter)
    passed_header: int = 0
    """Their header was read and is within the limits, so that the pixels were tried."""
    slowest_s: float = 0.0
    """Processor time in process, where the machine may be busy with other things; waiting time live."""
    peak_bytes: int = 0
    findings: dict[int, str] = field(default_factory=dict)
    """Number of the input -> what is wrong."""

    def add(self, other: Outcome) -> None:
        """Take another outcome in."""
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
        return status, "a defect: status INTERNAL"
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


def try_inputs(inputs: Inputs, numbers: Sequence[int], current: Synchronized[int] | None = None) -> Outcome:
    """Try some inputs in this process; ``current`` tells a watcher which one it is at."""
    limits = DecodeLimits()
    outcome = Outcome()
    for number in numbers:
        if current is not None:
            current.value = number
        data = inputs[number]
        start = time.process_time()
        status, wrong = judge(data, limits)
        outcome.slowest_s = max(outcome.slowest_s, time.process_time() - start)
        outcome.statuses[status.name] += 1
        outcome.passed_header += status is ImageStatus.OK or passes_header(data, limits)
        if wrong:
            outcome.findings[number] = wrong
    outcome.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return outcome


def _worker(seed: int, numbers: Sequence[int], current: Synchronized[int], results: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # libtiff tells its opinion of every file on the standard error stream.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    results.send(try_inputs(Inputs(seed), numbers, current))


def watch(seed: int, numbers: Sequence[int]) -> Outcome:
    """Try some inputs in a process of their own; try again without one that ends it or holds it up."""
    outcome = Outcome()
    context = multiprocessing.get_context("spawn")
    while numbers:
        current: Any = context.Value("q", -1)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_worker, args=(seed, numbers, current, sender))
        process.start()
        sender.close()
        last, since, used = -1, 0.0, 0.0
        while not receiver.poll(0.5) and process.is_alive():
            # Processor time, because others may keep the cores busy; what waits for nothing uses none.
            now, busy = time.monotonic(), processor_seconds(process.pid)
            if current.value != last:
                last, since, used = current.value, now, busy
            elif last >= 0 and (busy - used > HANG_S or now - since > STANDSTILL_S):
                process.kill()
        try:
            outcome.add(receiver.recv())
            numbers = ()
        except EOFError:
            process.join()
            what = f"more than {HANG_S:g} s" if process.exitcode == -9 else f"exit code {process.exitcode}"
            outcome.findings[current.value] = f"ended its process: {what}"
            numbers = [number for number in numbers if number != current.value]
        process.join()
    return outcome


def processor_seconds(pid: int | None) -> float:
    """User and system time of a process so far; 0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def fuzz_in_process(seed: int, count: int, chunk: int = 5000) -> Outcome:
    """Try ``count`` inputs, one worker process a core."""
    outcome = Outcome()
    chunks = [range(start, min(start + chunk, count)) for start in range(0, count, chunk)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        for part in executor.map(lambda numbers: watch(seed, numbers), chunks):
            outcome.add(part)
            print(f"{sum(outcome.statuses.values()):,} of {count:,}, {len(outcome.findings)} findings", file=sys.stderr)
    return outcome


class Live:
    """A connection to the ensemble of a running server."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url)

    def embed(self, files: Sequence[bytes]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Return embeddings (N, D) and statuses (N,) of one request."""
        rows = np.array(list(files), dtype=object).reshape(-1, 1)
        image = triton.InferInput("image", list(rows.shape), "BYTES")
        image.set_data_from_numpy(rows)
        wanted = [triton.InferRequestedOutput(name) for name in ("embedding", "status")]
        answer = self._client.infer("clip_image", [image], outputs=wanted, client_timeout=60)
        return answer.as_numpy("embedding"), answer.as_numpy("status")[:, 0]


def fuzz_live(server: Server, seed: int, count: int, threads: int = 4) -> tuple[Outcome, dict[str, Any]]:
    """Send ``count`` inputs among good ones; returns the outcome and the memory of the server's processes."""
    inputs = Inputs(seed)
    good = [file for files in seeds().values() for file in files]
    live = Live(server.grpc_url)
    alone = []
    for file in good:
        vectors, statuses = live.embed([file])
        assert statuses[0] == 0, "a seed is not a good image"
        alone.append(vectors[0])
    outcome = Outcome()
    lock = threading.Lock()
    bad_in_batch = BATCH - GOOD_IN_BATCH

    def send(numbers: Sequence[int]) -> None:
        randomness = random.Random(f"{seed}/batch/{numbers[0]}")
        chosen = [randomness.randrange(len(good)) for _ in range(GOOD_IN_BATCH)]
        rows: list[tuple[int | None, int]] = [(number, 0) for number in numbers]
        rows += [(None, which) for which in chosen]
        randomness.shuffle(rows)
        start = time.perf_counter()
        vectors, statuses = live.embed([good[which] if number is None else inputs[number] for number, which in rows])
        seconds = time.perf_counter() - start
        with lock:
            outcome.slowest_s = max(outcome.slowest_s, seconds)
            for (number, which), vector, status in zip(rows, vectors, statuses, strict=True):
                wrong = ""
                if number is None:
                    if status != 0 or vector.tobytes() != alone[which].tobytes():
                        wrong = f"a good neighbour changed: status {status}"
                else:
                    outcome.statuses[ImageStatus(int(status)).name] += 1
                    if bool(np.isnan(vector).all()) is not bool(status) or status == ImageStatus.INTERNAL:
                        wrong = f"status {status} with a vector that does not fit it"
                if wrong:
                    outcome.findings[numbers[0] if number is None else number] = wrong

    batches = [range(start, min(start + bad_in_batch, count)) for start in range(0, count, bad_in_batch)]
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(send, batches))
    for file, vector in zip(good, alone, strict=True):
        again, _ = live.embed([file])
        if again[0].tobytes() != vector.tobytes():
            outcome.findings[-1] = "a good image has another embedding at the end"
    return outcome, peak_memory(server)


def report(title: str, outcome: Outcome, inputs: Inputs, findings: Path) -> dict[str, Any]:
    """Print one outcome, keep the inputs of its findings, and return it for the record."""
    tried = sum(outcome.statuses.values())
    print(f"{title}: {tried:,} inputs, {len(outcome.findings)} findings, slowest {outcome.slowest_s:.2f} s")
    print("  " + ", ".join(f"{name} {count:,}" for name, count in outcome.statuses.most_common()))
    for number, wrong in itertools.islice(outcome.findings.items(), 20):
        findings.mkdir(parents=True, exist_ok=True)
        (findings / f"{number}.bin").write_bytes(inputs[number] if number >= 0 else b"")
        print(f"  {findings / f'{number}.bin'}: {wrong}")
    return {
        "inputs": tried,
        "statuses": dict(outcome.statuses),
        "slowest_s": outcome.slowest_s,
        "findings": {str(number): wrong for number, wrong in outcome.findings.items()},
    }


def measure(run: Run) -> dict[str, Any]:
    """Run both parts; the exit code is 1 if anything was found."""
    options = run.options
    inputs = Inputs(options.seed)
    record: dict[str, Any] = {"seed": options.seed}
    if options.count:
        outcome = fuzz_in_process(options.seed, options.count)
        share = outcome.passed_header / max(1, sum(outcome.statuses.values()))
        record["in_process"] = report("in process", outcome, inputs, options.findings) | {
            "passed_header": share,
            "peak_bytes": outcome.peak_bytes,
        }
        print(f"  {share:.1%} passed the header check; peak memory {outcome.peak_bytes / 2**20:.0f} MiB")
        run.exit_code |= bool(outcome.findings) or share < LEAST_HEADER_SHARE
    if options.live:
        from preprocess_ensemble.export.exporter import export_model

        repository = run.scratch / "triton_models"
        export_model(model=str(TINY_CLIP), pretrained="random:0", repository=repository)
        outcome, memory = fuzz_live(run.stack.enter_context(serving(repository)), options.seed, options.live)
        record["live"] = report("live", outcome, inputs, options.findings) | {"peak_bytes": memory}
        for name, peak in memory.items():
            print(f"  {name}: peak memory {peak / 2**20:.0f} MiB")
        run.exit_code |= bool(outcome.findings) or outcome.slowest_s > HANG_S
    return record


EXPERIMENT: Final = Experiment(
    "fuzz",
    __doc__,
    measure,
    (
        option("--count", type=int, default=100_000, help="inputs in process (default: %(default)s)"),
        option("--live", type=int, default=0, help="inputs through a server (default: none)"),
        option("--seed", type=int, default=0, help="of the inputs (default: %(default)s)"),
        option("--findings", type=Path, default=Path("findings"), help="folder for inputs that fail"),
    ),
)

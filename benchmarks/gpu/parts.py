"""The parts of the study of a card, each a function that fills a checkpoint: what is cut short keeps what it has.

A setting that does not start is a finding and becomes a cell with its reason; the part goes on with the next.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, redirect_stderr
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.gpu.meter import GpuMeter
from benchmarks.gpu.settings import Setting, repository_with
from benchmarks.harness.checkpoint import Checkpoint
from benchmarks.harness.rounds import cosine_to_first
from benchmarks.harness.worker import Worker
from benchmarks.load.triton_statistics import statistics
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import encoder_directory, installed_passport
from preprocess_ensemble.serving.tensorrt import TensorrtMissing, check_tensorrt
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

ROWS: Final = 32
"""Images to a request where throughput counts; the ensemble's largest batch."""
MOST_ATTEMPTS: Final = 2
QUICK_ROWS: Final = 32
"""The largest batch of a quick run's servers: Triton refuses an encoder with a smaller one than the ensemble's."""
SAID_CHARACTERS: Final = 2000
"""Of what failed, kept in its cell; all of it is in the log."""
START_S: Final = {"cuda": 100, "cpu": 300}
"""For a server to be ready: libraries, weights, and a run of each batch size, which a CUDA graph is captured from."""
ENGINE_START_S: Final = 200
"""The same where TensorRT builds an engine."""


class PartCheckpoint(Checkpoint):
    """A checkpoint that knows what was begun and never ended."""

    def __init__(self, experiment: str, plan: Mapping[str, Any], directory: Path) -> None:
        super().__init__(experiment, plan, directory)
        self._begun = directory / f"{experiment}.begun"

    def forget(self) -> None:
        """Measure everything again."""
        self.cells.clear()
        self._path.unlink()
        self._begun.unlink(missing_ok=True)

    def attempt(self, name: str) -> int:
        """Note that ``name`` is begun; returns how often it was, with this plan."""
        line = json.dumps([name, self.plan])
        with self._begun.open("a") as file:
            file.write(f"{line}\n")
        return self._begun.read_text().splitlines().count(line)


@dataclass(frozen=True, kw_only=True)
class Study:
    """What all parts share."""

    exports: Path
    """Folder with the repositories ``fp32`` and ``fp16``."""
    photos: Path
    """Folder with the folders ``224`` and ``256`` of JPEG files."""
    output: Path
    device: str
    seconds: float
    """Of one measurement; 4 is good on a card."""
    quick: bool
    """The fewest settings, sizes and callers that touch every line."""

    def checkpoint(self, part: str) -> PartCheckpoint:
        """Where ``part`` keeps what it measures."""
        plan = {"device": self.device, "seconds": self.seconds, "quick": self.quick, "model": self.model}
        return PartCheckpoint(f"gpu_{part}", plan, self.output / "journals")

    def measured(self, part: str) -> dict[str, dict[str, Any]]:
        """The cells that ``part`` has by now."""
        with redirect_stderr(io.StringIO()):  # A checkpoint says that it goes on, and this one does not.
            return self.checkpoint(part).cells

    @property
    def model(self) -> str | None:
        """Id of the fp32 model."""
        passport = installed_passport(self.exports / "fp32")
        return None if passport is None else passport.id

    def sized(self, setting: Setting) -> Setting:
        """The setting, or for a quick run the same with batches as small as can be."""
        return replace(setting, max_batch_size=QUICK_ROWS) if self.quick else setting

    def some(self, values: Sequence[Any]) -> Sequence[Any]:
        """All of them, or the first two for a quick run."""
        return values[:2] if self.quick else values


def _cell(checkpoint: PartCheckpoint, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``measure`` returns, or why it failed; what was cut twice, as it hangs, is not tried a third time."""

    def tried() -> dict[str, Any]:
        if (begun := checkpoint.attempt(name)) > MOST_ATTEMPTS:
            return {"error": f"begun {begun - 1} times and never ended"}
        try:
            return measure()
        except Exception as error:  # Whatever it is: the next setting may run, and the card is lent for minutes.
            return {"error": f"{type(error).__name__}: {error}"[-SAID_CHARACTERS:]}

    return checkpoint.cell(name, tried)


def roofs(study: Study) -> None:
    """What the card does without a model: matrix products and copies. What fails here fails everywhere."""
    seconds = study.seconds / 4
    _cell(
        study.checkpoint("roofs"),
        study.device,
        partial(_printed, "benchmarks.experiments.serving.peak_throughput", study, "--seconds", str(seconds)),
    )


def options(study: Study) -> None:
    """Every option of the providers, read back from an open session and, where an answer shows it, tried."""
    devices = ("tensorrt",) if study.device == "cuda" else ()
    checkpoint = study.checkpoint("options")
    for device in (study.device, *devices):
        _cell(
            checkpoint,
            device,
            partial(_printed, "benchmarks.experiments.serving.provider_options", study, device=device),
        )


def _printed(module: str, study: Study, *options: str, device: str | None = None) -> dict[str, Any]:
    """What a module prints as JSON in a process of its own: a crash there is a finding here."""
    command = [sys.executable, "-m", module, *options, "--device", device or study.device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_S[study.device])
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr}")
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def session(study: Study) -> None:
    """In process: start, canary, latency and kernels by batch size, for every precision with and without graphs."""
    checkpoint = study.checkpoint("session")
    kinds = (
        ("fp16", False, True),
        ("fp32", False, False),
        ("fp16", False, False),
        ("fp32", True, False),
        ("fp32", True, True),
    )
    batches = study.some((1, 2, 4, 8, 16, 32, 64, 128))
    for precision, tf32, graphs in study.some(kinds):
        setting = Setting(precision=precision, tf32=tf32, graphs=graphs, max_batch_size=max(batches))
        _cell(checkpoint, setting.name, partial(_session, study, setting, batches))


def _session(study: Study, setting: Setting, batches: Sequence[int]) -> dict[str, Any]:
    where = (str(study.exports / setting.precision), json.dumps(asdict(setting)))
    options = ("--seconds", str(study.seconds / 4), "--batches", *map(str, batches))
    with GpuMeter() as meter:
        result = _printed("benchmarks.gpu.session", study, *where, *options)
    return {**result, "setting": asdict(setting), "gpu": meter.report(0)}


def throughput_224(study: Study) -> None:
    """Images per second from exact thumbnails of the model's input size: what the server can do without a resize."""
    _throughput(study, "224")


def throughput_256(study: Study) -> None:
    """Images per second from files of 256 px on the shorter side, which are resized and cropped."""
    _throughput(study, "256")


def graphs_start(study: Study) -> bool:
    """Whether CUDA graphs are worth a server: not where the part ``session`` found that they do not start."""
    tried = [cell for name, cell in study.measured("session").items() if ", graphs" in name]
    return not tried or any("error" not in cell for cell in tried)


def throughput_settings(*, graphs: bool) -> tuple[Setting, ...]:
    """From what promises most to the repository as it comes."""
    fast = partial(Setting, precision="fp16", graphs=graphs)
    many = max(2, len(os.sched_getaffinity(0)) // 2)
    return (
        fast(encoders=2, decoders=many),
        fast(encoders=1, decoders=many),
        fast(encoders=2, decoders=max(2, many // 2), max_batch_size=128),
        fast(encoders=2, decoders=1),
        Setting(precision="fp16", max_batch_size=32),
    )


def _throughput(study: Study, photos: str) -> None:
    checkpoint = study.checkpoint(f"throughput_{photos}")
    requests = (2, 4, 8, 16, 32, 64) if not study.quick else (1, 2)
    settings = throughput_settings(graphs=graphs_start(study))
    if photos == "256":
        settings = settings[:3]
    for setting in map(study.sized, settings[:1] if study.quick else settings):
        rows = min(ROWS, setting.max_batch_size)
        names = {count: f"{setting.name} | {count} requests of {rows}" for count in requests}
        if not checkpoint.has(*names.values()):
            _cell(checkpoint, f"{setting.name} | start", partial(_load, study, setting, checkpoint, names, photos))


def _load(
    study: Study, setting: Setting, checkpoint: PartCheckpoint, names: dict[int, str], photos: str
) -> dict[str, Any]:
    """Start the server once and raise the load; the load comes from as many processes as a quarter of the cores."""
    with ExitStack() as stack:
        repository = stack.enter_context(repository_with(setting, study.exports, study.device))
        begun = time.perf_counter()
        server = stack.enter_context(serving(repository, *_options(START_S[study.device])))
        ready_s = time.perf_counter() - begun
        rows = min(ROWS, setting.max_batch_size)
        loads = max(1, len(os.sched_getaffinity(0)) // 4)
        options = ("--url", server.grpc_url, "--photos", str(study.photos / photos), "--rows", str(rows))
        workers = [
            stack.enter_context(Worker(f"load {number}", "benchmarks.load.worker", "transport", *options))
            for number in range(loads)
        ]
        cosine = _cosine(study, photos, workers[0].ready["vectors"])
        for worker in workers[1:]:
            _ = worker.ready
        for count, name in names.items():
            # With the cosine, since a rate of other vectors is no rate (see gpu_roofline.rated).
            _cell(
                checkpoint,
                name,
                lambda count=count: {**_together(study, workers, server.grpc_url, count), "cosine": cosine},  # type: ignore[misc]
            )
    return {"ready_s": ready_s, "cosine": cosine, "setting": asdict(setting)}


def _options(start_s: float) -> tuple[str, ...]:
    """Of every server here."""
    return ("--open-statistics", *QUIET, "--start-timeout-s", str(start_s))


def _together(study: Study, workers: Sequence[Worker], url: str, requests: int) -> dict[str, Any]:
    """Let the workers keep ``requests`` requests under way between them, and watch the card and Triton's counters."""
    shares = [requests // len(workers) + (number < requests % len(workers)) for number in range(len(workers))]
    active = [(worker, share) for worker, share in zip(workers, shares, strict=True) if share]
    before = statistics(url)
    with GpuMeter() as meter, ThreadPoolExecutor(len(active)) as threads:
        then = time.perf_counter()
        answers = list(threads.map(lambda one: one[0].ask({"seconds": study.seconds, "concurrency": one[1]}), active))
        seconds = time.perf_counter() - then
    images = sum(answer["images"] for answer in answers)
    models = {name: after.since(before.get(name)) for name, after in statistics(url).items()}
    return {
        "rate": images / seconds,
        "images": images,
        "requests_under_way": requests,
        "latency_ms": max((answer["latency_ms"] for answer in answers), key=lambda one: one["p50"]),
        "server": {
            name: {**model.mean_ms(), "runs": model.runs, "rows": model.rows, "share_batched": model.share_batched}
            for name, model in models.items()
            if model.requests
        },
        "gpu": meter.report(images),
    }


def single(study: Study) -> None:
    """One caller, one image: p50, p95, p99 and the server's own time for it, with the start to readiness."""
    checkpoint = study.checkpoint("single")
    settings = (
        Setting(precision="fp16", graphs=True, max_batch_size=32),
        Setting(precision="fp16", max_batch_size=32),
        Setting(precision="fp32", max_batch_size=32),
        Setting(precision="fp32", tf32=True, max_batch_size=32),
    )
    for setting in map(study.sized, settings[:1] if study.quick else settings):
        _cell(checkpoint, setting.name, partial(_callers, study, setting, None, (1,)))


def queue_delay(study: Study) -> None:
    """``max_queue_delay_microseconds`` by callers of one image each."""
    checkpoint = study.checkpoint("queue_delay")
    for delay_us in (0, 500, 2000) if not study.quick else (500,):
        setting = study.sized(Setting(precision="fp16", graphs=graphs_start(study), delay_us=delay_us, decoders=2))
        callers = (1, 16, 64, 256) if not study.quick else (2,)
        _cell(checkpoint, setting.name, partial(_callers, study, setting, None, callers))


def tensorrt(study: Study) -> None:
    """Time to build an engine, and to start with one in the cache; then as ``single``, and at 64 callers."""
    checkpoint = study.checkpoint("tensorrt")
    try:
        check_tensorrt()
    except TensorrtMissing as missing:
        checkpoint.cell("tensorrt", partial(_unproved, str(missing)))
        return
    cache = study.output / "engines"
    options = (*_options(ENGINE_START_S), "--tensorrt", "--tensorrt-cache", str(cache))
    for name in ("cold", "cached"):
        setting = Setting(precision="fp32", max_batch_size=32)
        _cell(checkpoint, name, partial(_callers, study, setting, options, (1, 64)))


def _unproved(reason: str) -> dict[str, Any]:
    return {"unproved": reason}


def _callers(study: Study, setting: Setting, options: Sequence[str] | None, callers: Sequence[int]) -> dict[str, Any]:
    """Serve, and measure requests of one image by so many callers at a time."""
    with ExitStack() as stack:
        if options is None:
            repository = stack.enter_context(repository_with(setting, study.exports, study.device))
        else:
            repository = study.exports / setting.precision
        begun = time.perf_counter()
        server = stack.enter_context(serving(repository, *(options or _options(START_S[study.device]))))
        ready_s = time.perf_counter() - begun
        load = ("--url", server.grpc_url, "--photos", str(study.photos / "224"))
        worker = stack.enter_context(Worker("load", "benchmarks.load.worker", "transport", *load))
        cosine = _cosine(study, "224", worker.ready["vectors"])
        points = {str(count): _together(study, [worker], server.grpc_url, count) for count in callers}
    return {"ready_s": ready_s, "cosine": cosine, "setting": asdict(setting), "callers": points}


def _cosine(study: Study, photos: str, vectors: Any) -> float:
    """The least cosine to fp32 on the CPU, over all photos."""
    return cosine_to_first({"cpu": _reference(study, photos), "server": vectors})["server"]


def _reference(study: Study, photos: str) -> Any:
    """Vectors (N, D) of the photos by the fp32 export on the CPU; kept, since every server is compared with them."""
    kept = study.output / f"reference-{photos}.npy"
    if kept.exists():
        return np.load(kept)
    import onnxruntime

    passport = installed_passport(study.exports / "fp32")
    assert passport is not None
    preprocessing = PreprocessConfig.from_mapping(passport.preprocess)
    files = sorted((study.photos / photos).iterdir())
    pixels = np.stack([preprocess(decode(file.read_bytes()), preprocessing) for file in files])  # (N, H, W, 3)
    model = onnxruntime.InferenceSession(
        encoder_directory(study.exports / "fp32") / "model.onnx", providers=["CPUExecutionProvider"]
    )
    status = np.zeros((len(files), 1), np.int32)
    vectors = model.run(["embedding"], {"pixels": pixels, "status": status})[0]
    np.save(kept, vectors)
    return vectors


def operators(study: Study) -> None:
    """Time by kind of node, nodes by provider, and what fell back to the CPU, of the session that is served."""
    checkpoint = study.checkpoint("operators")
    for precision, rows in study.some((("fp16", 1), ("fp16", 2 if study.quick else 32), ("fp32", 32))):
        setting = study.sized(Setting(precision=precision, max_batch_size=32))
        where = (str(study.exports / precision), json.dumps(asdict(setting)))
        options = ("--batches", str(rows), "--profile-runs", "2" if study.quick else "20")
        _cell(
            checkpoint,
            f"{precision}, batch {rows}",
            partial(_printed, "benchmarks.gpu.session", study, *where, *options),
        )

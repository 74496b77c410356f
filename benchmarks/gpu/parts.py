"""What ``python -m benchmarks gpu`` runs: experiments with options, in order of value."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fixtures.server_setting import ServerSetting
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.serving.tensorrt import TensorrtMissing, check_tensorrt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ROWS: Final = 32
"""Images in a request of ``throughput``: the ensemble's largest batch, and so the least ``max_batch_size``."""
START_S: Final = {"cuda": 100, "cpu": 300}
"""For a server to get ready: libraries, weights, and one run of each batch size that a CUDA graph is captured for."""
ENGINE_START_S: Final = 200
"""The same if TensorRT builds an engine."""


@dataclass(frozen=True, kw_only=True)
class Plan:
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
    """The fewest settings, sizes and callers that use all of the code."""

    @property
    def model(self) -> str | None:
        """Id of the fp32 model; None if there is none."""
        passport = installed_passport(self.exports / "fp32")
        return None if passport is None else passport.id

    def result_of(self, part: str) -> Path:
        """The file for what a part measured."""
        return self.output / f"gpu_{part}.json"

    def first(self, values: Sequence[Any]) -> Sequence[Any]:
        """All values, or the first two for a quick run."""
        return values[:2] if self.quick else values


@dataclass(frozen=True, kw_only=True)
class Run:
    """One command, in a process of its own: an experiment with options."""

    label: str
    module: str
    options: tuple[str, ...] = ()
    keeps_checkpoint: bool = False
    """Whether the experiment can continue after it was cut."""
    cannot: str | None = None
    """One sentence that says why it cannot run here."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Several runs that answer one question."""

    runs: Callable[[Plan], Sequence[Run]]
    limit_s: float


def _run(label: str, experiment: str, *options: str, keeps_checkpoint: bool = False) -> Run:
    return Run(label=label, module="benchmarks", options=(experiment, *options), keeps_checkpoint=keeps_checkpoint)


def _label(precision: str, setting: ServerSetting) -> str:
    return setting.name if setting.tf32 else ", ".join(filter(None, (precision, setting.name)))


def _sized(plan: Plan, setting: ServerSetting) -> ServerSetting:
    """``setting`` on the device; in a quick run with the smallest batches that Triton allows beside the ensemble's."""
    return replace(setting, device=plan.device, max_batch_size=ROWS if plan.quick else setting.max_batch_size)


def _peak_throughput(plan: Plan) -> list[Run]:
    seconds = str(plan.seconds / 4)
    return [_run(plan.device, "peak_throughput", "--device", plan.device, "--seconds", seconds)]


def _options(plan: Plan) -> list[Run]:
    devices = ("cuda", "tensorrt") if plan.device == "cuda" else ("cpu",)
    return [_run(device, "provider_options", "--device", device) for device in devices]


def _session(plan: Plan) -> list[Run]:
    batches = plan.first((1, 2, 4, 8, 16, 32, 64, 128))
    kinds = (("fp16", False, True), ("fp32", False, False), ("fp16", False, False), ("fp32", True, False))
    runs = []
    for precision, tf32, graphs in plan.first((*kinds, ("fp32", True, True))):
        setting = ServerSetting(device=plan.device, tf32=tf32, graphs=graphs, max_batch_size=max(batches))
        where = ("--repository", str(plan.exports / precision), "--seconds", str(plan.seconds / 4))
        options = (*where, "--batch", *map(str, batches), *setting.options)
        runs.append(_run(_label(precision, setting), "session_latency", *options))
    return runs


def graphs_start(plan: Plan) -> bool:
    """Whether to serve with CUDA graphs: not if every session of the part ``session`` failed with them."""
    path = plan.result_of("session")
    cells = json.loads(path.read_text())["cells"] if path.exists() else {}
    tried = [cell for label, cell in cells.items() if ", graphs" in label]
    return not tried or any("error" not in cell for cell in tried)


def throughput_settings(*, graphs: bool) -> tuple[ServerSetting, ...]:
    """Settings for the fp16 export, from the most promising one to the repository as it is."""
    fast = partial(ServerSetting, graphs=graphs, max_batch_size=64)
    many = max(2, len(os.sched_getaffinity(0)) // 2)
    return (
        fast(encoders=2, decoders=many),
        fast(encoders=1, decoders=many),
        fast(encoders=2, decoders=max(2, many // 2), max_batch_size=128),
        fast(encoders=2, decoders=1),
        ServerSetting(max_batch_size=32),
    )


def _throughput(plan: Plan, *, photos: str, most: int) -> list[Run]:
    settings = throughput_settings(graphs=graphs_start(plan))[: 1 if plan.quick else most]
    load = max(1, len(os.sched_getaffinity(0)) // 4)
    requests = ("1", "2") if plan.quick else ("2", "4", "8", "16", "32", "64")
    options = ("--request-rows", str(ROWS), "--load-processes", str(load))
    return [_latency(plan, "fp16", _sized(plan, setting), requests, *options, photos=photos) for setting in settings]


def _single(plan: Plan) -> list[Run]:
    plain = ServerSetting(max_batch_size=32)
    settings = (
        ("fp16", replace(plain, graphs=True)),
        ("fp16", plain),
        ("fp32", plain),
        ("fp32", replace(plain, tf32=True)),
    )
    return [
        _latency(plan, precision, _sized(plan, setting), ("1",))
        for precision, setting in settings[: 1 if plan.quick else None]
    ]


def _latency(
    plan: Plan,
    precision: str,
    setting: ServerSetting,
    concurrency: Sequence[str],
    *options: str,
    photos: str = "224",
    label: str | None = None,
) -> Run:
    """The experiment ``latency``: its curve by concurrency alone, with vectors compared with fp32 on the CPU."""
    where = ("--repository", str(plan.exports / precision), "--reference", str(plan.exports / "fp32"))
    load = ("--rows", "--offered", "--concurrency", *concurrency, "--photos", str(plan.photos / photos))
    length = ("--rounds", "1", "--seconds", str(plan.seconds))
    start = ("--start-timeout-s", str(START_S[plan.device]))
    every = (*where, *load, *length, *start, *setting.options, *options)
    return _run(label or _label(precision, setting), "latency", *every, keeps_checkpoint=True)


def _queue_delay(plan: Plan) -> list[Run]:
    setting = _sized(plan, ServerSetting(graphs=graphs_start(plan), max_batch_size=64, decoders=2))
    delays, callers = (("500",), ("2",)) if plan.quick else (("0", "500", "2000"), ("1", "16", "64", "256"))
    load = ("--instances", "1", "--delays-us", *delays, "--concurrency", *callers, "--photos", str(plan.photos / "224"))
    where = ("--repository", str(plan.exports / "fp16"), "--rounds", "1", "--seconds", str(plan.seconds))
    options = (*where, *load, *setting.options)
    return [_run(_label("fp16", setting), "queue_delay", *options, keeps_checkpoint=True)]


def _operators(plan: Plan) -> list[Run]:
    runs = []
    for precision, batches in (("fp16", ("1", "2" if plan.quick else "32")), ("fp32", ("2" if plan.quick else "32",))):
        where = ("--repository", str(plan.exports / precision), "--device", plan.device)
        length = ("--runs", "2" if plan.quick else "20", "--peak-seconds", "0.1")
        runs.append(_run(precision, "operators", *where, "--batch", *batches, *length))
    return runs


def _tensorrt(plan: Plan) -> list[Run]:
    """The first start builds the engine, the second one finds it."""
    try:
        check_tensorrt()
        cannot = None
    except TensorrtMissing as missing:
        cannot = str(missing)
    options = ("--tensorrt-cache", str(plan.output / "engines"), "--start-timeout-s", str(ENGINE_START_S))
    runs = [
        _latency(plan, "fp32", ServerSetting(), ("1", "64"), *options, label=label)
        for label in ("engine built", "engine in the cache")
    ]
    return [replace(run, cannot=cannot) for run in runs]


PARTS: Final = {
    "peak_throughput": Part(runs=_peak_throughput, limit_s=60),
    "options": Part(runs=_options, limit_s=90),
    "session": Part(runs=_session, limit_s=210),
    "throughput_224": Part(runs=partial(_throughput, photos="224", most=5), limit_s=300),
    "single": Part(runs=_single, limit_s=150),
    "throughput_256": Part(runs=partial(_throughput, photos="256", most=3), limit_s=180),
    "queue_delay": Part(runs=_queue_delay, limit_s=150),
    "operators": Part(runs=_operators, limit_s=60),
    "tensorrt": Part(runs=_tensorrt, limit_s=300),
}
"""In order of value; the limits add up to 25 minutes."""

"""What ``python -m benchmarks gpu`` runs: experiments with options, in order of value."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.fixtures.server_setting import ServerSetting
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.serving.tensorrt import TensorrtMissing, check_tensorrt

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


@dataclass(frozen=True, kw_only=True)
class Run:
    """One command, in a process of its own: an experiment with options."""

    label: str
    options: tuple[str, ...]
    module: str = "benchmarks"
    cannot: str | None = None
    """One sentence that says why it cannot run here."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Several runs that answer one question."""

    runs: Callable[[Plan], Sequence[Run]]
    limit_s: float


LATENCY: Final = (
    "latency --rows --offered --rounds 1 --seconds {seconds} --start-timeout-s {start_s} "
    "--reference {exports}/fp32 --photos {photos}/224"
)
"""Its curve by concurrency alone, with vectors compared with fp32 on the CPU."""


def _run(plan: Plan, command: str, precision: str = "", setting: ServerSetting | None = None, label: str = "") -> Run:
    """An experiment by its command line; its words may name what the plan holds.

    With a ``precision``, the options of the export and of ``setting`` follow, and tell the runs of a part apart.
    """
    start_s = START_S[plan.device]
    words = [word.format(**vars(plan), short=plan.seconds / 4, start_s=start_s) for word in command.split()]
    if precision:
        setting = setting or ServerSetting()
        words += [*setting.options, "--repository", str(plan.exports / precision)]
        label = label or (setting.name if setting.tf32 else ", ".join(filter(None, (precision, setting.name))))
    return Run(label=label, options=tuple(words))


def _sized(plan: Plan, setting: ServerSetting) -> ServerSetting:
    """``setting`` on the device; in a quick run with the smallest batches that Triton allows beside the ensemble's."""
    return replace(setting, device=plan.device, max_batch_size=ROWS if plan.quick else setting.max_batch_size)


def _peak_throughput(plan: Plan) -> list[Run]:
    return [_run(plan, "peak_throughput --device {device} --seconds {short}", label=plan.device)]


def _options(plan: Plan) -> list[Run]:
    devices = ("cuda", "tensorrt") if plan.device == "cuda" else ("cpu",)
    return [_run(plan, f"provider_options --device {name}", label=name) for name in devices]


def _session(plan: Plan) -> list[Run]:
    batches = (1, 2) if plan.quick else (1, 2, 4, 8, 16, 32, 64, 128)
    command = f"session_latency --seconds {{short}} --batch {' '.join(map(str, batches))}"
    plain = ServerSetting(device=plan.device, max_batch_size=max(batches))
    settings = (
        ("fp16", replace(plain, graphs=True)),
        ("fp32", plain),
        ("fp16", plain),
        ("fp32", replace(plain, tf32=True)),
        ("fp32", replace(plain, tf32=True, graphs=True)),
    )
    return [_run(plan, command, *one) for one in settings[: 2 if plan.quick else None]]


def graphs_start(plan: Plan) -> bool:
    """Whether to serve with CUDA graphs: not if every session of the part ``session`` failed with them."""
    path = plan.result_of("session")
    cells = json.loads(path.read_text())["cells"] if path.exists() else {}
    tried = [cell for label, cell in cells.items() if ", graphs" in label]
    return not tried or any("error" not in cell for cell in tried)


def _throughput(plan: Plan, *, photos: str, most: int) -> list[Run]:
    """The fp16 export, from the most promising setting to the repository as it is."""
    cores = len(os.sched_getaffinity(0))
    many = max(2, cores // 2)
    fast = ServerSetting(graphs=graphs_start(plan), max_batch_size=64, encoders=2, decoders=many)
    settings = (
        fast,
        replace(fast, encoders=1),
        replace(fast, decoders=max(2, many // 2), max_batch_size=128),
        replace(fast, decoders=1),
        ServerSetting(max_batch_size=32),
    )
    load = f"--request-rows {ROWS} --load-processes {max(1, cores // 4)} --photos {{photos}}/{photos}"
    command = f"{LATENCY} {load} --concurrency {'1 2' if plan.quick else '2 4 8 16 32 64'}"
    return [_run(plan, command, "fp16", _sized(plan, one)) for one in settings[: 1 if plan.quick else most]]


def _single(plan: Plan) -> list[Run]:
    plain = _sized(plan, ServerSetting(max_batch_size=32))
    settings = (
        ("fp16", replace(plain, graphs=True)),
        ("fp16", plain),
        ("fp32", plain),
        ("fp32", replace(plain, tf32=True)),
    )
    return [_run(plan, f"{LATENCY} --concurrency 1", *one) for one in settings[: 1 if plan.quick else None]]


def _queue_delay(plan: Plan) -> list[Run]:
    setting = _sized(plan, ServerSetting(graphs=graphs_start(plan), max_batch_size=64, decoders=2))
    load = "--delays-us 500 --concurrency 2" if plan.quick else "--delays-us 0 500 2000 --concurrency 1 16 64 256"
    command = f"queue_delay --instances 1 {load} --rounds 1 --seconds {{seconds}} --photos {{photos}}/224"
    return [_run(plan, command, "fp16", setting)]


def _operators(plan: Plan) -> list[Run]:
    rows, runs = (2, 2) if plan.quick else (32, 20)
    command = f"operators --device {{device}} --runs {runs} --peak-seconds 0.1 --batch"
    batches = (("fp16", f"1 {rows}"), ("fp32", f"{rows}"))
    return [_run(plan, f"{command} {sizes}", precision) for precision, sizes in batches]


def _tensorrt(plan: Plan) -> list[Run]:
    """The first start builds the engine, the second one finds it."""
    try:
        check_tensorrt()
        cannot = None
    except TensorrtMissing as missing:
        cannot = str(missing)
    command = f"{LATENCY} --concurrency 1 64 --start-timeout-s {ENGINE_START_S} --tensorrt-cache {{output}}/engines"
    labels = ("engine built", "engine in the cache")
    return [replace(_run(plan, command, "fp32", label=label), cannot=cannot) for label in labels]


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

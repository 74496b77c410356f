"""How fast is one NVIDIA card, measured within 25 minutes and without a network?

It runs the experiments ``in_process`` and ``ensemble`` with options that fit a card, in order of value. Each run has a
time limit and a process group; if it fails or is cut, the next one starts, and the same command continues what was cut.
``docs/gpu.md`` says what to take to a machine that has nothing. ``--device cpu --quick`` tries everything except the
card.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks.harness.results import commit
from clip_client.serving.tensorrt import check_tensorrt, usable_gpus
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import installed_passport

LOG: Final = "gpu.log"
"""Everything that the runs and their servers print, in the output folder."""
TERMINATE_S: Final = 15.0
"""Time for servers to end after a run was cut."""
_PR_SET_CHILD_SUBREAPER: Final = 36
"""The value in ``linux/prctl.h``."""


class Run(NamedTuple):
    """One run of an experiment, whose result is ``gpu_NAME``."""

    export: str
    limit_s: float
    command: str


_224, _256, _SINGLE = "--photos {photos}/224", "--photos {photos}/256", "--max-batch-size 32 --concurrency 1"
_HERE: Final = f"in_process {_224}"
# One round, because a card has no other work; no parts, which ``in_process`` measures.
_SERVED: Final = "ensemble --parts --rounds 1"
_LOAD: Final = f"{_SERVED} --rows 32 --load-processes {{loads}} --concurrency 2 8 32 64 --max-batch-size 64"
RUNS: Final = {
    "vectors": Run("fp16", 60, f"{_HERE} --towers image text --rows --callers"),
    "load": Run("fp16", 90, f"{_HERE} --max-batch-size 128 --rows 8 32 64 128 --callers 8 32 128"),
    "one_caller": Run("fp16", 45, f"{_HERE} --rows 1 --callers 1 --seconds 4"),
    "graphs": Run("fp16", 75, f"{_HERE} --graphs --towers image text --max-batch-size 64 --rows 1 8 32 64 --callers"),
    "tensorrt": Run("fp16", 150, f"{_HERE} --tensorrt 10 --tensorrt-cache {{exports}}/engines --rows 1 8 32 --callers"),
    "throughput_224": Run("fp16", 240, f"{_LOAD} --graphs --encoders 1 2 --decoders {{many}} {_224}"),
    "single": Run("fp16", 120, f"{_SERVED} --graphs {_SINGLE} {_224}"),
    "throughput_256": Run("fp16", 180, f"{_LOAD} --graphs --encoders 2 --decoders {{many}} {_256}"),
    "throughput_224_without_graphs": Run("fp16", 240, f"{_LOAD} --encoders 2 --decoders 1 {{many}} {_224}"),
    "queue_delay": Run(
        "fp16", 180, f"{_SERVED} --delay-us 0 500 2000 --concurrency 1 16 64 256 --max-batch-size 64 {_224}"
    ),
    "single_fp32": Run("fp32", 60, f"{_SERVED} {_SINGLE} {_224}"),
    "single_tf32": Run("fp32", 60, f"{_SERVED} --tf32 {_SINGLE} {_224}"),
}
"""Runs in order of value. The limits add up to 25 minutes, those of ``in_process`` to seven. ``tensorrt`` builds the
engine while it compares vectors, and its session finds the engine."""
_QUICK: Final = {
    "ensemble": "--concurrency 2 --max-batch-size 32 --seconds 0.2 --load-processes 1",
    "in_process": "--rows 2 --callers 2 --max-batch-size 32 --seconds 0.2",
}
_EXPORT_LIMIT_S: Final = 150.0


def unusable(name: str, device: str) -> str | None:
    """One sentence that says why a run is impossible here; None if it is worth trying."""
    if device == "cuda" and not usable_gpus():
        return "the driver shows no NVIDIA GPU (does nvidia-smi?)"
    if name == "tensorrt":
        try:
            check_tensorrt(None)
        except ReportedError as missing:
            return str(missing)
    return None


def execute(command: list[str], limit_s: float, log: Path) -> str | None:
    """Run ``command`` and append its output to ``log``; return None, or why it is not complete.

    Every process that it started has ended when this returns: a stub that is left over would hold the card's memory.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = process.wait(limit_s)
        last = (log.read_bytes().decode(errors="replace").strip().splitlines() or [""])[-1]
        return f"exit code {code}: {last}" if code else None
    except subprocess.TimeoutExpired:
        return f"cut after {limit_s:.0f} s; the same command continues it"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            # The second signal tells clip-serve not to wait for requests under way: their callers are gone.
            os.killpg(process.pid, signal.SIGINT)
        _, left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=TERMINATE_S)
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, timeout=TERMINATE_S)


def is_done(name: str, output: Path) -> bool:
    results = (json.loads(path.read_text()) for path in output.glob(f"gpu_{name}-2*.json"))
    return any(result["environment"]["commit"] == commit() for result in results)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    for name, what in (("exports", "with the repositories fp32 and fp16"), ("photos", "with 224/ and 256/")):
        parser.add_argument(f"--{name}", type=Path, default=Path(name), help=f"folder {what} (default: %(default)s)")
    parser.add_argument("--model", default="ViT-B-32", help="exported with random weights if an export is missing")
    parser.add_argument("--output", type=Path, default=Path("build/gpu"), help="for the JSON (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="only these, in this order")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all runs together (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="check that the runs work; the figures mean nothing")
    arguments = parser.parse_args()
    exports, photos, output = (getattr(arguments, name).resolve() for name in ("exports", "photos", "output"))
    if arguments.device == "cuda" and (reason := unusable("vectors", "cuda")):
        print(f"benchmarks gpu: {reason}", file=sys.stderr)
        return 1
    output.mkdir(parents=True, exist_ok=True)
    if not photos.is_dir():
        from benchmarks.gpu.kit import write_photos  # needs scikit-image, which a kit lacks

        write_photos(photos)
    # If the parent of a process ends, the process becomes a child of this program, which can then end it.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    end = time.monotonic() + 60 * float(arguments.minutes) - TERMINATE_S
    failed, log = False, output / LOG

    def left_s(limit_s: float) -> float:
        return min(limit_s, end - time.monotonic())

    for precision in ("fp32", "fp16"):
        if installed_passport(exports / precision) is None:
            made = f"--model {arguments.model} --pretrained random:0 --precision {precision}".split()
            line = ["preprocess_ensemble.export.command", *made, "--repository", str(exports / precision)]
            why = execute([sys.executable, "-m", *line], left_s(_EXPORT_LIMIT_S), log)
            print(f"export of {arguments.model}, random weights, {precision}: {why or 'complete'}", flush=True)
            if why:
                return 1
    cores = len(os.sched_getaffinity(0))
    words = {"photos": photos, "exports": exports, "many": max(2, cores // 2), "loads": max(1, cores // 4)}
    usual = f"--device {arguments.device} --reference {exports}/fp32 --results {output}"
    for name in arguments.runs:
        run = RUNS[name]
        state = "complete already" if is_done(name, output) else unusable(name, arguments.device)
        if state is None and left_s(run.limit_s) < TERMINATE_S:
            state, failed = "no time left", True
        if state is None:
            own = f"--name gpu_{name} --checkpoints {output}/unfinished/{name} --repository {exports}/{run.export}"
            experiment, *options = run.command.format(**words).split()
            options += f"{usual} {own} {_QUICK[experiment] if arguments.quick else ''}".split()
            why = execute([sys.executable, "-m", "benchmarks", experiment, *options], left_s(run.limit_s), log)
            state, failed = why or "complete", failed or why is not None
        print(f"{name}: {state}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

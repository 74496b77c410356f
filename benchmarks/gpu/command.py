"""How fast is one NVIDIA card, measured within 25 minutes and without a network?

It runs the experiment ``ensemble`` with options that fit a card, in order of value. Each run has a time limit and a
process group; if it fails or is cut, the next one starts, and the same command continues what was cut. ``docs/gpu.md``
says what to take to a machine that has nothing. ``--device cpu --quick`` tries everything except the card.
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
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.serving.tensorrt import TensorrtMissing, check_tensorrt, usable_gpus

LOG: Final = "gpu.log"
"""Everything that the runs and their servers print, in the output folder."""
TERMINATE_S: Final = 15.0
"""For servers to end after a run was cut."""
_PR_SET_CHILD_SUBREAPER: Final = 36
"""From ``linux/prctl.h``."""


class Run(NamedTuple):
    """One run of ``ensemble``, whose result is ``gpu_NAME``."""

    export: str
    limit_s: float
    options: str


_224, _256, _SINGLE = "--photos {photos}/224", "--photos {photos}/256", "--max-batch-size 32 --concurrency 1"
_SERVED: Final = "--rows 32 --load-processes {loads} --concurrency 2 8 32 64 --max-batch-size 64"
_TENSORRT: Final = "--tensorrt-cache {output}/engines --start-timeout-s 200 --rounds 2 --concurrency 1 64"
RUNS: Final = {
    "throughput_224": Run("fp16", 240, f"{_SERVED} --graphs --encoders 1 2 --decoders {{many}} {_224}"),
    "single": Run("fp16", 120, f"--graphs {_SINGLE} {_224}"),
    "throughput_256": Run("fp16", 180, f"{_SERVED} --graphs --encoders 2 --decoders {{many}} {_256}"),
    "throughput_224_without_graphs": Run("fp16", 240, f"{_SERVED} --encoders 2 --decoders 1 {{many}} {_224}"),
    "parts": Run("fp16", 150, f"--parts session --concurrency 1 8 32 128 --max-batch-size 128 {_224}"),
    "queue_delay": Run("fp16", 180, f"--delay-us 0 500 2000 --concurrency 1 16 64 256 --max-batch-size 64 {_224}"),
    "single_fp32": Run("fp32", 60, f"{_SINGLE} {_224}"),
    "single_tf32": Run("fp32", 60, f"--tf32 {_SINGLE} {_224}"),
    "tensorrt": Run("fp32", 270, f"{_TENSORRT} {_224}"),
}
"""In order of value; the limits add up to 25 minutes. The first round of ``tensorrt`` builds the engine, the second one
finds it."""
_QUICK: Final = "--concurrency 2 --max-batch-size 32 --seconds 0.2 --load-processes 1"


def unusable(name: str, device: str) -> str | None:
    """One sentence that says why a run is impossible here; None if it is worth trying."""
    if device == "cuda" and not usable_gpus():
        return "the driver shows no NVIDIA GPU (does nvidia-smi?)"
    if name == "tensorrt":
        try:
            check_tensorrt()
        except TensorrtMissing as missing:
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
    parser.add_argument("--output", type=Path, default=Path("build/gpu"), help="for the JSON (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="only these, in this order")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all runs together (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="check that the runs work; the figures mean nothing")
    arguments = parser.parse_args()
    exports, photos, output = (getattr(arguments, name).resolve() for name in ("exports", "photos", "output"))
    if installed_passport(exports / "fp32") is None:
        parser.error(f"there is no exported model in {exports / 'fp32'}: see docs/gpu.md")
    if arguments.device == "cuda" and (reason := unusable("", "cuda")):
        print(f"benchmarks gpu: {reason}", file=sys.stderr)
        return 1
    output.mkdir(parents=True, exist_ok=True)
    if not photos.is_dir():
        from benchmarks.gpu.offline_bundle import write_photos  # needs scikit-image, which an offline bundle lacks

        write_photos(photos)
    # Processes whose own parent ends become children of this one, and are found.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    end, failed = time.monotonic() + 60 * arguments.minutes, False
    cores = len(os.sched_getaffinity(0))
    words = {"photos": photos, "output": output, "many": max(2, cores // 2), "loads": max(1, cores // 4)}
    # One round, because a card has no other work; no parts, unless the run names them.
    usual = f"--parts --rounds 1 --device {arguments.device} --reference {exports}/fp32 --results {output}"
    for name in arguments.runs:
        run = RUNS[name]
        state = "complete already" if is_done(name, output) else unusable(name, arguments.device)
        left_s = min(run.limit_s, end - TERMINATE_S - time.monotonic())
        if state is None and left_s < TERMINATE_S:
            state, failed = "no time left", True
        if state is None:
            own = f"--name gpu_{name} --checkpoints {output}/unfinished/{name} --repository {exports}/{run.export}"
            options = f"{usual} {own} {run.options.format(**words)} {_QUICK if arguments.quick else ''}"
            why = execute([sys.executable, "-m", "benchmarks", "ensemble", *options.split()], left_s, output / LOG)
            state, failed = why or "complete", failed or why is not None
        print(f"{name}: {state}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

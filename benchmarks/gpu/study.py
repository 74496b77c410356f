"""What one NVIDIA card gives, within 25 minutes and without a network: ``python -m benchmarks gpu``.

Parts in order of value, each in a process and a time limit of its own; each writes its JSON as soon as it ends or is
cut, and a part that is complete is not run again. ``docs/gpu.md`` says what to carry to a machine that has nothing.
``--device cpu`` runs the same with the CPU provider.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from benchmarks.gpu import parts
from benchmarks.gpu.efficiency import summarise
from benchmarks.gpu.meter import card_name
from benchmarks.harness import process_cleanup
from benchmarks.harness.environment import environment
from preprocess_ensemble.serving.tensorrt import usable_gpus

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the study."""

    run: Callable[[parts.Study], None]
    limit_s: float


PARTS: Final = {
    "roofs": Part(run=parts.roofs, limit_s=60),
    "options": Part(run=parts.options, limit_s=90),
    "session": Part(run=parts.session, limit_s=210),
    "throughput_224": Part(run=parts.throughput_224, limit_s=300),
    "single": Part(run=parts.single, limit_s=150),
    "throughput_256": Part(run=parts.throughput_256, limit_s=180),
    "queue_delay": Part(run=parts.queue_delay, limit_s=150),
    "operators": Part(run=parts.operators, limit_s=60),
    "tensorrt": Part(run=parts.tensorrt, limit_s=300),
}
"""By value; the limits add up to 25 minutes."""
TERMINATE_S: Final = 15.0
"""For servers to end when a part is cut."""
LOG: Final = "gpu.log"
"""What all parts and their servers said, in the folder of the results."""
COMMIT: Final = Path(__file__).parents[2] / "COMMIT"
"""Written by ``gpu_kit``, since a tree that was carried has no git."""
SAID_LINES: Final = 20
"""Of a part that failed, kept in its JSON."""
CHECK_S: Final = 120.0
"""For one product of two small matrices: a first start reads a gigabyte of libraries."""


def unusable(device: str) -> str | None:
    """Why ``device`` cannot be used, in one sentence; None if it can multiply two small matrices."""
    if device == "cuda" and not usable_gpus():
        return "the driver shows no NVIDIA GPU (does nvidia-smi?)"
    command = [sys.executable, "-m", "benchmarks.experiments.serving.peak_throughput", "--device", device, "--check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECK_S)
    except subprocess.TimeoutExpired:
        return f"a product of two small matrices takes longer than {CHECK_S:.0f} s"
    sys.stderr.write(done.stderr)
    if not done.returncode:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"a product of two small matrices ended with exit code {done.returncode}"


def run_part(name: str, options: list[str], limit_s: float, log: Path) -> str | None:
    """Run one part in a process group of its own, its words into ``log``, too; None, or why it is not complete."""
    command = [sys.executable, "-m", "benchmarks.gpu.study", "--inside", name, *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    said: deque[str] = deque(maxlen=SAID_LINES)
    listener = threading.Thread(target=_listen, args=(process.stderr, said, log), daemon=True)
    listener.start()
    try:
        process.wait(limit_s)
        why = None
    except subprocess.TimeoutExpired:
        why = f"cut after {limit_s:.0f} s"
    code = process.poll()
    # Whoever is left would hold the card's memory in the next part.
    process_cleanup.end_group(process.pid, within_s=TERMINATE_S)
    process_cleanup.kill_children(within_s=TERMINATE_S)
    process.wait()
    listener.join(timeout=TERMINATE_S)
    if why is None and code:
        why = f"exit code {code}: {''.join(said)}"
    return why


def _listen(errors: IO[str], said: deque[str], log: Path) -> None:
    """Pass on what the part says, and keep the end of it."""
    with errors, log.open("a") as file:
        for line in errors:
            sys.stderr.write(line)
            file.write(line)
            file.flush()
            said.append(line)


def keep(study: parts.Study, name: str, why: str | None) -> Path:
    """Write what the part measured, with the environment, as ``gpu_<part>.json``."""
    cells = study.measured(name)
    here = environment()
    if here["commit"] is None and COMMIT.exists():
        here["commit"] = COMMIT.read_text().strip()
    here["gpu"] = here["gpu"] or card_name()
    record = {
        "experiment": f"gpu_{name}",
        "environment": here,
        "device": study.device,
        "model": study.model,
        "complete": why is None,
        "why_not": why,
        "summary": _summary(name, cells, here["gpu"]),
        "cells": cells,
    }
    path = study.output / f"gpu_{name}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(record, indent=1) + "\n")
    return new.replace(path)


def failures(study: parts.Study, name: str) -> str:
    """What to add about settings that did not run; nothing where all did."""
    cells = study.measured(name)
    bad = [said["error"].strip().splitlines()[-1] for said in cells.values() if "error" in said]
    return f", but {len(bad)} of {len(cells)} failed ({bad[0]}; see {LOG})" if bad else ""


def _summary(name: str, cells: dict[str, Any], gpu: str | None) -> dict[str, Any]:
    """The summary, or why there is none: what was measured is kept in any case."""
    try:
        return summarise(name, cells, gpu)
    except (
        Exception
    ) as error:  # A cell of a form that nobody thought of must not cost the parts that are still to come.
        return {"no summary": f"{type(error).__name__}: {error}"}


def is_complete(study: parts.Study, name: str) -> bool:
    """Whether an earlier run finished this part with the same plan; a cell that failed is no reason to repeat it."""
    path = study.output / f"gpu_{name}.json"
    if not path.exists():
        return False
    kept: dict[str, Any] = json.loads(path.read_text())
    return bool(kept["complete"]) and (kept["device"], kept["model"]) == (study.device, study.model)


def main() -> int:
    """Run the parts; 0 if all that were asked for are complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--exports", type=Path, default=Path("exports"), help="folder with fp32/ and fp16/ repositories"
    )
    parser.add_argument("--photos", type=Path, default=Path("photos"), help="folder with 224/ and 256/, of JPEG files")
    parser.add_argument("--output", type=Path, default=Path("build/gpu"), help="for the JSON (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="in this order")
    parser.add_argument("--skip", nargs="+", choices=PARTS, default=[])
    parser.add_argument("--again", nargs="+", choices=PARTS, default=[], help="forget what these parts have measured")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all parts together")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--quick", action="store_true", help="the fewest settings that touch everything")
    parser.add_argument("--inside", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    study = parts.Study(
        exports=arguments.exports.resolve(),
        photos=arguments.photos.resolve(),
        output=arguments.output.resolve(),
        device=arguments.device,
        seconds=arguments.seconds,
        quick=arguments.quick,
    )
    if study.model is None:
        parser.error(f"there is no exported model in {study.exports / 'fp32'}: see docs/gpu.md")
    study.output.mkdir(parents=True, exist_ok=True)
    if arguments.inside:
        PARTS[arguments.inside].run(study)
        return 0
    if reason := unusable(study.device):
        print(f"benchmarks.gpu.study: {study.device} cannot be used here: {reason}", file=sys.stderr)
        return 1
    options = [
        *("--exports", str(study.exports), "--photos", str(study.photos), "--output", str(study.output)),
        *("--device", study.device, "--seconds", str(study.seconds), *(("--quick",) if study.quick else ())),
    ]
    for name in arguments.again:
        study.checkpoint(name).forget()
        (study.output / f"gpu_{name}.json").unlink(missing_ok=True)
    process_cleanup.adopt()
    failed = False
    for name in arguments.parts:
        if name in arguments.skip:
            continue
        if is_complete(study, name):
            print(f"{name}: complete already")
            continue
        left_s = end - time.monotonic()
        if left_s < 2 * TERMINATE_S:
            print(f"{name}: no time left")
            failed = True
            continue
        # What is cut still takes time to end, and the whole must fit.
        why = run_part(name, options, min(PARTS[name].limit_s, left_s - TERMINATE_S), study.output / LOG)
        failed = failed or why is not None
        print(f"{name}: {why or 'complete'}{failures(study, name)}; kept in {keep(study, name, why)}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

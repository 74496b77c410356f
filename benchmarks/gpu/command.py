"""How fast is one NVIDIA card, measured within 25 minutes and without a network?

It runs experiments with options that fit a card, in order of value (see ``parts``). Each runs in a process group with a
time limit. What it has measured is kept if it fails or is cut, and the same command continues. ``docs/gpu.md`` says
what to take to a machine that has nothing. ``--device cpu`` runs the same with the CPU provider.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.parts import PARTS, Part, Plan, Run
from benchmarks.harness import process_cleanup
from benchmarks.harness.results import commit, environment
from preprocess_ensemble.serving.tensorrt import usable_gpus

TERMINATE_S: Final = 15.0
"""For servers to end after a run was cut."""
LOG: Final = "gpu.log"
"""Everything that the runs and their servers print, in the output folder."""
ERROR_LINES: Final = 20
"""Of a run that failed, kept in its result."""
MOST_CUTS: Final = 2
"""A run that was cut this often without a new measurement hangs, and is not tried again."""
CHECK_S: Final = 120.0
"""For one product of two small matrices: a first start reads a gigabyte of libraries."""


def unusable(device: str) -> str | None:
    """One sentence that says why ``device`` cannot be used; None if it multiplies two small matrices."""
    if device == "cuda" and not usable_gpus():
        return "the driver shows no NVIDIA GPU (does nvidia-smi?)"
    command = [sys.executable, "-m", "benchmarks", "peak_throughput", "--device", device, "--check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECK_S)
    except subprocess.TimeoutExpired:
        return f"a product of two small matrices takes longer than {CHECK_S:.0f} s"
    sys.stderr.write(done.stderr)
    if not done.returncode:
        return None
    printed = done.stderr.strip().splitlines()
    return printed[-1] if printed else f"a product of two small matrices ended with exit code {done.returncode}"


def execute(command: list[str], limit_s: float, log: Path) -> str | None:
    """Run ``command`` in its own process group and copy its output to ``log``.

    Returns None, or why it is not complete: the end of its output after a failure, or ``cut after ...``. Every process
    that it started has ended when this returns.
    """
    with log.open("ab") as file:
        start = file.tell()
    tee = subprocess.Popen(["tee", "--append", log], stdin=subprocess.PIPE, stdout=sys.stderr)
    process = subprocess.Popen(command, stdout=tee.stdin, stderr=subprocess.STDOUT, start_new_session=True)
    assert tee.stdin is not None, "it is a pipe"
    tee.stdin.close()
    try:
        code = process.wait(limit_s)
        why = f"exit code {code}: {{}}" if code else None
    except subprocess.TimeoutExpired:
        why = f"cut after {limit_s:.0f} s"
    finally:
        # A process that is left over, also after Ctrl-C, would hold the card's memory during the next run.
        process_cleanup.end_group(process.pid, within_s=TERMINATE_S)
        process.wait()
        tee.wait()
    printed = log.read_bytes()[start:].decode(errors="replace").splitlines(keepends=True)
    return why and why.format("".join(printed[-ERROR_LINES:]))


class PartRunner:
    """Runs the experiments of one part and keeps what they measure in ``gpu_<part>.json``.

    An earlier command's measurements count if they are of the same code, model, device and length.
    """

    def __init__(self, *, name: str, part: Part, plan: Plan, least_s: float = TERMINATE_S) -> None:
        """``least_s`` is the least time in which a run may start."""
        self.name = name
        self._part, self._plan, self._least_s = part, plan, least_s
        self._path, self._folder = plan.result_of(name), plan.output / "runs" / name
        self._setting = {key: getattr(plan, key) for key in ("device", "model", "seconds", "quick")}
        self._kept: dict[str, Any] = {"complete": False, "cells": {}, "cut": {}}
        earlier = json.loads(self._path.read_text()) if self._path.exists() else {}
        same = all(earlier.get(key) == value for key, value in self._setting.items())
        if same and earlier["environment"]["commit"] == commit():
            self._kept = {key: earlier[key] for key in self._kept}

    @property
    def is_complete(self) -> bool:
        """Whether every run has been measured; failed runs count as done."""
        return bool(self._kept["complete"])

    def measure(self, end: float) -> str:
        """Run what is not measured yet, until the part's limit or ``end`` (monotonic seconds); return one line."""
        runs = self._part.runs(self._plan)
        end = min(end, time.monotonic() + self._part.limit_s)
        cells, cut = self._kept["cells"], self._kept["cut"]
        for run in runs:
            if run.label in cells:
                continue
            # Twice the fair share, so that a run that hangs does not take the time of the others.
            limit_s = min(end - time.monotonic(), max(60.0, 2 * self._part.limit_s / len(runs)))
            found = self._measured(run, limit_s, cut.pop(run.label, {}).get("times", 0))
            (cut if "cut" in found else cells)[run.label] = found
            self._kept["complete"] = all(one.label in cells for one in runs)
            self._write()
        errors = [cell["error"].strip().splitlines()[-1] for cell in cells.values() if "error" in cell]
        failures = f", but {len(errors)} of {len(runs)} failed ({errors[0]}; see {LOG})" if errors else ""
        state = f"cut: {', '.join(cut)}" if cut else "complete"
        return f"{state}{failures}; kept in {self._path}"

    def _measured(self, run: Run, limit_s: float, times_cut: int) -> dict[str, Any]:
        """The summary of a run, its ``error``, or why it was ``cut`` and the ``cells`` that it has measured.

        ``times_cut`` is how often it was cut in a row without a new measurement.
        """
        if run.cannot is not None:
            return {"unproved": run.cannot}
        folder = self._folder / "".join(letter if letter.isalnum() else "_" for letter in run.label)
        folder.mkdir(parents=True, exist_ok=True)
        before = _checkpoint_cells(folder)
        if limit_s < self._least_s:
            return {"cut": "no time left", "cells": before, "times": times_cut}
        options = ("--results", str(folder), "--checkpoints", str(folder))
        why = execute([sys.executable, "-m", run.module, *run.options, *options], limit_s, self._plan.output / LOG)
        if why is None:
            newest = max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            summary: dict[str, Any] = json.loads(newest.read_text())["summary"]
            return summary
        cells = _checkpoint_cells(folder)
        if not why.startswith("cut"):
            return {"error": why, "cells": cells}
        times_cut = times_cut + 1 if len(cells) == len(before) else 1
        if times_cut < MOST_CUTS:
            return {"cut": why, "cells": cells, "times": times_cut}
        return {"error": f"{why}, {MOST_CUTS} times in a row without a new measurement", "cells": cells}

    def _write(self) -> None:
        record = {"experiment": f"gpu_{self.name}", "environment": environment(), **self._setting, **self._kept}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(record, indent=1) + "\n")
        new.replace(self._path)


def _checkpoint_cells(folder: Path) -> dict[str, Any]:
    """What an experiment that did not finish has in its checkpoint."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    kept = [json.loads(line) for line in lines if line.endswith("}")]
    return {line["cell"]: line["result"] for line in kept if "cell" in line}


def main() -> int:
    """Run the parts; 0 if all that were asked for are complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--exports", type=Path, default=Path("exports"), help="folder with the repositories fp32 and fp16"
    )
    parser.add_argument(
        "--photos", type=Path, default=Path("photos"), help="folder with 224/ and 256/ (default: made here)"
    )
    parser.add_argument("--output", type=Path, default=Path("build/gpu"), help="for the JSON (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="run these, in this order")
    parser.add_argument("--skip", nargs="+", choices=PARTS, default=[], help="leave these out")
    parser.add_argument("--again", nargs="+", choices=PARTS, default=[], help="discard what these parts have measured")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all parts together (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="the fewest settings that use all of the code")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    folders = {name: getattr(arguments, name).resolve() for name in ("exports", "photos", "output")}
    plan = Plan(**folders, device=arguments.device, seconds=arguments.seconds, quick=arguments.quick)
    if plan.model is None:
        parser.error(f"there is no exported model in {plan.exports / 'fp32'}: see docs/gpu.md")
    if reason := unusable(plan.device):
        print(f"benchmarks gpu: {plan.device} cannot be used here: {reason}", file=sys.stderr)
        return 1
    plan.output.mkdir(parents=True, exist_ok=True)
    if not plan.photos.is_dir():
        from benchmarks.gpu.offline_bundle import write_photos  # needs scikit-image, which an offline bundle lacks

        write_photos(plan.photos)
    for name in arguments.again:
        shutil.rmtree(plan.output / "runs" / name, ignore_errors=True)
        plan.result_of(name).unlink(missing_ok=True)
    process_cleanup.adopt()
    parts = (name for name in arguments.parts if name not in arguments.skip)
    wanted = [PartRunner(name=name, part=PARTS[name], plan=plan) for name in parts]
    for runner in wanted:
        if runner.is_complete:
            print(f"{runner.name}: complete already")
        elif end - time.monotonic() < 2 * TERMINATE_S:
            print(f"{runner.name}: no time left")
        else:
            # A run that is cut needs time to end, and the whole must fit.
            print(f"{runner.name}: {runner.measure(end - TERMINATE_S)}", flush=True)
    return int(not all(runner.is_complete for runner in wanted))


if __name__ == "__main__":
    sys.exit(main())

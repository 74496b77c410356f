"""What a run has measured so far, on disk, so that the same command continues after an interruption."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.results import LOAD_BEFORE, RESULTS, output, write_result

CHECKPOINTS: Final = Path("build") / "benchmarks"
"""Interrupted runs keep here what they have measured."""
BUSY: Final = 0.25
"""A load average above this, per core, before anything is measured: the machine has other work."""


class Checkpoint:
    """The cells that one run has measured.

    It belongs to one experiment with one ``plan`` at one commit. If plan or commit differs from what is on disk, the
    run starts over: measurements of different code do not belong in one table.
    """

    def __init__(self, experiment: str, plan: Mapping[str, Any], directory: Path = CHECKPOINTS) -> None:
        self.experiment = experiment
        self.planned = 0
        """How many cells the run will have, if that is known: for the remaining time."""
        self.plan = json.loads(json.dumps(plan))
        self.cells: dict[str, dict[str, Any]] = {}
        self._seconds: list[float] = []
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{experiment}.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        complete = [json.loads(line) for line in lines if line.endswith("}")]
        header = {"plan": self.plan, "commit": output("git", "rev-parse", "HEAD")}
        if complete and complete[0] == header:
            self.cells = {line["cell"]: line["result"] for line in complete[1:]}
            say(f"{experiment}: continues after {len(self.cells)} measurements; to start over, delete {self._path}")
        else:
            self._path.write_text(json.dumps(header) + "\n")
        if LOAD_BEFORE > BUSY * len(os.sched_getaffinity(0)):
            say(
                f"{experiment}: the load average was {LOAD_BEFORE} before the run. Other work slows PyTorch more "
                "than other systems, because its threads wait for each other at every operator: ratios to it mislead."
            )

    def cell(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the kept result of ``name``, or measure it now."""
        if name not in self.cells:
            start = time.perf_counter()
            self.cells[name] = measure()
            self._seconds.append(time.perf_counter() - start)
            with self._path.open("a") as file:
                file.write(json.dumps({"cell": name, "result": self.cells[name]}) + "\n")
            rate = self.cells[name].get("rate")
            left_s = (self.planned - len(self.cells)) * statistics.mean(self._seconds)
            say(
                f"{self.experiment} {len(self.cells)} {name:<44}"
                f"{f' {rate:8.1f} a second' if rate is not None else ' done'}"
                f"{f', {left_s / 60:.1f} min left' if left_s > 0 else ''}"
            )
        return self.cells[name]

    def has(self, *names: str) -> bool:
        """Whether all of these are measured already."""
        return all(name in self.cells for name in names)

    def finish(self, result: Mapping[str, Any], directory: Path = RESULTS) -> Path:
        """Write the result with the plan, the environment and every measurement; discard the checkpoint."""
        path = write_result(self.experiment, {"plan": self.plan, **result, "cells": self.cells}, directory)
        self._path.unlink()
        return path


def say(line: str) -> None:
    """Print one line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)

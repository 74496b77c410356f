"""What do all serving experiments of a machine without a GPU show?

Runs one experiment after another, within an hour on two cores. After an interruption, the same command skips finished
experiments and continues at the last checkpoint. An experiment that fails does not stop the others. ``--quick`` gives
each measurement almost no time and writes to a folder of its own: it shows that everything works, and its figures mean
nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness.checkpoint import CHECKPOINTS
from benchmarks.harness.results import RESULTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUICK_RESULTS: Final = CHECKPOINTS / "quick"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One experiment of ``all``."""

    name: str
    minutes: float
    """On two cores of an AMD EPYC 9004. Used for the remaining time only, and corrected by finished steps."""
    quick: tuple[str, ...]
    """Options for the shortest run; the defaults fit into the hour."""
    takes_repository: bool = True


STEPS: Final = (
    Step(name="three_way", minutes=13, quick=("--concurrency", "1", "4", "--rounds", "1", "--seconds", "0.3")),
    Step(
        name="queue_delay",
        minutes=8,
        quick=("--delays-us", "0", "10000", "--concurrency", "1", "4", "--rounds", "1", "--seconds", "0.3"),
    ),
    Step(
        name="latency",
        minutes=7,
        quick=("--concurrency", "1", "2", "4", "--rows", "1", "4", "--rounds", "1", "--seconds", "0.3"),
    ),
    Step(name="end_to_end", minutes=5, quick=("--rounds", "1", "--seconds", "0.3")),
    Step(name="precision", minutes=5, quick=("--rounds", "1", "--seconds", "0.3")),
    Step(
        name="serialisation",
        minutes=6,
        quick=("--rows", "1", "8", "--link-rows", "1", "--rounds", "1", "--seconds", "0.1"),
        takes_repository=False,
    ),
    Step(name="ensemble_tax", minutes=4, quick=("--rounds", "1", "--seconds", "0.3")),
    Step(name="perf_analyzer", minutes=4, quick=("--concurrency", "1", "2", "--requests", "10")),
    Step(name="scaling", minutes=2, quick=("--rounds", "1", "--seconds", "0.3")),
    Step(name="operators", minutes=1, quick=("--runs", "2")),
)


class Done:
    """Which steps are done and how long they took, on disk; a different plan starts over."""

    def __init__(self, plan: Sequence[str], directory: Path = CHECKPOINTS) -> None:
        self._path = directory / "all.json"
        self._plan = list(plan)
        self.seconds: dict[str, float] = {}
        if self._path.exists():
            kept = json.loads(self._path.read_text())
            if kept["plan"] == self._plan:
                self.seconds = kept["seconds"]

    def add(self, name: str, seconds: float) -> None:
        """Record that a step is done."""
        self.seconds[name] = seconds
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"plan": self._plan, "seconds": self.seconds}))

    def clear(self) -> None:
        """Forget all steps, so that the next run is a new one."""
        self._path.unlink(missing_ok=True)


def minutes_left(steps: Sequence[Step], seconds: Mapping[str, float]) -> float:
    """Minutes for the steps that are not in ``seconds``, if they are as slow as the finished ones."""
    done = [step for step in steps if step.name in seconds]
    expected = sum(step.minutes for step in done)
    slower = sum(seconds[step.name] for step in done) / 60 / expected if done else 1.0
    return slower * sum(step.minutes for step in steps if step.name not in seconds)


def main() -> int:
    """Run what is not done yet, then the report; return 1 if a step failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks all", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="check that everything works; the figures mean nothing")
    parser.add_argument("--steps", nargs="+", choices=[step.name for step in STEPS], help="run only these")
    parser.add_argument("--repository", type=Path, default=Path("triton_models"), help="default: %(default)s")
    parser.add_argument("--results", type=Path, help=f"default: {RESULTS}, with --quick {QUICK_RESULTS}")
    arguments = parser.parse_args()
    results = arguments.results or (QUICK_RESULTS if arguments.quick else RESULTS)
    steps = [step for step in STEPS if not arguments.steps or step.name in arguments.steps]
    done = Done(sys.argv[1:])
    failed = []
    start = time.perf_counter()
    for number, step in enumerate(steps, 1):
        if step.name in done.seconds:
            _say(f"{number} of {len(steps)}: {step.name} is done already")
            continue
        so_far = (time.perf_counter() - start) / 60
        left = "" if arguments.quick else f", about {minutes_left(steps, done.seconds):.0f} min left"
        _say(f"{number} of {len(steps)}: {step.name}; {so_far:.0f} min so far{left}")
        options = ["--results", str(results), *(step.quick if arguments.quick else ())]
        if step.takes_repository:
            options += ["--repository", str(arguments.repository)]
        began = time.perf_counter()
        if subprocess.run([sys.executable, "-m", "benchmarks", step.name, *options], check=False).returncode:
            failed.append(step.name)
        else:
            done.add(step.name, time.perf_counter() - began)
    report = [sys.executable, "-m", "benchmarks.report.command", "--results", str(results)]
    if results != RESULTS:
        report.append("--page-only")
    if subprocess.run(report, check=False).returncode:
        failed.append("report")
    if failed:
        _say(f"failed: {', '.join(failed)}; the same command runs only those again")
        return 1
    done.clear()
    _say(f"all done in {(time.perf_counter() - start) / 60:.0f} min")
    return 0


def _say(line: str) -> None:
    print(f"== {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

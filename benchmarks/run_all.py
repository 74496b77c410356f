"""What do all serving experiments of a machine without a GPU show?

Runs one experiment after another, within an hour on two cores. After an interruption, the same command skips finished
experiments and continues at the last checkpoint. An experiment that fails does not stop the others. ``--quick`` gives
each measurement almost no time and writes to a folder of its own: it shows that everything works, and its figures mean
nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness.checkpoint import CHECKPOINTS, Checkpoint, say
from benchmarks.harness.results import RESULTS

QUICK_RESULTS: Final = CHECKPOINTS / "quick"


class Step(NamedTuple):
    """One experiment of ``all``."""

    name: str
    quick: str
    """Options for the shortest run; the defaults fit into the hour."""
    takes_repository: bool = True


STEPS: Final = (
    Step("three_way", "--concurrency 1 4 --rounds 1 --seconds 0.3"),
    Step("queue_delay", "--delays-us 0 10000 --concurrency 1 4 --rounds 1 --seconds 0.3"),
    Step("latency", "--concurrency 1 2 4 --rows 1 4 --rounds 1 --seconds 0.3"),
    Step("end_to_end", "--rounds 1 --seconds 0.3"),
    Step("precision", "--rounds 1 --seconds 0.3"),
    Step("serialisation", "--rows 1 8 --link-rows 1 --rounds 1 --seconds 0.1", takes_repository=False),
    Step("ensemble_tax", "--rounds 1 --seconds 0.3"),
    Step("perf_analyzer", "--concurrency 1 2 --requests 10"),
    Step("scaling", "--rounds 1 --seconds 0.3"),
    Step("operators", "--runs 2"),
)


def main() -> int:
    """Run what is not done yet, then the report; return 1 if a step failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks all", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="check that everything works; the figures mean nothing")
    parser.add_argument("--steps", nargs="+", choices=[step.name for step in STEPS], help="run only these")
    parser.add_argument("--repository", type=Path, default=Path("triton_models"), help="default: %(default)s")
    parser.add_argument("--results", type=Path, help=f"default: {RESULTS}, with --quick {QUICK_RESULTS}")
    options = parser.parse_args()
    results = options.results or (QUICK_RESULTS if options.quick else RESULTS)
    steps = [step for step in STEPS if not options.steps or step.name in options.steps]
    done = Checkpoint("all", {"arguments": sys.argv[1:]}, total=len(steps))
    failed = []
    start = time.perf_counter()
    for step in steps:
        if done.has(step.name):
            continue
        say(f"== {step.name}; {(time.perf_counter() - start) / 60:.0f} min so far")
        arguments = ["--results", str(results), *(step.quick.split() if options.quick else ())]
        if step.takes_repository:
            arguments += ["--repository", str(options.repository)]
        try:
            done.cell(step.name, lambda name=step.name, arguments=arguments: _timed(name, *arguments))  # type: ignore[misc]
        except subprocess.CalledProcessError:
            failed.append(step.name)
    try:
        _timed("report", "--results", str(results), *(() if results == RESULTS else ("--page-only",)))
    except subprocess.CalledProcessError:
        failed.append("report")
    if failed:
        say(f"== failed: {', '.join(failed)}; the same command runs only those again")
        return 1
    done.discard()
    say(f"== all done in {(time.perf_counter() - start) / 60:.0f} min")
    return 0


def _timed(name: str, *arguments: str) -> dict[str, float]:
    """Run an experiment in a process of its own. Raises ``subprocess.CalledProcessError`` if it fails."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "benchmarks", name, *arguments], check=True)
    return {"seconds": time.perf_counter() - start}

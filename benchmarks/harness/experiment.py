"""One frame for every experiment: it reads the options, starts the fixtures, and keeps the result.

An experiment is a module with a function ``measure``, which gets a :class:`Run`, prints its tables, and returns what
the result file keeps::

    @experiment(REPOSITORY, rounds(3), seconds(4.0, "per cell"))
    def measure(run: Run) -> dict[str, Any]:
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fixtures.repositories import exported_passport
from benchmarks.fixtures.sample_photos import write_thumbnails
from benchmarks.fixtures.server import QUIET, Server, serving
from benchmarks.harness.results import LOAD_BEFORE, RESULTS, of_rounds, output, write_result

if TYPE_CHECKING:
    from preprocess_ensemble.model_repository.passport import Passport

CHECKPOINTS: Final = Path("build") / "benchmarks"
"""Interrupted runs keep here what they have measured."""
BUSY: Final = 0.25
"""A load average above this, per core, before anything is measured: the machine has other work."""
Option = Callable[[argparse.ArgumentParser], argparse.Action]

_NOT_PLANNED: Final = frozenset({"repository", "results", "checkpoints", "photos"})
"""Options that do not change what is measured."""


def option(*flags: str, **settings: Any) -> Option:
    """An option of the command line, as for ``ArgumentParser.add_argument``; its help states its default."""
    if settings.get("default") and "default:" not in settings["help"]:
        settings["help"] += " (default: %(default)s)"
    return lambda parser: parser.add_argument(*flags, **settings)


def rounds(default: int) -> Option:
    return option("--rounds", type=int, default=default, help="in each round every system is measured once")


def seconds(default: float, what: str) -> Option:
    return option("--seconds", type=float, default=default, help=what)


REPOSITORY: Final = option("--repository", type=Path, default=Path("triton_models"), help="model repository")
PHOTOS: Final = option("--photos", type=Path, metavar="DIR", help="JPEG files (default: sample photos of 256 pixels)")
_RESULTS: Final = option("--results", type=Path, default=RESULTS, help="folder of the result")
_CHECKPOINTS: Final = option("--checkpoints", type=Path, default=CHECKPOINTS, help="folder of unfinished runs")
MODEL: Final = option("--model", help="JSON file of a model that open_clip does not know by name")


class Checkpoint:
    """The cells that one run has measured.

    A checkpoint belongs to one experiment with one ``plan`` at one commit. If the plan or the commit on disk differs,
    the run starts over: measurements of different code do not belong in one table.
    """

    def __init__(self, experiment: str, plan: Mapping[str, Any], directory: Path = CHECKPOINTS) -> None:
        self.experiment = experiment
        self.planned = 0
        """Number of cells of the whole run, for the remaining time; 0 if it is not known."""
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
    print(line, file=sys.stderr, flush=True)


class Run:
    """One run of an experiment. Everything that it starts ends with it, or with its innermost :meth:`block`."""

    def __init__(self, name: str, options: argparse.Namespace, stack: ExitStack) -> None:
        self.name = name
        """Name of the result file."""
        self.options = options
        self.stack = stack
        self.exit_code = 0
        self.scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    @property
    def rounds(self) -> range:
        """Numbers of the rounds, from 1."""
        return range(1, self.options.rounds + 1)

    @cached_property
    def photos(self) -> Path:
        """Folder of JPEG files: that of the options, or the sample photos with 256 pixels on the shorter side."""
        if given := getattr(self.options, "photos", None):
            return Path(given)
        folder = self.scratch / "photos"
        folder.mkdir()
        write_thumbnails(folder)
        return folder

    @cached_property
    def files(self) -> list[bytes]:
        """The content of :attr:`photos`."""
        return [path.read_bytes() for path in sorted(self.photos.iterdir())]

    @cached_property
    def passport(self) -> Passport:
        """The passport of the exported model; the program exits if the repository has no model."""
        return exported_passport(self.options.repository)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """All options that change what is measured, and the model."""
        chosen = {key: value for key, value in vars(self.options).items() if key not in _NOT_PLANNED}
        model = {"model": self.passport.id} if "repository" in vars(self.options) else {}
        return {**{key: str(value) if isinstance(value, Path) else value for key, value in chosen.items()}, **model}

    @cached_property
    def saved(self) -> Checkpoint:
        """This run's checkpoint. The result of a run that uses it holds its plan and its cells."""
        return Checkpoint(self.name, self.plan, self.options.checkpoints)

    def in_rounds(self, cells: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
        """Measure every cell in turn, in each round; return name -> its results."""
        self.saved.planned += len(cells) * len(self.rounds)
        for number in self.rounds:
            for name, measure in cells.items():
                self.saved.cell(f"{name} round {number}", measure)
        return {name: of_rounds(self.saved.cells, name) for name in cells}

    @contextmanager
    def block(self) -> Iterator[None]:
        """End at the end of the block whatever is started inside."""
        outer = self.stack
        try:
            with ExitStack() as self.stack:
                yield
        finally:
            self.stack = outer

    def serve(self, repository: Path | None = None, *options: str, http: bool = False) -> Server:
        """Start ``clip-serve`` for ``repository`` (default: that of the options)."""
        return self.stack.enter_context(serving(repository or self.options.repository, *QUIET, *options, http=http))


Measure = Callable[[Run], Mapping[str, Any]]
Main = Callable[..., int]


def experiment(*options: Option) -> Callable[[Measure], Main]:
    """Make the ``measure`` of a module its command, named like the module and described by its docstring.

    The command takes the arguments of a command line, and what shows the result file; it returns the exit code.
    """

    def made(measure: Measure) -> Main:
        module = sys.modules[measure.__module__]
        name = module.__name__.rpartition(".")[2]

        def main(arguments: Sequence[str] | None = None, show: Callable[[Path], None] | None = None) -> int:
            parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=module.__doc__)
            for add in (*options, _RESULTS, _CHECKPOINTS):
                add(parser)
            given = parser.parse_args(arguments)
            if "repository" in vars(given):
                exported_passport(given.repository)  # exit before a server starts and ends with a traceback
            with ExitStack() as stack:
                run = Run(name, given, stack)
                result = measure(run)
                if "saved" in vars(run):
                    path = run.saved.finish(result, given.results)
                else:
                    path = write_result(run.name, result, given.results)
            if show is not None:
                show(path)
            print(f"result: {path}")
            return run.exit_code

        return main

    return made

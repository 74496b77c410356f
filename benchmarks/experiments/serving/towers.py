"""How much processor time does each model need for an image, and for a text?

Milliseconds of one thread for each row of a batch, in fp32 with ONNX Runtime, all models in turn. Each repository holds
one model; random weights are as fast as trained ones: ``clip-export --model M --pretrained random --repository DIR``.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.fixtures.repositories import exported_passport
from benchmarks.harness.experiment import Run, experiment, option, rounds
from benchmarks.harness.results import show
from preprocess_ensemble.contract import DEFAULT_NAMES
from preprocess_ensemble.model_repository.config import version_directory
from preprocess_ensemble.runtimes.agreement import checked_vectors
from preprocess_ensemble.runtimes.onnx_session import open_session, session_options

if TYPE_CHECKING:
    from preprocess_ensemble.model_repository.passport import Passport

_TOKENS: Final = 49408
"""Ids of the texts are below: every model has as many."""


class Tower:
    """One tower of a model, opened with one thread, and rows for it."""

    def __init__(self, file: Path, fingerprint: tuple[int, int], rows: Any) -> None:
        self._session = open_session(file, session_options(threads=1))
        self._fingerprint = fingerprint
        self._rows = rows
        self.milliseconds: list[float] = []
        """For each row, by round."""

    def measure(self) -> None:
        """Embed the rows once."""
        start = time.thread_time()
        checked_vectors(self._session, self._rows, self._fingerprint)
        self.milliseconds.append(1e3 * (time.thread_time() - start) / len(self._rows))


@experiment(
    option("repositories", nargs="+", type=Path, help="model repositories"),
    option("--batch", type=int, default=8, help="rows of a batch"),
    rounds(5),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure both towers of every model in each round."""
    towers = {}
    for repository in run.options.repositories:
        passport = exported_passport(repository)
        towers[passport.id] = _towers(repository, passport, run.options.batch)
    for _ in range(run.options.rounds + 1):  # the first one warms up
        for pair in towers.values():
            for tower in pair.values():
                tower.measure()
    medians = {
        model: {name: statistics.median(tower.milliseconds[1:]) for name, tower in pair.items()}
        for model, pair in towers.items()
    }
    first = next(iter(medians.values()))
    rows = [(model, *_cells(pair, first, "image"), *_cells(pair, first, "text")) for model, pair in medians.items()]
    show("One thread, fp32", ("", "ms an image", "to the first", "ms a text", "to the first"), rows)
    return {"milliseconds": medians, "batch": run.options.batch}


def _towers(repository: Path, passport: Passport, batch: int) -> dict[str, Tower]:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (batch, *passport.preprocess["size"], 3), np.uint8)
    found = {"image": Tower(version_directory(repository) / "model.onnx", passport.fingerprint, pixels)}
    if (text := passport.text) is not None:
        tokens = generator.integers(3, _TOKENS, (batch, text.tokenizer["context_length"]), np.int32)
        model = version_directory(repository, DEFAULT_NAMES.text_encoder) / "model.onnx"
        found["text"] = Tower(model, text.fingerprint, tokens)
    return found


def _cells(pair: dict[str, float], first: dict[str, float], name: str) -> tuple[str, str]:
    if name not in pair:
        return "-", "-"
    return f"{pair[name]:.1f}", f"{pair[name] / first[name]:.2f}" if name in first else "-"

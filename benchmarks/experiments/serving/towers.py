"""How much processor time does each model need for an image, and for a text?

Milliseconds of one thread for each row of a batch, in fp32 with ONNX Runtime, all models in turn. Each repository holds
one model; random weights are as fast as trained ones: ``clip-export --model M --pretrained random --repository DIR``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.fixtures.repositories import exported_passport
from benchmarks.harness.experiment import Run, experiment, option, rounds
from benchmarks.harness.results import show
from preprocess_ensemble.contract import DEFAULT_NAMES
from preprocess_ensemble.model_repository.config import MODEL_FILE, version_directory
from preprocess_ensemble.runtimes.agreement import checked_vectors
from preprocess_ensemble.runtimes.onnx_session import open_session, session_options

_TOKENS: Final = 49408
"""Ids of the texts are below: every model has as many."""


@experiment(
    option("repositories", nargs="+", type=Path, help="model repositories"),
    option("--batch", type=int, default=8, help="rows of a batch"),
    rounds(5),
)
def measure(run: Run) -> dict[str, Any]:
    times: dict[tuple[str, str], list[float]] = {}
    towers = dict(tower for repository in run.options.repositories for tower in opened(repository, run.options.batch))
    for _ in range(run.options.rounds + 1):  # the first one warms up
        for key, embed in towers.items():
            start = time.thread_time()
            embed()
            times.setdefault(key, []).append(1e3 * (time.thread_time() - start) / run.options.batch)
    medians: dict[str, dict[str, float]] = {}
    for (model, name), each in times.items():
        medians.setdefault(model, {})[name] = statistics.median(each[1:])
    show("One thread, fp32: milliseconds", medians)
    return {"milliseconds": medians, "batch": run.options.batch}


def opened(repository: Path, batch: int) -> list[tuple[tuple[str, str], Callable[[], object]]]:
    """Open each tower with one thread; return model and tower, and what embeds ``batch`` rows."""
    passport = exported_passport(repository)
    generator = np.random.default_rng(0)
    rows: Any = generator.integers(0, 256, (batch, *passport.preprocess["size"], 3), np.uint8)
    found = [("image", version_directory(repository), passport.fingerprint, rows)]
    if (text := passport.text) is not None:
        rows = generator.integers(3, _TOKENS, (batch, text.tokenizer["context_length"]), np.int32)
        found.append(("text", version_directory(repository, DEFAULT_NAMES.text_encoder), text.fingerprint, rows))
    options = session_options(threads=1)
    return [
        ((passport.id, name), partial(checked_vectors, open_session(folder / MODEL_FILE, options), rows, fingerprint))
        for name, folder, fingerprint, rows in found
    ]

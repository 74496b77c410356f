"""How should decoding and the encoder share the server's cores?

Two questions, in a real Triton. How many instances of ``clip_preprocess``, with how many threads each? An instance is a
process: it decodes while another one packs its answers, and it splits the batches. And if the CPU also runs the
encoder: how many threads should decode and how many encode?

All servers run from the start and are loaded in turn, round after round.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiments.serving.ensemble_tax import REQUESTS
from benchmarks.fixtures.null_encoder import write_null_repository
from benchmarks.fixtures.server_setting import variant
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import in_turn
from benchmarks.load.raw_grpc_load import raw_grpc_load
from preprocess_ensemble.contract import ENCODER, ENSEMBLE, PREPROCESSOR

QUESTIONS: Final = ("instances", "encoder")
SPLITS: Final = ((1, 1), (1, 2), (2, 1), (2, 2))
"""(instances, threads of each) of the preprocessor, with a null encoder."""
SHARES: Final = tuple((decoding, encoding) for encoding in (1, 2) for decoding in (1, 2, 4))
"""(decode threads, threads of the encoder)."""


def served(run: Run, repository: Path, *, decoding: int, instances: int = 1, encoding: int | None = None) -> str:
    """Serve ``repository`` with these numbers of threads and of instances of the preprocessor; gives the URL."""

    def change_preprocessor(config: Any) -> None:
        config.instance_group[0].count = instances
        config.parameters["decode_threads"].string_value = str(decoding)

    def change_encoder(config: Any) -> None:
        config.parameters["intra_op_thread_count"].string_value = str(encoding)

    changes = {PREPROCESSOR: change_preprocessor, **({} if encoding is None else {ENCODER: change_encoder})}
    return run.serve(run.stack.enter_context(variant(repository, changes))).grpc_url


def loads(run: Run, question: str) -> dict[tuple[str, str], Callable[[float], float]]:
    """Start all servers of one question; return (setting, kind of request) -> the load."""
    if question == "instances":
        null = write_null_repository(run.scratch / "null", run.passport)
        model, output = PREPROCESSOR, "status"
        urls = {
            f"{count} x {threads} threads": served(run, null, instances=count, decoding=threads)
            for count, threads in SPLITS
        }
    else:
        repository = run.options.repository
        model, output = ENSEMBLE, "embedding"
        urls = {
            f"decode {decoding}, encode {encoding}": served(run, repository, decoding=decoding, encoding=encoding)
            for decoding, encoding in SHARES
        }
    return {
        (setting, kind): raw_grpc_load(url, model, output, run.files, *load)
        for setting, url in urls.items()
        for kind, load in REQUESTS.items()
    }


@experiment(
    REPOSITORY,
    rounds(3),
    seconds(1.5, "per server, kind of request and round"),
    option("--only", choices=QUESTIONS, help="measure one of the two questions"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure both questions, or one."""
    record: dict[str, Any] = {"usable_cores": len(os.sched_getaffinity(0))}
    for question in [run.options.only] if run.options.only else QUESTIONS:
        with run.block():
            rates = in_turn(loads(run, question), run.options.rounds, run.options.seconds)
        settings = dict.fromkeys(setting for setting, _ in rates)
        record[question] = {setting: {kind: rates[setting, kind] for kind in REQUESTS} for setting in settings}
        rows = [(setting, *(f"{np.median(rates[setting, kind]):,.0f}" for kind in REQUESTS)) for setting in settings]
        title = f"{question}: images per second, medians of {run.options.rounds} interleaved rounds"
        show(title, ("", *REQUESTS), rows)
    return record

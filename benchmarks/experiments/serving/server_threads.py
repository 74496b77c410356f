"""How should decoding and the encoder share the server's cores?

Two questions, in a real Triton. How many instances of ``clip_preprocess``, with how many threads each? An instance is a
process: it decodes while another one packs its answers, and it splits the batches. And if the CPU also runs the
encoder: how many threads should decode and how many encode?

All servers run from the start and are loaded in turn, round after round.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.experiments.serving.ensemble_tax import REQUESTS
from benchmarks.fixtures.null_encoder import write_null_repository
from benchmarks.fixtures.repository_variants import variant
from benchmarks.harness.experiment import REPOSITORY, Experiment, Run, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import in_turn
from benchmarks.load.raw_grpc_load import raw_grpc_load

SPLITS: Final = ((1, 1), (1, 2), (2, 1), (2, 2))
"""(instances, threads of each) of the preprocessor, beside a null encoder."""
SHARES: Final = tuple((decoding, encoding) for encoding in (1, 2) for decoding in (1, 2, 4))
"""(decode threads, threads of the encoder)."""


def preprocessor(config: Any, *, instances: int = 1, threads: int) -> None:
    """Set instances and threads in clip_preprocess' configuration."""
    config.instance_group[0].count = instances
    config.parameters["decode_threads"].string_value = str(threads)


def encoder(config: Any, *, threads: int) -> None:
    """Set the number of threads in clip_encoder's configuration."""
    config.parameters["intra_op_thread_count"].string_value = str(threads)


def measure(run: Run) -> dict[str, Any]:
    """Measure both questions, or one."""
    null = write_null_repository(run.scratch / "null", run.passport)
    settings: dict[str, dict[str, Any]] = {
        "instances": {
            f"{instances} x {threads} threads": (
                null,
                partial(preprocessor, instances=instances, threads=threads),
                None,
            )
            for instances, threads in SPLITS
        },
        "encoder": {
            f"decode {decoding}, encode {encoding}": (
                run.options.repository,
                partial(preprocessor, threads=decoding),
                partial(encoder, threads=encoding),
            )
            for decoding, encoding in SHARES
        },
    }
    record: dict[str, Any] = {}
    for question, servers in settings.items():
        if run.options.only in (None, question):
            asked = ("clip_preprocess", "status") if question == "instances" else ("clip_image", "embedding")
            record[question] = _measure_servers(run, servers, *asked)
            rows = [
                (name, *(f"{np.median(rates[kind]):,.0f}" for kind in REQUESTS))
                for name, rates in record[question].items()
            ]
            title = f"{question}: images per second, medians of {run.options.rounds} interleaved rounds"
            show(title, ("", *REQUESTS), rows)
    return {"usable_cores": len(os.sched_getaffinity(0)), **record}


def _measure_servers(run: Run, servers: dict[str, Any], model: str, output: str) -> dict[str, dict[str, list[float]]]:
    """Start all servers; return name -> kind of request -> images per second in each round."""
    loads = {}
    with run.block():
        for name, (repository, first, second) in servers.items():
            changed = run.stack.enter_context(variant(repository, first, "clip_preprocess"))
            if second is not None:
                changed = run.stack.enter_context(variant(changed, second))
            url = run.serve(changed).grpc_url
            for kind, load in REQUESTS.items():
                loads[name, kind] = raw_grpc_load(url, model, output, run.files, *load)
        rates = in_turn(loads, run.options.rounds, run.options.seconds)
    return {name: {kind: rates[name, kind] for kind in REQUESTS} for name in servers}


EXPERIMENT: Final = Experiment(
    "server_threads",
    __doc__,
    measure,
    (
        REPOSITORY,
        rounds(3),
        seconds(1.5, "per server, kind of request and round"),
        option("--only", choices=("instances", "encoder"), help="measure one of the two questions"),
    ),
)

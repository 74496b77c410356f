"""How the cores of a server are shared out: ``python -m benchmarks server_threads``.

Two questions, in a real Triton. How many instances of ``clip_preprocess``, with how many threads each? An instance is a
process: it decodes while another one packs its answers, and it splits the batches. And, where the CPU also runs the
encoder: how many threads to decode and how many to encode, without more of them at work than there are cores?

All servers are up from the start and are loaded in turn, round after round.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.experiments.serving.ensemble_tax import REQUESTS, null_repository
from benchmarks.fixtures.repository_variants import variant
from benchmarks.harness.results import RESULTS, write_result
from benchmarks.load.raw_grpc_load import flood
from preprocess_ensemble.testing.sample_photos import write_thumbnails
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    from collections.abc import Callable

SPLITS: Final = ((1, 1), (1, 2), (2, 1), (2, 2))
"""(instances, threads of each) of the preprocessor, beside a null encoder."""
SHARES: Final = tuple((decoding, encoding) for encoding in (1, 2) for decoding in (1, 2, 4))
"""(decode threads, threads of the encoder)."""


def preprocessor(config: Any, *, instances: int = 1, threads: int) -> None:
    """Set what the first question is about in clip_preprocess' configuration."""
    config.instance_group[0].count = instances
    config.parameters["decode_threads"].string_value = str(threads)


def encoder(config: Any, *, threads: int) -> None:
    """Set the number of threads in clip_encoder's configuration."""
    config.parameters["intra_op_thread_count"].string_value = str(threads)


def rounds_in_turn(
    systems: dict[str, dict[str, Callable[[float], float]]], rounds: int, seconds: float
) -> dict[str, dict[str, list[float]]]:
    """Name of a server -> kind of request -> images a second, one for each round."""
    rates: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in kinds} for name, kinds in systems.items()}
    for number in range(rounds + 1):
        for name, kinds in systems.items():
            for kind, load in kinds.items():
                rate = load(seconds if number else 0.5)
                if number:  # the first round warms up
                    rates[name][kind].append(rate)
    return rates


def main() -> None:
    """Measure, print the tables, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="per server, kind of request and round")
    parser.add_argument("--only", choices=("instances", "encoder"), help="one of the two questions")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        photos = Path(directory) / "photos"
        photos.mkdir()
        write_thumbnails(photos)
        files = [path.read_bytes() for path in sorted(photos.iterdir())]
        null = null_repository(Path(directory) / "null", arguments.repository)
        if arguments.only != "encoder":
            with ExitStack() as stack:
                systems = {}
                for instances, threads in SPLITS:
                    change = partial(preprocessor, instances=instances, threads=threads)
                    changed = stack.enter_context(variant(null, change, "clip_preprocess"))
                    url = stack.enter_context(serving(changed, *QUIET)).grpc_url
                    systems[f"{instances} x {threads} threads"] = {
                        kind: flood(url, "clip_preprocess", "status", files, *load) for kind, load in REQUESTS.items()
                    }
                record["instances"] = rounds_in_turn(systems, arguments.rounds, arguments.seconds)
        if arguments.only != "instances":
            with ExitStack() as stack:
                systems = {}
                for decoding, encoding in SHARES:
                    half = stack.enter_context(
                        variant(arguments.repository, partial(preprocessor, threads=decoding), "clip_preprocess")
                    )
                    changed = stack.enter_context(variant(half, partial(encoder, threads=encoding)))
                    url = stack.enter_context(serving(changed, *QUIET)).grpc_url
                    systems[f"decode {decoding}, encode {encoding}"] = {
                        kind: flood(url, "clip_image", "embedding", files, *load) for kind, load in REQUESTS.items()
                    }
                record["encoder"] = rounds_in_turn(systems, arguments.rounds, arguments.seconds)
    for question, rates in record.items():
        table = Table("", *REQUESTS, title=f"{question}: images/s, medians of {arguments.rounds} rounds in turn")
        for name, kinds in rates.items():
            table.add_row(name, *(f"{np.median(kinds[kind]):,.0f}" for kind in REQUESTS))
        Console().print(table)
    cores = len(os.sched_getaffinity(0))
    print(f"kept in {write_result('server_threads', {'usable_cores': cores, **record}, arguments.results)}")


if __name__ == "__main__":
    main()

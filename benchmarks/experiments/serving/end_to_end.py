"""Images per second through the whole ensemble, beside what it is made of: ``python -m benchmarks end_to_end``.

The question: what does serving cost? A bare ONNX Runtime session that is fed ready pixels is the ceiling; open_clip's
batched PyTorch loop, which decodes too, is what most people run today. All embed the same 256-pixel JPEG files, one
round after another in one run, and all vectors are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.results import RESULTS, write_result
from benchmarks.harness.rounds import cosine_to_first, interleave, spread
from benchmarks.harness.worker import Worker
from preprocess_ensemble.testing.sample_photos import write_thumbnails
from preprocess_ensemble.testing.server import QUIET, serving

CONCURRENCIES: Final = (1, 8, 32)
SYSTEMS: Final = {"session": "ONNX Runtime, ready pixels", "pytorch": "open_clip, PyTorch loop", "ensemble": "ensemble"}
LEAST_COSINE: Final = 0.999999
"""All systems run the same fp32 weights on the same pixels; less than this means that they do not do the same work."""


def _worker(system: str, size: int, url: str) -> tuple[str, ...]:
    if system == "ensemble":
        return ("benchmarks.load.worker", "client", "--url", url, "--concurrency", str(size))
    return ("benchmarks.peers.in_process", system, "--batch", str(size))


def main() -> None:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="per system and round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()

    with ExitStack() as stack:
        photos = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_thumbnails(photos)
        server = stack.enter_context(serving(arguments.repository, *QUIET))
        common = ("--photos", str(photos), "--repository", str(arguments.repository))
        workers = [
            stack.enter_context(Worker(f"{system} {size}", *_worker(system, size, server.grpc_url), *common))
            for size in CONCURRENCIES
            for system in SYSTEMS
        ]
        cosine = min(cosine_to_first({worker.name: worker.ready["vectors"] for worker in workers}).values())
        if cosine < LEAST_COSINE:
            sys.exit(f"the systems do not agree: least cosine {cosine:.7f}, at least {LEAST_COSINE} expected")
        runs = interleave(workers, rounds=arguments.rounds, seconds=arguments.seconds)
        model = (server.repository / "clip_encoder" / "1" / "model.json").read_text()

    table = Table(title=f"Images per second, median of {arguments.rounds} interleaved rounds")
    for heading in ("concurrency or batch", *SYSTEMS.values(), "ensemble / session", "p50, p95 of ensemble"):
        table.add_column(heading, justify="right")
    summary = {}
    for concurrency in CONCURRENCIES:
        rates = {system: [run["rate"] for run in runs[f"{system} {concurrency}"]] for system in SYSTEMS}
        # The ratio is taken within each round, where both met the same machine.
        ratios = [ours / bare for ours, bare in zip(rates["ensemble"], rates["session"], strict=True)]
        latency = [run["latency_ms"] for run in runs[f"ensemble {concurrency}"]]
        p50, p95 = (float(np.median([one[name] for one in latency])) for name in ("p50", "p95"))
        summary[concurrency] = {
            "images_per_second": {system: spread(values) for system, values in rates.items()},
            "ensemble_to_session": spread(ratios),
            "ensemble_latency_ms": {"p50": p50, "p95": p95},
        }
        medians = (f"{np.median(values):.1f}" for values in rates.values())
        table.add_row(str(concurrency), *medians, f"{np.median(ratios):.3f}", f"{p50:.0f} ms, {p95:.0f} ms")
    Console().print(table)
    path = write_result(
        "end_to_end",
        {"model_json": model, "least_cosine": cosine, "summary": summary, "runs": runs},
        arguments.results,
    )
    print(f"kept in {path}")


if __name__ == "__main__":
    main()

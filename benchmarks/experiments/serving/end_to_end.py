"""What does serving cost, compared with bare inference?

A bare ONNX Runtime session on ready pixels is the ceiling; open_clip's batched PyTorch loop, which decodes too, is what
most people run today. All embed the same 256-pixel JPEG files, one round after another in one run. All vectors are
compared before anything is timed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from benchmarks.harness.experiment import REPOSITORY, Experiment, Run, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import cosine_to_first, interleave, median_of, spread

CONCURRENCIES: Final = (1, 8, 32)
SYSTEMS: Final = {"session": "ONNX Runtime, ready pixels", "pytorch": "open_clip, PyTorch loop", "ensemble": "ensemble"}
LEAST_COSINE: Final = 0.999999
"""All systems run the same fp32 weights on the same pixels; less than this means that they do not do the same work."""


def measure(run: Run) -> dict[str, Any]:
    """Measure all systems in turn."""
    server = run.serve()
    workers = []
    for size in CONCURRENCIES:
        for system in SYSTEMS:
            name = f"{system} {size}"
            if system == "ensemble":
                workers.append(run.load("client", server.grpc_url, "--concurrency", str(size), name=name))
            else:
                in_process = ("benchmarks.peers.in_process", system, "--batch", str(size))
                workers.append(run.worker(name, *in_process, *run.common))
    cosine = min(cosine_to_first({worker.name: worker.ready["vectors"] for worker in workers}).values())
    if cosine < LEAST_COSINE:
        raise SystemExit(f"the systems do not agree: least cosine {cosine:.7f}, at least {LEAST_COSINE} expected")
    runs = interleave(workers, rounds=run.options.rounds, seconds=run.options.seconds)

    summary = {}
    rows = []
    for concurrency in CONCURRENCIES:
        rates = {system: [one["rate"] for one in runs[f"{system} {concurrency}"]] for system in SYSTEMS}
        # The ratio is taken within each round, in which both met the same machine.
        ratios = [ours / bare for ours, bare in zip(rates["ensemble"], rates["session"], strict=True)]
        latency = [one["latency_ms"] for one in runs[f"ensemble {concurrency}"]]
        p50, p95 = (median_of(latency, name) for name in ("p50", "p95"))
        summary[concurrency] = {
            "images_per_second": {system: spread(values) for system, values in rates.items()},
            "ensemble_to_session": spread(ratios),
            "ensemble_latency_ms": {"p50": p50, "p95": p95},
        }
        medians = (f"{np.median(values):.1f}" for values in rates.values())
        rows.append((str(concurrency), *medians, f"{np.median(ratios):.3f}", f"{p50:.0f} ms, {p95:.0f} ms"))
    headings = ("concurrency or batch", *SYSTEMS.values(), "ensemble / session", "p50, p95 of ensemble")
    show(f"Images per second, median of {run.options.rounds} interleaved rounds", headings, rows)
    return {"model_json": run.passport.to_json(), "least_cosine": cosine, "summary": summary, "runs": runs}


EXPERIMENT: Final = Experiment(
    "end_to_end", __doc__, measure, (REPOSITORY, rounds(4), seconds(6.0, "per system and round"))
)

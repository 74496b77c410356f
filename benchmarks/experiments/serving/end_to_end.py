"""What does serving cost, compared with bare inference?

A bare ONNX Runtime session on ready pixels is the upper limit; open_clip's batched PyTorch loop, which decodes too, is
what most people run today. All embed the same 256-pixel JPEG files, in turn in every round. All vectors are compared
before anything is timed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import cosine_to_first, median_of, ratios, spread

CONCURRENCIES: Final = (1, 8, 32)
SYSTEMS: Final = {"session": "ONNX Runtime, ready pixels", "pytorch": "open_clip, PyTorch loop", "ensemble": "ensemble"}
ADAPTERS: Final = {"session": "session", "pytorch": "pytorch", "ensemble": "client"}
COUNTED: Final = {"session": "rows", "pytorch": "rows", "ensemble": "concurrency"}
"""System -> what the size stands for: images in a batch, or callers with one image each."""
LEAST_COSINE: Final = 0.999999
"""All systems run the same fp32 weights on the same pixels; less than this means that they do not do the same work."""


@experiment(REPOSITORY, MODEL, rounds(4), seconds(6.0, "per system and round"))
def measure(run: Run) -> dict[str, Any]:
    """Measure all systems in turn."""
    url = run.serve(None, "--precision", "fp32").grpc_url
    workers = {system: run.load(ADAPTERS[system], url, name=system) for system in SYSTEMS}
    cosine = min(cosine_to_first({name: worker.ready["vectors"] for name, worker in workers.items()}).values())
    if cosine < LEAST_COSINE:
        raise SystemExit(f"the systems do not agree: least cosine {cosine:.7f}, at least {LEAST_COSINE} expected")
    found = run.in_rounds(
        {
            f"{system} {size}": partial(worker.ask, {"seconds": run.options.seconds, COUNTED[system]: size})
            for size in CONCURRENCIES
            for system, worker in workers.items()
        }
    )
    summary = {}
    rows = []
    for size in CONCURRENCIES:
        ratio = spread(ratios(found[f"ensemble {size}"], found[f"session {size}"]))
        latencies = [one["latency_ms"] for one in found[f"ensemble {size}"]]
        p50, p95 = (median_of(latencies, name) for name in ("p50", "p95"))
        spreads = {system: spread([one["rate"] for one in found[f"{system} {size}"]]) for system in SYSTEMS}
        summary[size] = {
            "images_per_second": spreads,
            "ensemble_to_session": ratio,
            "ensemble_latency_ms": {"p50": p50, "p95": p95},
        }
        medians = (f"{one['median']:.1f}" for one in spreads.values())
        rows.append((str(size), *medians, f"{ratio['median']:.3f}", f"{p50:.0f} ms, {p95:.0f} ms"))
    headings = ("concurrency or batch", *SYSTEMS.values(), "ensemble / session", "p50, p95 of ensemble")
    show(f"Images per second, median of {run.options.rounds} interleaved rounds", headings, rows)
    return {"model_json": run.passport.to_json(), "least_cosine": cosine, "summary": summary}

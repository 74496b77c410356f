"""Triton's own counters of its time, and their growth between two readings."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from tritonclient.grpc import InferenceServerClient

_TIMES: Final = ("total", "queue", "compute_input", "compute_infer", "compute_output")
"""Triton's names of times: from the arrival of a request to its answer, and its stages inside a model."""

Counters = Counter[str | int]
"""``requests`` and ``runs``, nanoseconds of all requests by _TIMES, and runs by their number of images."""


def statistics(url: str) -> dict[str, Counters]:
    """Model name -> counters of the Triton at this gRPC address, which must run with ``--open-statistics``."""
    with InferenceServerClient(url) as client:
        models = client.get_inference_statistics().model_stats
    found: dict[str, Counters] = {}
    for model in models:
        success = model.inference_stats.success
        counters = found[model.name] = Counter()
        counters.update({"requests": success.count, "runs": model.execution_count, "total": success.ns})
        counters.update({stage: getattr(model.inference_stats, stage).ns for stage in _TIMES[1:]})
        counters.update({batch.batch_size: batch.compute_infer.count for batch in model.batch_stats})
    return found


def growth(before: Counters, after: Counters) -> dict[str, Any]:
    """What was counted between two readings; ``share_batched`` of the images shared a run with others."""
    grown = after - before
    sizes = {size: runs for size, runs in grown.items() if isinstance(size, int)}
    rows = sum(size * runs for size, runs in sizes.items())
    return {
        "requests": grown["requests"],
        "runs": grown["runs"],
        "batches": {str(size): sizes[size] for size in sorted(sizes)},
        "mean_ms": {name: grown[name] / grown["requests"] / 1e6 for name in _TIMES if grown[name]},
        "share_batched": 1 - sizes.get(1, 0) / rows if rows else 0.0,
    }

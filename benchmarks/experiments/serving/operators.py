"""Which operators of the model take its time?

Runs ONNX Runtime's profiler on the exported encoder, by batch size: time by operator, nodes by provider, which of them
fell back to the CPU, and whether attention runs as one fused node.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.fixtures.repositories import device, preprocessing
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option
from benchmarks.harness.results import show
from preprocess_ensemble.model_repository.config import version_directory
from preprocess_ensemble.runtimes.onnx_session import CPU, CUDA, open_session, session_options

_FUSED: Final = frozenset({"Attention", "MultiHeadAttention", "PackedMultiHeadAttention"})


def profile(model: Path, weights: str, size: tuple[int, int], batch: int, runs: int, scratch: Path) -> dict[str, Any]:
    """Run ``model`` on seeded pixels; the first run, which allocates, does not count."""
    options, providers = session_options(weights_dtype=weights), [CUDA, CPU] if device() == "cuda" else [CPU]
    options.enable_profiling, options.profile_file_prefix = True, str(scratch / f"batch-{batch}")
    session = open_session(model, options, providers)
    pixels = np.random.default_rng(1).integers(0, 256, (batch, *size, 3), np.uint8)
    for _ in range(runs + 1):
        session.run(["embedding"], {"pixels": pixels, "status": np.zeros((batch, 1), np.int32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    first_end = min(event["ts"] + event["dur"] for event in events if event["name"] == "model_run")
    kernels = [
        event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
        and event["ts"] >= first_end
    ]  # fmt: skip
    time_us: Counter[str] = Counter()
    nodes: dict[str, set[str]] = {}
    for event in kernels:
        time_us[event["args"]["op_name"]] += event["dur"]
        nodes.setdefault(event["args"]["provider"], set()).add(event["name"])
    fallbacks = {one["args"]["op_name"] for one in kernels if one["args"]["provider"] != providers[0]}
    total_us = time_us.total()
    return {
        "total_ms": total_us / runs / 1e3,
        "operators": {name: {"ms": us / runs / 1e3, "share": us / total_us} for name, us in time_us.most_common()},
        "nodes_by_provider": {provider: len(names) for provider, names in nodes.items()},
        "cpu_fallbacks": sorted(fallbacks),
        "fused_attention": sorted(_FUSED & time_us.keys()),
    }


@experiment(
    REPOSITORY,
    option("--batch", type=int, nargs="+", default=[1, 32], help="batch sizes"),
    option("--runs", type=int, default=10, help="of each batch size"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    model, size = version_directory(options.repository) / "model.onnx", preprocessing(options.repository).size
    summary = {
        str(batch): profile(model, run.passport.weights_dtype, size, batch, options.runs, run.scratch)
        for batch in options.batch
    }
    for batch, found in summary.items():
        title = f"Batch {batch}: {found['total_ms']:.1f} ms a run, nodes {found['nodes_by_provider']}"
        show(title, dict([*found["operators"].items()][:8]))
    return {"model": run.passport.id, "device": device(), "summary": summary}

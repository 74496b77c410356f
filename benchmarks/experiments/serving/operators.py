"""Which operators of the model take its time?

Runs ONNX Runtime's profiler on the exported model, by batch size: time by kind of node, nodes by provider, which nodes
fell back to the CPU, and whether attention runs as one fused node.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf import json_format

from benchmarks.experiments.serving import peak_throughput
from benchmarks.fixtures.server_setting import ServerSetting, session_options
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option
from benchmarks.harness.results import show
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.model_repository.config import encoder_directory, read_config

if TYPE_CHECKING:
    from preprocess_ensemble.backends.onnxruntime.session_plan import SessionPlan

FUSED_ATTENTION: Final = frozenset({"Attention", "MultiHeadAttention", "PackedMultiHeadAttention", "FlashAttention"})
FLOP_PER_IMAGE: Final = 8.82e9
"""ViT-B-32 at 224 pixels, multiplications and additions of the image tower counted apart."""
EXPORTED: Final = 1 - 2 * 49 * (10 * 768**2 + 2 * 50 * 768) / FLOP_PER_IMAGE
"""Share of them that an exported ViT-B-32 computes: in the last block, 49 of 50 tokens of width 768 have no query, no
projection, no MLP (10 squares of the width) and no row of attention; keys and values are of all."""


def summarise(events: Iterable[Mapping[str, Any]], runs: int, wanted: str) -> dict[str, Any]:
    """Milliseconds a run by kind of node, nodes by provider and the rest, from ONNX Runtime's profile."""
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    time_us: Counter[str] = Counter()
    providers: dict[str, set[str]] = {}
    fallbacks = set()
    for event in kernels:
        kind, provider = event["args"]["op_name"], event["args"]["provider"]
        time_us[kind] += event["dur"]
        providers.setdefault(provider, set()).add(event["name"])
        if wanted != "CPUExecutionProvider" and provider == "CPUExecutionProvider":
            fallbacks.add(kind)
    total = sum(time_us.values())
    return {
        "total_ms": total / runs / 1e3,
        "operators": [
            {"operator": kind, "ms": us / runs / 1e3, "share": us / total} for kind, us in time_us.most_common()
        ],
        "nodes_by_provider": {provider: len(nodes) for provider, nodes in providers.items()},
        "cpu_fallbacks": sorted(fallbacks),
        "fused_attention": sorted(FUSED_ATTENTION & time_us.keys()),
    }


def profile(model: Path, size: int, batch: int, runs: int, plan: SessionPlan) -> dict[str, Any]:
    """Run ``model`` by ``plan``, as the server would, with seeded pixels; the first run is outside the count.

    Raises what the server's backend raises.
    """
    from preprocess_ensemble.backends.onnxruntime.session import open_session

    with tempfile.TemporaryDirectory() as scratch:
        plan.options.enable_profiling = True
        plan.options.profile_file_prefix = str(Path(scratch) / "profile")
        session = open_session(model, plan)
        pixels = np.random.default_rng(1).integers(0, 256, (batch, size, size, 3), np.uint8)
        inputs = {"pixels": pixels, "status": np.zeros((batch, 1), np.int32)}
        for _ in range(runs + 1):
            session.run(["embedding"], inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    # The first run allocates; each run is marked by one event of the session.
    ends = [event["ts"] + event["dur"] for event in events if event["name"] == "model_run"]
    return summarise((event for event in events if event.get("ts", 0) >= ends[0]), runs, plan.providers[0].name)


def served_plan(repository: Path, setting: ServerSetting) -> SessionPlan:
    """How the server's backend opens the encoder of ``repository`` with ``setting``, whose device must be given."""
    from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session

    config = read_config(repository / ENCODER / "config.pbtxt")
    setting.change_encoder(config)
    described = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return plan_session(described, kind="GPU" if setting.device == "cuda" else "CPU", device_id=0)


@experiment(
    REPOSITORY,
    option("--batch", type=int, nargs="+", default=[1, 32], help="batch sizes (default: 1 and 32)"),
    option("--runs", type=int, default=10, help="of each batch size"),
    *session_options(device="cpu"),
    option("--peak-seconds", "--roof-seconds", type=float, default=2.0, help="for the machine's peak throughput alone"),
)
def measure(run: Run) -> dict[str, Any]:
    """Profile every batch size."""
    options, passport = run.options, run.passport
    model = encoder_directory(options.repository) / "model.onnx"
    setting = ServerSetting.from_arguments(options)
    size = passport.preprocess["size"][0]
    summary = {
        str(batch): profile(model, size, batch, options.runs, served_plan(options.repository, setting))
        for batch in options.batch
    }
    peak = peak_throughput.peaks(run.scratch, options.device, options.peak_seconds)
    for batch, found in summary.items():
        title = f"Batch {batch}: {found['total_ms']:.1f} ms per run"
        if passport.model == "ViT-B-32":
            title += f", {FLOP_PER_IMAGE * int(batch) / found['total_ms'] / 1e6:.0f} GFLOP/s"
        rows = [(row["operator"], f"{row['ms']:.2f}", f"{row['share']:.1%}") for row in found["operators"][:8]]
        show(title, ("operator", "ms", "share"), rows)
        print(f"nodes: {found['nodes_by_provider']}; fell back to the CPU: {found['cpu_fallbacks'] or 'none'}; ")
        print(f"attention: {', '.join(found['fused_attention']) or 'not fused'}\n")
    for kind, rate in peak["product_gflops"].items():
        print(f"bare matrix products, {kind}: best {rate['best']:,.0f} GFLOP/s, median {rate['median']:,.0f} GFLOP/s")
    print(f"memory, read and written: {peak['memory_gb_s']['best']:,.1f} GB/s")
    return {"model": passport.id, "precision": passport.precision, "summary": summary, "roofs": peak}

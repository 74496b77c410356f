"""How long does one run of the encoder take, by batch size?

One session without a server, opened by the backend's own code: start, canary, then each batch size. ``latency`` is a
run with its copies to the device and back; ``kernels`` is the run alone, on inputs that are on the device already.
Decoding, queues and sockets are not included.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.experiments.serving.operators import served_plan
from benchmarks.fixtures.server_setting import ServerSetting, session_options
from benchmarks.harness.experiment import REPOSITORY, Experiment, Run, option, seconds
from benchmarks.harness.gpu_meter import GpuMeter
from benchmarks.harness.rounds import percentiles
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import encoder_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from preprocess_ensemble.model_repository.passport import Passport

WARM_UP_RUNS: Final = 3
LEAST_RUNS: Final = 3
MOST_RUNS: Final = 2000
_OWN_GRAPHS: Final = 10_000
"""CUDA graphs of this module are numbered from here; the runner numbers its own by rows."""


def measure_session(
    repository: Path, passport: Passport, setting: ServerSetting, batches: Sequence[int], seconds: float
) -> dict[str, Any]:
    """Load, check the canary, and time each batch size for about ``seconds``. Raises what the backend raises."""
    start = time.perf_counter()
    from preprocess_ensemble.backends.onnxruntime.batch import Runner
    from preprocess_ensemble.backends.onnxruntime.session import open_session
    from preprocess_ensemble.backends.onnxruntime.signature import read_signature

    plan = served_plan(repository, setting)
    session = open_session(encoder_directory(repository) / "model.onnx", plan)
    runner = Runner(session, read_signature(session), plan)
    runner.prepare()
    preprocessing = PreprocessConfig.from_mapping(passport.preprocess)
    pixels = preprocess(decode(passport.canary.image), preprocessing)[None]  # (1, H, W, 3)
    vector = runner.run([_request(pixels)], ["embedding"])["embedding"][0]
    ready_s = time.perf_counter() - start
    known = np.asarray(passport.canary.vector)
    summary: dict[str, Any] = {
        "ready_s": ready_s,
        "providers": session.get_providers(),
        "provider_options": session.get_provider_options(),
        "buckets": plan.buckets,
        "canary_cosine": float(vector @ known / np.linalg.norm(vector) / np.linalg.norm(known)),
        "batches": {},
    }
    random = np.random.default_rng(1)
    for rows in batches:
        request = _request(random.integers(0, 256, (rows, *preprocessing.size, 3), np.uint8))
        latencies = _timed(lambda request=request: runner.run([request], ["embedding"]), seconds)  # type: ignore[misc]
        # A graph of its own, because its addresses differ from the runner's; -1 means no graph.
        graph = str(_OWN_GRAPHS + rows) if plan.graphs else "-1"
        kernels = _timed(_kernels(session, request, str(setting.device), graph), seconds / 2)
        p50 = percentiles(latencies)["p50"]
        summary["batches"][str(rows)] = {
            "latency_ms": percentiles(latencies),
            "kernels_ms": percentiles(kernels),
            "runs": len(latencies),
            "rate": 1e3 * rows / p50,
        }
    return summary


def _request(pixels: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"pixels": pixels, "status": np.zeros((len(pixels), 1), np.int32)}


def _kernels(session: Any, request: dict[str, Any], device: str, graph: str) -> Callable[[], None]:
    """A run whose inputs are on the device already, and whose outputs stay there."""
    import onnxruntime

    binding = session.io_binding()
    rows = len(request["status"])
    for name, array in request.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0))
    for output in session.get_outputs():
        kind = {"tensor(float)": np.float32, "tensor(int32)": np.int32}[output.type]
        shape = [rows, output.shape[1]]
        binding.bind_ortvalue_output(
            output.name, onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, kind, device, 0)
        )
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", graph)

    def run() -> None:
        session.run_with_iobinding(binding, options)

    return run


def _timed(run: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of each run, after the warm-up."""
    for _ in range(WARM_UP_RUNS):
        run()
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    while len(latencies) < LEAST_RUNS or (time.perf_counter() < end and len(latencies) < MOST_RUNS):
        start = time.perf_counter()
        run()
        latencies.append(1e3 * (time.perf_counter() - start))
    return latencies


def measure(run: Run) -> dict[str, Any]:
    """Measure one session."""
    options = run.options
    setting = ServerSetting.from_arguments(options)
    with GpuMeter() as meter:
        summary = measure_session(options.repository, run.passport, setting, options.batch, options.seconds)
    summary |= {"setting": asdict(setting), "precision": run.passport.precision, "gpu": meter.report(0)}
    for rows, point in summary["batches"].items():
        latency, kernels = point["latency_ms"]["p50"], point["kernels_ms"]["p50"]
        print(f"batch {rows:>3}: {latency:8.2f} ms, kernels alone {kernels:8.2f} ms, {point['rate']:8.1f} images/s")
    return {"model": run.passport.id, "summary": summary}


EXPERIMENT: Final = Experiment(
    "session_latency",
    __doc__,
    measure,
    (
        REPOSITORY,
        option("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="batch sizes"),
        seconds(1.0, "of each batch size"),
        *session_options(device="cpu"),
    ),
)

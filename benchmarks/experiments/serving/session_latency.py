"""How long does one run of the encoder take, by batch size?

One session without a server, opened by the backend's own code: start, canary, then each batch size. ``latency`` is a
run with its copies to the device and back; ``kernels`` is the run alone, on inputs that are on the device already.
Decoding, queues and sockets are not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.experiments.serving.operators import served_plan
from benchmarks.experiments.serving.peak_throughput import bound_run, timed
from benchmarks.fixtures.bare_encoder import exact_pixels, preprocessing
from benchmarks.fixtures.server_setting import ServerSetting, session_options
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, seconds
from benchmarks.harness.meters import GpuMeter
from benchmarks.harness.rounds import percentiles
from preprocess_ensemble.model_repository.config import encoder_directory

DTYPES: Final = {"tensor(float)": np.float32, "tensor(int32)": np.int32}
"""ONNX Runtime's names."""
_OWN_GRAPHS: Final = 10_000
"""CUDA graphs of this module are numbered from here; the runner numbers its own by rows."""


def _request(pixels: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"pixels": pixels, "status": np.zeros((len(pixels), 1), np.int32)}


def _milliseconds(run: Callable[[], object], seconds: float) -> list[float]:
    return [1e3 * time_s for time_s in timed(run, seconds, warm_up=3, least=3, most=2000)]


@experiment(
    REPOSITORY,
    option("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="batch sizes"),
    seconds(1.0, "of each batch size"),
    *session_options(device="cpu"),
)
def measure(run: Run) -> dict[str, Any]:
    """Load, check the canary, and time each batch size. Raises what the backend raises."""
    options, canary = run.options, run.passport.canary
    setting = ServerSetting.from_arguments(options)
    with GpuMeter.running() as meter:
        start = time.perf_counter()
        from preprocess_ensemble.backends.onnxruntime.batch import Runner
        from preprocess_ensemble.backends.onnxruntime.session import open_session
        from preprocess_ensemble.backends.onnxruntime.signature import read_signature

        plan = served_plan(options.repository, setting)
        session = open_session(encoder_directory(options.repository) / "model.onnx", plan)
        runner = Runner(session, read_signature(session), plan)
        runner.prepare()
        config = preprocessing(options.repository)
        pixels = exact_pixels([canary.image], config)
        vector = runner.run([_request(pixels)], ["embedding"])["embedding"][0]
        ready_s = time.perf_counter() - start
        known = np.asarray(canary.vector)
        summary: dict[str, Any] = {
            "ready_s": ready_s,
            "providers": session.get_providers(),
            "provider_options": session.get_provider_options(),
            "buckets": plan.buckets,
            "canary_cosine": float(vector @ known / np.linalg.norm(vector) / np.linalg.norm(known)),
            "batches": {},
        }
        random = np.random.default_rng(1)
        outputs = [(output.name, output.shape[1], DTYPES[output.type]) for output in session.get_outputs()]
        for rows in options.batch:
            request = _request(random.integers(0, 256, (rows, *config.size, 3), np.uint8))
            # A graph of its own, because its addresses differ from the runner's.
            graph = str(_OWN_GRAPHS + rows) if plan.graphs else "-1"
            shapes = {name: ((rows, width), dtype) for name, width, dtype in outputs}
            alone, _ = bound_run(session, request, shapes, str(setting.device), graph=graph)
            latencies = _milliseconds(partial(runner.run, [request], ["embedding"]), options.seconds)
            latency, kernels = percentiles(latencies), percentiles(_milliseconds(alone, options.seconds / 2))
            rate = 1e3 * rows / latency["p50"]
            figures = {"latency_ms": latency, "kernels_ms": kernels, "runs": len(latencies), "rate": rate}
            summary["batches"][str(rows)] = figures
            times = f"{latency['p50']:8.2f} ms, kernels alone {kernels['p50']:8.2f} ms"
            print(f"batch {rows:>3}: {times}, {rate:8.1f} images/s")
    summary |= {"setting": asdict(setting), "precision": run.passport.precision, "gpu": meter.report(0)}
    return {"model": run.passport.id, "summary": summary}

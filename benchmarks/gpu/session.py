"""One session on the card, through the backend's own code, in a process of its own that prints one line of JSON.

What the server adds (decoding, queues, sockets) is not in it. ``latency`` is a run with its copies to the device and
back; ``kernels`` is the run alone, on inputs that lie on the device.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.experiments.serving.operators import profile, served_plan
from benchmarks.gpu.settings import Setting
from benchmarks.harness.rounds import percentiles
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import encoder_directory, installed_passport, read_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preprocess_ensemble.backends.onnxruntime.session_plan import SessionPlan

_OWN_GRAPHS: Final = 10_000
"""Numbers of CUDA graphs from here on are this module's; the runner numbers its own by rows."""


def measure(
    setting: Setting, repository: Path, device: str, batches: Sequence[int], seconds: float, most_runs: int = 2000
) -> dict[str, Any]:
    """Load, check the canary and time each batch size for about ``seconds``; raises what the backend raises."""
    begun = time.perf_counter()
    from preprocess_ensemble.backends.onnxruntime.batch import Runner
    from preprocess_ensemble.backends.onnxruntime.session import open_session
    from preprocess_ensemble.backends.onnxruntime.signature import read_signature

    plan = plan_of(setting, repository, device)
    session = open_session(encoder_directory(repository) / "model.onnx", plan)
    runner = Runner(session, read_signature(session), plan)
    runner.prepare()
    passport = installed_passport(repository)
    assert passport is not None
    preprocessing = PreprocessConfig.from_mapping(passport.preprocess)
    pixels = preprocess(decode(passport.canary.image), preprocessing)[None]  # (1, H, W, 3)
    vector = runner.run([_request(pixels)], ["embedding"])["embedding"][0]
    ready_s = time.perf_counter() - begun
    known = np.asarray(passport.canary.vector)
    result: dict[str, Any] = {
        "ready_s": ready_s,
        "providers": session.get_providers(),
        "provider_options": session.get_provider_options(),
        "buckets": plan.buckets,
        "canary_cosine": float(vector @ known / np.linalg.norm(vector) / np.linalg.norm(known)),
        "batches": {},
    }
    random = np.random.default_rng(1)
    for rows in batches:
        if rows > setting.max_batch_size:
            continue
        images = random.integers(0, 256, (rows, *preprocessing.size, 3), np.uint8)
        request = _request(images)
        latencies = _timed(lambda request=request: runner.run([request], ["embedding"]), seconds, most_runs)  # type: ignore[misc]
        # A graph of its own, since its addresses are others than the runner's; -1 is none.
        graph = str(_OWN_GRAPHS + rows) if plan.graphs else "-1"
        kernels = _timed(_kernels(session, request, device, graph), seconds / 2, most_runs)
        p50 = percentiles(latencies)["p50"]
        result["batches"][str(rows)] = {
            "latency_ms": percentiles(latencies),
            "kernels_ms": percentiles(kernels),
            "runs": len(latencies),
            "rate": 1e3 * rows / p50,
        }
    return result


def plan_of(setting: Setting, repository: Path, device: str) -> SessionPlan:
    """How the server would open the encoder of ``repository`` with ``setting`` on ``cuda`` or ``cpu``."""
    config = read_config(repository / ENCODER / "config.pbtxt")
    setting.change_encoder(config, device)
    return served_plan(config, "GPU" if device == "cuda" else "CPU")


def profiled(setting: Setting, repository: Path, device: str, rows: int, runs: int) -> dict[str, Any]:
    """ONNX Runtime's own profile of the session that the server would open; see ``operators``."""
    passport = installed_passport(repository)
    assert passport is not None
    model = encoder_directory(repository) / "model.onnx"
    return profile(model, passport.preprocess["size"][0], rows, runs, plan_of(setting, repository, device))


def _request(pixels: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"pixels": pixels, "status": np.zeros((len(pixels), 1), np.int32)}


def _kernels(session: Any, request: dict[str, Any], device: str, graph: str) -> Callable[[], None]:
    """A run on inputs that are on the device already, and outputs that stay there."""
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


def _timed(run: Callable[[], object], seconds: float, most_runs: int) -> list[float]:
    """Milliseconds of each run, after three that do not count."""
    for _ in range(3):
        run()
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    while len(latencies) < 3 or (time.perf_counter() < end and len(latencies) < most_runs):
        then = time.perf_counter()
        run()
        latencies.append(1e3 * (time.perf_counter() - then))
    return latencies


def main() -> None:
    """Measure one setting and print it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("setting", help="fields of a Setting as JSON")
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one batch size (default: %(default)s)")
    parser.add_argument("--profile-runs", type=int, metavar="N", help="profile N runs of the first batch size instead")
    arguments = parser.parse_args()
    setting = Setting(**json.loads(arguments.setting))
    where = (setting, arguments.repository, arguments.device)
    if arguments.profile_runs:
        result = profiled(*where, arguments.batches[0], arguments.profile_runs)
    else:
        result = measure(*where, arguments.batches, arguments.seconds)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

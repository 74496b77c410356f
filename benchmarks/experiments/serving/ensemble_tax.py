"""How much slower is the ensemble than its two steps alone?

Two ratios. First: the rate of the preprocessing step inside Triton over that of bare threads on the same cores. Second:
the rate of the ensemble over the harmonic bound ``1 / (1 / preprocess + 1 / encoder)``, which two steps that share the
cores can reach. The first step is asked for ``status`` only, so that no pixels travel to the client. The encoder is a
bare ONNX Runtime session in this process, which is the strictest bound: once a null encoder, a graph that reads
``status`` only, and once the exported model.

Client and server share the cores. All systems run in turn, round after round.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.fixtures.bare_encoder import bare_encoder, preprocessing
from benchmarks.fixtures.null_encoder import write_null_repository
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import in_turn, spread
from benchmarks.load.loops import repeat
from benchmarks.load.raw_grpc_load import raw_grpc_load
from preprocess_ensemble.contract import ENSEMBLE, PREPROCESSOR
from preprocess_ensemble.imaging.preprocessor import Preprocessor

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.transform import PreprocessConfig

Load = Callable[[float], float]

REQUESTS: Final = {"32 images a request": (32, 3), "1 image a request": (1, 64)}
"""Name -> images per request, requests in flight."""


def bare_threads(files: list[bytes], config: PreprocessConfig) -> Load:
    """Decode and transform in this process."""
    preprocessor = Preprocessor(config)
    return lambda seconds: repeat(lambda: len(preprocessor.run([files])[0]), seconds)["rate"]


def bare_session(repository: Path, pixels: Any) -> Load:
    """ONNX Runtime alone, on ready pixels."""
    encode = bare_encoder(repository)
    return lambda seconds: repeat(lambda: len(encode(pixels)), seconds)["rate"]


def shares(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """The two answers, taken within each round."""
    columns = {name: np.array(values) for name, values in rates.items()}
    found = {"preprocess / bare threads": columns["preprocess"] / columns["bare threads"]}
    for kind in ("null", "real"):
        bound = 1 / (1 / columns["preprocess"] + 1 / columns[f"session, {kind}"])
        found[f"ensemble, {kind} / harmonic bound"] = columns[f"ensemble, {kind}"] / bound
    return {name: spread(values.tolist()) for name, values in found.items()}


@experiment(REPOSITORY, rounds(4), seconds(2.0, "per system and round"))
def measure(run: Run) -> dict[str, Any]:
    """Measure all systems in turn, with many images per request and with one."""
    files, real = run.files, run.options.repository
    config = preprocessing(real)
    null = write_null_repository(run.scratch / "null", run.passport)
    # In fp32, as the bare sessions.
    null_url, real_url = run.serve(null).grpc_url, run.serve(real, "--precision", "fp32").grpc_url
    record: dict[str, Any] = {}
    columns: dict[str, list[str]] = {}
    for name, (batch, window) in REQUESTS.items():
        pixels = np.random.default_rng(0).integers(0, 256, (min(32, batch * window), *config.size, 3), dtype=np.uint8)
        systems = {
            "bare threads": bare_threads(files, config),
            "preprocess": raw_grpc_load(null_url, PREPROCESSOR, "status", files, batch, window),
            "session, null": bare_session(null, pixels),
            "session, real": bare_session(real, pixels),
            "ensemble, null": raw_grpc_load(null_url, ENSEMBLE, "embedding", files, batch, window),
            "ensemble, real": raw_grpc_load(real_url, ENSEMBLE, "embedding", files, batch, window),
        }
        rates = in_turn(systems, run.options.rounds, run.options.seconds)
        found = shares(rates)
        for system, values in rates.items():
            columns.setdefault(system, []).append(f"{np.median(values):,.0f}")
        for share, of_rounds in found.items():
            columns.setdefault(share, []).append(f"{of_rounds['median']:.2f}")
        record[name] = {"rates": rates, "shares": found}
    rows = [(system, *cells) for system, cells in columns.items()]
    show(f"Images per second, medians of {run.options.rounds} interleaved rounds", ("", *REQUESTS), rows)
    return {"model": run.passport.id, **record}

"""What the ensemble costs beside its parts: ``python -m benchmarks ensemble_tax``.

Two questions. How much of what bare threads decode on these cores is left inside Triton? And how much of what its two
steps could do one after the other on shared cores, the harmonic bound ``1 / (1 / preprocess + 1 / encoder)``, does the
ensemble do? The first step is measured in the server, asked for ``status`` alone, so that no pixels travel to the
client; the encoder as a bare ONNX Runtime session in this process, which is the strictest bound. Once with a null
encoder, a graph that looks at ``status`` only, once with the exported model.

Client and server share the cores. All systems run in turn, round after round.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from benchmarks.harness.results import RESULTS, write_result
from benchmarks.harness.rounds import spread
from benchmarks.load.raw_grpc_load import flood
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository import config as model_repository
from preprocess_ensemble.model_repository.passport import Canary, Passport
from preprocess_ensemble.testing.sample_photos import write_thumbnails
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    from collections.abc import Callable

REQUESTS: Final = {"32 images a request": (32, 3), "1 image a request": (1, 64)}
"""Name -> images a request, requests under way at one time."""


def null_encoder(path: Path, passport: Passport) -> None:
    """Write a graph with the encoder's inputs and outputs that does nothing with the pixels."""
    size, dimension = passport.preprocess["size"], passport.dimension
    vector = np.zeros((1, dimension), np.float32)
    vector[0, 0] = 1.0
    constants = {
        "zero": np.zeros(1, np.int32),
        "vector": vector,
        "nothing": np.full((1, 1), np.nan, np.float32),
        "mark": np.array([passport.fingerprint], np.int32),
    }
    nodes = [
        helper.make_node("Equal", ["status", "zero"], ["good"]),
        helper.make_node("Where", ["good", "vector", "nothing"], ["embedding"]),
        helper.make_node("Mul", ["status", "zero"], ["zeros"]),
        helper.make_node("Add", ["zeros", "mark"], ["fingerprint"]),
    ]
    graph = helper.make_graph(
        nodes,
        "null",
        [
            helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", *size, 3]),
            helper.make_tensor_value_info("status", TensorProto.INT32, ["batch", 1]),
        ],
        [
            helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", dimension]),
            helper.make_tensor_value_info("fingerprint", TensorProto.INT32, ["batch", 2]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", passport.opset)])
    model.ir_version = passport.ir_version
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def null_repository(directory: Path, source: Path) -> Path:
    """Make a repository with a null encoder of the same shapes as the exported model in ``source``."""
    encoder = model_repository.encoder_directory(directory)
    encoder.mkdir(parents=True)
    passport = model_repository.installed_passport(source)
    if passport is None:
        raise SystemExit(f"there is no model in {source}; run clip-export first")
    height, width = passport.preprocess["size"]
    shapes = model_repository.Shapes(height=height, width=width, dimension=passport.dimension)
    for path, text in model_repository.pending_files(directory, shapes).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    vector = (1.0, *[0.0] * (passport.dimension - 1))
    passport = replace(passport, canary=Canary(image=passport.canary.image, vector=vector))
    (encoder / "model.json").write_text(passport.to_json())
    null_encoder(encoder / "model.onnx", passport)
    return directory


def bare_threads(files: list[bytes], config: PreprocessConfig, threads: int) -> Callable[[float], float]:
    """Decode and transform in this process; returns a function from seconds to images a second."""
    preprocessor = Preprocessor(config, threads=threads)

    def run(seconds: float) -> float:
        images = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            images += len(preprocessor.run([files])[1])
        return images / (time.perf_counter() - start)

    return run


def bare_session(onnx_file: Path, config: PreprocessConfig, batch: int) -> Callable[[float], float]:
    """ONNX Runtime alone, on pixels that are there."""
    session = onnxruntime.InferenceSession(str(onnx_file), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).integers(0, 256, (batch, *config.size, 3), dtype=np.uint8)
    inputs = {"pixels": pixels, "status": np.zeros((batch, 1), np.int32)}

    def run(seconds: float) -> float:
        images = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            session.run(["embedding"], inputs)
            images += batch
        return images / (time.perf_counter() - start)

    return run


def measure(systems: dict[str, Callable[[float], float]], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Run every system once a round, in turn."""
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for system in systems.values():
        system(0.5)
    for _ in range(rounds):
        for name, system in systems.items():
            rates[name].append(system(seconds))
    return rates


def shares(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """What the two questions ask for, taken within each round."""

    def bound(preprocess_rate: float, encoder_rate: float) -> float:
        return 1 / (1 / preprocess_rate + 1 / encoder_rate)

    columns = {name: np.array(values) for name, values in rates.items()}
    found = {"preprocess / bare threads": columns["preprocess"] / columns["bare threads"]}
    for kind in ("null", "real"):
        bounds = np.array([bound(*pair) for pair in zip(rates["preprocess"], rates[f"session, {kind}"], strict=True)])
        found[f"ensemble, {kind} / harmonic bound"] = columns[f"ensemble, {kind}"] / bounds
    return {name: spread(values.tolist()) for name, values in found.items()}


def main() -> None:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0, help="per system and round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    record: dict[str, Any] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (directory / "photos").mkdir()
        write_thumbnails(directory / "photos")
        files = [path.read_bytes() for path in sorted((directory / "photos").iterdir())]
        null = null_repository(directory / "null", arguments.repository)
        passport = model_repository.installed_passport(arguments.repository)
        assert passport is not None  # or there were no null repository
        config = PreprocessConfig.from_mapping(passport.preprocess)
        null_url = stack.enter_context(serving(null, *QUIET)).grpc_url
        real_url = stack.enter_context(serving(arguments.repository, *QUIET)).grpc_url
        table = Table("", *REQUESTS, title=f"Images a second, medians of {arguments.rounds} rounds in turn")
        columns: dict[str, list[str]] = {}
        for name, (batch, window) in REQUESTS.items():
            encoder_batch = min(32, batch * window)
            systems = {
                "bare threads": bare_threads(files, config, threads),
                "preprocess": flood(null_url, "clip_preprocess", "status", files, batch, window),
                "session, null": bare_session(
                    model_repository.encoder_directory(null) / "model.onnx", config, encoder_batch
                ),
                "session, real": bare_session(
                    model_repository.encoder_directory(arguments.repository) / "model.onnx", config, encoder_batch
                ),
                "ensemble, null": flood(null_url, "clip_image", "embedding", files, batch, window),
                "ensemble, real": flood(real_url, "clip_image", "embedding", files, batch, window),
            }
            rates = measure(systems, arguments.rounds, arguments.seconds)
            found = shares(rates)
            for system, values in rates.items():
                columns.setdefault(system, []).append(f"{np.median(values):,.0f}")
            for share, of_rounds in found.items():
                columns.setdefault(share, []).append(f"{of_rounds['median']:.2f}")
            record[name] = {"rates": rates, "shares": found}
    for system, cells in columns.items():
        table.add_row(system, *cells)
    Console().print(table)
    print(f"kept in {write_result('ensemble_tax', {'model': passport.id, **record}, arguments.results)}")


if __name__ == "__main__":
    main()

"""How photos should travel to the server: ``python -m benchmarks transfer``.

Two tables. The first chooses the settings of the thumbnails: the sample photos, brought to the very pixels that the
model takes, are encoded in many ways; what is lost is stated as PSNR against those pixels, and as the cosine between
the vectors of the thumbnail and of the file itself. The second sends photos of 2 megapixels over a line of 20 Mbit/s
and a round trip of 40 ms, by each way that there is, to a server whose encoder does nothing: what is left is decoding
on both sides, the line and the protocols.

The weights are whatever the repository holds; random ones, as in a fresh clone, say how far vectors move, and not how
well a trained model would tell pictures apart.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import onnxruntime
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from rich.console import Console
from rich.table import Table
from tritonclient.grpc import model_config_pb2

from benchmarks.experiments.client.transfer_paths import NULL_FLOAT, prepare, send
from benchmarks.experiments.serving.ensemble_tax import null_repository
from benchmarks.harness.results import RESULTS, write_result
from benchmarks.harness.rounds import spread
from benchmarks.load.slow_link import slow_link
from clip_client import ModelInfo
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import encoder_directory
from preprocess_ensemble.testing.sample_photos import write_originals
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    import numpy.typing as npt

WAYS: Final = ("original", "thumbnail", "thumbnail-small", "uint8 tensor", "FP32 tensor", "JSON")
MEGABITS_PER_S: Final = 20.0
ROUND_TRIP_MS: Final = 40.0
PIXELS: Final = 2_000_000

SETTINGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **{
        f"JPEG q{quality} {name}": ("JPEG", {"quality": quality, "subsampling": subsampling})
        for quality in (75, 80, 85, 90, 92, 95)
        for name, subsampling in (("4:2:0", 2), ("4:4:4", 0))
    },
    **{f"WebP q{quality}": ("WEBP", {"quality": quality}) for quality in (80, 90, 95)},
    "WebP lossless": ("WEBP", {"lossless": True, "method": 0}),
    "PNG": ("PNG", {"compress_level": 1}),
}
"""Candidates: name -> Pillow's format and options."""


def compare_settings(photos: list[bytes], repository: Path, config: PreprocessConfig) -> dict[str, dict[str, float]]:
    """Encode each photo's exact pixels in each way."""
    session = onnxruntime.InferenceSession(
        str(encoder_directory(repository) / "model.onnx"), providers=["CPUExecutionProvider"]
    )

    def vectors(pixels: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.float64]:
        status = np.zeros((len(pixels), 1), np.int32)
        found: npt.NDArray[np.float32] = session.run(["embedding"], {"pixels": np.stack(pixels), "status": status})[0]
        return found.astype(np.float64)

    pictures = [preprocess(decode(photo, at_least=config.decode_at_least), config) for photo in photos]
    exact = [preprocess(decode(photo), config) for photo in photos]
    reference = vectors(pictures)
    found = {}
    for name, (image_format, options) in SETTINGS.items():
        sizes, times_ms, psnr, arrived = [], [], [], []
        for picture, pixels in zip(pictures, exact, strict=True):
            started = time.thread_time()
            buffer = io.BytesIO()
            Image.fromarray(picture).save(buffer, image_format, **options)
            times_ms.append(1e3 * (time.thread_time() - started))
            sizes.append(len(buffer.getvalue()))
            arrived.append(preprocess(decode(buffer.getvalue()), config))
            error = np.mean((arrived[-1].astype(np.float64) - pixels) ** 2)
            psnr.append(float(10 * np.log10(255**2 / error)) if error else float("inf"))
        cosines = (vectors(arrived) * reference).sum(axis=1)
        found[name] = {
            "mean_kb": statistics.fmean(sizes) / 1e3,
            "largest_kb": max(sizes) / 1e3,
            "encode_ms": statistics.median(times_ms),
            "median_psnr_db": statistics.median(psnr),
            "least_psnr_db": min(psnr),
            "mean_cosine": float(cosines.mean()),
            "least_cosine": float(cosines.min()),
        }
    return found


def write_null_float_model(
    repository: Path, *, size: tuple[int, int], dimension: int, encoder: onnx.ModelProto
) -> None:
    """Add a model that takes FP32 [3, H, W], as clients of tensors send it, and does nothing with it."""
    nodes = [
        helper.make_node("Shape", ["images"], ["shape"], start=0, end=1),
        helper.make_node("Concat", ["shape", "width"], ["answer"], axis=0),
        helper.make_node("Expand", ["one", "answer"], ["embedding"]),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, *size])
    embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", dimension])
    constants: dict[str, np.ndarray[Any, Any]] = {
        "width": np.array([dimension], np.int64),
        "one": np.ones((1, 1), np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "null",
        [images],
        [embedding],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=encoder.opset_import, ir_version=encoder.ir_version)
    onnx.checker.check_model(model)
    config = model_config_pb2.ModelConfig(name=NULL_FLOAT, backend="onnxruntime", max_batch_size=32)
    config.input.add(name="images", data_type=model_config_pb2.TYPE_FP32, dims=[3, *size])
    config.output.add(name="embedding", data_type=model_config_pb2.TYPE_FP32, dims=[dimension])
    config.instance_group.add(count=1)
    config.dynamic_batching.SetInParent()
    version = repository / NULL_FLOAT / "1"
    version.mkdir(parents=True)
    onnx.save(model, str(version / "model.onnx"))
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(config))


def enlarged(photo: Path, pixels: int) -> bytes:
    """The photo at so many pixels, as a camera's JPEG: quality 90."""
    with Image.open(photo) as image:
        scale = (pixels / (image.width * image.height)) ** 0.5
        size = (round(image.width * scale), round(image.height * scale))
        buffer = io.BytesIO()
        image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def preparation(photos: list[bytes], model: ModelInfo) -> dict[str, dict[str, float]]:
    """Bytes, and milliseconds of processor time, that each way costs the client."""
    found = {}
    for way in WAYS:
        sizes, times_ms = [], []
        for photo in [photos[0], *photos]:
            started = time.thread_time()
            sizes.append(len(prepare(way, photo, model)))
            times_ms.append(1e3 * (time.thread_time() - started))
        found[way] = {"mean_kb": statistics.fmean(sizes[1:]) / 1e3, "client_ms": statistics.median(times_ms[1:])}
    return found


def main() -> None:
    """Measure, print both tables, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="per way and round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    passport = (encoder_directory(arguments.repository) / "model.json").read_text()
    model = ModelInfo.from_json(passport, max_batch_size=32)
    config = PreprocessConfig.from_mapping(model.preprocess)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        originals = write_originals(directory / "photos")
        settings = compare_settings([path.read_bytes() for path in originals], arguments.repository, config)
        _print_settings(settings, model)
        photos = [enlarged(path, PIXELS) for path in originals]
        costs = preparation(photos, model)
        large = preparation([enlarged(path, 6 * PIXELS) for path in originals[:4]], model)

        null = null_repository(directory / "null", arguments.repository)
        encoder = onnx.load(str(encoder_directory(null) / "model.onnx"))
        write_null_float_model(null, size=config.size, dimension=model.dimension, encoder=encoder)
        server = stack.enter_context(serving(null, *QUIET, http=True))
        line = {"megabits_per_s": MEGABITS_PER_S, "round_trip_ms": ROUND_TRIP_MS}
        grpc, http = (
            stack.enter_context(slow_link(int(url.rpartition(":")[2]), **line))
            for url in (server.grpc_url, server.http_url)
        )

        async def send_all() -> None:
            # One event loop for all: what gRPC has left to say about a closed channel must still find it.
            for _ in range(arguments.rounds):
                for way in WAYS:
                    address = http if way == "JSON" else grpc
                    rates[way].append((await send(way, address, photos, model, arguments.seconds)).rate)

        asyncio.run(send_all())
    _print_ways(costs, rates, large)
    result = {
        "model": model.id,
        "line": line,
        "photo_bytes": [len(photo) for photo in photos],
        "settings": settings,
        "preparation_2_megapixels": costs,
        "preparation_12_megapixels": large,
        "images_per_s": {way: spread(values) for way, values in rates.items()},
        "runs": rates,
    }
    print(f"kept in {write_result('transfer', result, arguments.results)}")


def _print_settings(settings: dict[str, dict[str, float]], model: ModelInfo) -> None:
    weights = "random weights" if model.is_random else "trained weights"
    table = Table(title=f"Sample photos at the model's input size; {model.id}, {weights}")
    for heading in ("", "mean KB", "largest KB", "encode ms", "PSNR dB", "least", "mean cosine", "least"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, figures in settings.items():
        digits = (1, 1, 2, 1, 1, 6, 5)
        table.add_row(name, *(f"{value:.{places}f}" for value, places in zip(figures.values(), digits, strict=True)))
    Console(width=110).print(table)


def _print_ways(
    costs: dict[str, dict[str, float]], rates: dict[str, list[float]], large: dict[str, dict[str, float]]
) -> None:
    table = Table(title=f"Photos of 2 megapixels over {MEGABITS_PER_S:g} Mbit/s and {ROUND_TRIP_MS:g} ms, null encoder")
    for heading in ("", "KB", "client ms", "(12 MP)", "images/s", "x FP32"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for way, cost in costs.items():
        # The ratio is taken within each round, where both met the same machine.
        ratios = [ours / theirs for ours, theirs in zip(rates[way], rates["FP32 tensor"], strict=True)]
        table.add_row(
            way,
            f"{cost['mean_kb']:,.1f}",
            f"{cost['client_ms']:.1f}",
            f"{large[way]['client_ms']:.1f}",
            f"{statistics.median(rates[way]):,.1f}",
            f"{statistics.median(ratios):,.1f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()

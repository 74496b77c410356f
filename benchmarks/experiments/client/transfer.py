"""How should photos travel to the server?

Two tables. The first compares settings for thumbnails: the exact pixels that the model takes are encoded in many ways,
with the PSNR against those pixels and the cosine between the vectors of thumbnail and file. The second sends photos of
2 megapixels over a line of 20 Mbit/s with a round trip of 40 ms to a server whose encoder does no work, so that it
measures decoding on both sides, the line and the protocols.

The weights are those of the repository. Random ones, as in a fresh clone, show how far vectors move, and not how well a
trained model tells pictures apart.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from PIL import Image

from benchmarks.fixtures.bare_encoder import bare_encoder, exact_pixels
from benchmarks.fixtures.null_encoder import write_null_repository
from benchmarks.fixtures.pictures import encoded, psnr_db
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import ratios, spread
from benchmarks.load.adapters import normalised
from benchmarks.load.slow_link import slow_link
from clip_client import ClientConfig, ModelInfo
from clip_client._encoding import IMAGE_ENCODINGS, TransferName
from clip_client._pipeline.encoder import ImageEncoder
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.testing.sample_photos import write_originals

WAYS: Final = {
    "original": ("client", 128),
    "thumbnail": ("client-thumbnail", 128),
    "thumbnail-small": ("client-thumbnail-small", 128),
    "uint8 tensor": ("triton-uint8", 16),
    "FP32 tensor": ("triton-grpc", 8),
    "JSON": ("triton-json", 2),
}
"""Name -> adapter, and requests of one image in flight: enough to fill the line, few enough to end in time."""
WARM_UP_S: Final = 2.0
"""Not counted: connections open, and the client learns the capacity of the line."""
LINE: Final = {"megabits_per_s": 20.0, "round_trip_ms": 40.0}
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
    encode = bare_encoder(repository)
    pictures = [preprocess(decode(photo, at_least=config.decode_at_least), config) for photo in photos]
    exact = exact_pixels(photos, config)
    reference = encode(np.stack(pictures)).astype(np.float64)
    found = {}
    for name, (image_format, options) in SETTINGS.items():
        sizes, times_ms, psnr, arrived = [], [], [], []
        for picture, pixels in zip(pictures, exact, strict=True):
            started = time.thread_time()
            thumbnail = encoded(Image.fromarray(picture), image_format, **options)
            times_ms.append(1e3 * (time.thread_time() - started))
            sizes.append(len(thumbnail))
            arrived.append(preprocess(decode(thumbnail), config))
            psnr.append(psnr_db(arrived[-1], pixels))
        cosines = (encode(np.stack(arrived)) * reference).sum(axis=1)
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


def enlarged(photo: Path, pixels: int) -> bytes:
    """The photo at about ``pixels`` pixels, as a camera's JPEG of quality 90."""
    with Image.open(photo) as image:
        scale = (pixels / (image.width * image.height)) ** 0.5
        size = (round(image.width * scale), round(image.height * scale))
        return encoded(image.convert("RGB").resize(size, Image.Resampling.LANCZOS), quality=90)


def prepare(way: str, photo: bytes, model: ModelInfo) -> bytes:
    """What the client does to one photo before it is sent; returns what then travels."""
    if way in IMAGE_ENCODINGS:
        encoder = ImageEncoder(ClientConfig(transfer=cast("TransferName", way)))
        return encoder.unchanged(photo) or encoder.encode(photo, model)
    config = PreprocessConfig.from_mapping(model.preprocess)
    pixels = preprocess(decode(photo, at_least=config.decode_at_least), config)  # uint8 (H, W, 3)
    if way == "uint8 tensor":
        return pixels.tobytes()
    tensor = normalised(pixels[None], config)
    return bytes(tensor) if way == "FP32 tensor" else json.dumps(tensor.ravel().tolist()).encode()


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


@experiment(REPOSITORY, rounds(3), seconds(10.0, "per way and round"))
def measure(run: Run) -> dict[str, Any]:
    """Measure and print both tables."""
    repository = run.options.repository
    model = ModelInfo.from_json(run.passport.to_json(), max_batch_size=32)
    config = PreprocessConfig.from_mapping(model.preprocess)
    originals = write_originals(run.scratch / "originals")
    settings = compare_settings([path.read_bytes() for path in originals], repository, config)
    digits = (1, 1, 2, 1, 1, 6, 5)
    rows = [
        (name, *(f"{value:.{places}f}" for value, places in zip(figures.values(), digits, strict=True)))
        for name, figures in settings.items()
    ]
    headings = ("", "mean KB", "largest KB", "encode ms", "PSNR dB", "least", "mean cosine", "least")
    weights = "random weights" if model.is_random else "trained weights"
    show(f"Sample photos at the model's input size; {model.id}, {weights}", headings, rows, width=110)

    photos = [enlarged(path, PIXELS) for path in originals]
    costs = preparation(photos, model)
    large = preparation([enlarged(path, 6 * PIXELS) for path in originals[:4]], model)
    sent = send_all(run, photos)
    rates = {way: [one["rate"] for one in results] for way, results in sent.items()}
    rows = []
    for way, cost in costs.items():
        times = (f"{cost['client_ms']:.1f}", f"{large[way]['client_ms']:.1f}")
        faster = ratios(sent[way], sent["FP32 tensor"])
        medians = (f"{statistics.median(values):,.1f}" for values in (rates[way], faster))
        rows.append((way, f"{cost['mean_kb']:,.1f}", *times, *medians))
    title = "Photos of 2 megapixels over {megabits_per_s:g} Mbit/s and {round_trip_ms:g} ms, null encoder"
    show(title.format_map(LINE), ("", "KB", "client ms", "(12 MP)", "images/s", "x FP32"), rows, width=110)
    return {
        "model": model.id,
        "line": LINE,
        "photo_bytes": [len(photo) for photo in photos],
        "settings": settings,
        "preparation_2_megapixels": costs,
        "preparation_12_megapixels": large,
        "images_per_s": {way: spread(values) for way, values in rates.items()},
        "runs": rates,
    }


def send_all(run: Run, photos: list[bytes]) -> dict[str, list[dict[str, Any]]]:
    """Send the photos by every way in turn, round after round; return what each load counted."""
    server = run.serve(write_null_repository(run.scratch / "null", run.passport), http=True)
    grpc, http = (run.stack.enter_context(slow_link(url, **LINE)) for url in (server.grpc_url, server.http_url))
    # The workers send these photos in place of the thumbnails.
    run.photos = run.scratch / "2 megapixels"
    run.photos.mkdir()
    for number, photo in enumerate(photos):
        (run.photos / f"{number}.jpg").write_bytes(photo)
    cells: dict[str, Callable[[], dict[str, Any]]] = {}
    for way, (adapter, callers) in WAYS.items():
        worker = run.load(adapter, f"http://{http}" if way == "JSON" else grpc, name=way)
        # The line is shared, so each worker warms up alone.
        assert worker.ready
        order = {"seconds": run.options.seconds, "concurrency": callers, "warm_up_s": WARM_UP_S}
        cells[way] = partial(worker.ask, order)
    return run.in_rounds(cells)

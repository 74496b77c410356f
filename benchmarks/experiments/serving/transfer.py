"""How should photos travel to the server?

Two tables. The first compares settings for thumbnails: the exact pixels that the model takes are encoded in many ways,
with the PSNR against those pixels and the cosine between the vectors of thumbnail and file. The second shows what each
form of a photo costs the client: bytes, and processor time for a photo of 2 and of 12 megapixels.

The weights are those of the repository. Random ones, as in a fresh clone, show how far vectors move, and not how well a
trained model tells pictures apart.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from PIL import Image

from benchmarks.fixtures.bare_encoder import bare_encoder, exact_pixels
from benchmarks.fixtures.pictures import encoded, psnr_db
from benchmarks.fixtures.sample_photos import write_originals
from benchmarks.harness.experiment import REPOSITORY, Run, experiment
from benchmarks.harness.results import show
from benchmarks.load.adapters import normalised
from clip_client import ClientConfig, ModelInfo
from clip_client._encoding import IMAGE_ENCODINGS, TransferName
from clip_client._pipeline.encoder import ImageEncoder
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess

WAYS: Final = (*IMAGE_ENCODINGS, "uint8 tensor", "FP32 tensor", "JSON")
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


@experiment(REPOSITORY)
def measure(run: Run) -> dict[str, Any]:
    """Measure and print both tables."""
    repository = run.options.repository
    model = ModelInfo.from_json(run.passport.to_json(), max_batch_size=32)
    originals = write_originals(run.scratch / "originals")
    config = PreprocessConfig.from_mapping(model.preprocess)
    settings = compare_settings([path.read_bytes() for path in originals], repository, config)
    digits = (1, 1, 2, 1, 1, 6, 5)
    rows = [
        (name, *(f"{value:.{places}f}" for value, places in zip(figures.values(), digits, strict=True)))
        for name, figures in settings.items()
    ]
    headings = ("", "mean KB", "largest KB", "encode ms", "PSNR dB", "least", "mean cosine", "least")
    weights = "random weights" if model.is_random else "trained weights"
    show(f"Sample photos at the model's input size; {model.id}, {weights}", headings, rows, width=110)
    costs = preparation([enlarged(path, PIXELS) for path in originals], model)
    large = preparation([enlarged(path, 6 * PIXELS) for path in originals[:4]], model)
    return {
        "model": model.id,
        "settings": settings,
        "preparation_2_megapixels": costs,
        "preparation_12_megapixels": large,
    }

"""How should photos travel to the server?

Two tables. The first compares settings for thumbnails: the exact pixels that the model takes are encoded in many ways,
with the PSNR against those pixels and the cosine between the vectors of thumbnail and file. The second shows what each
form of a photo costs the client: bytes, and processor time for a photo of 2 and of 12 megapixels.

The weights are those of the repository. Random ones, as in a fresh clone, show how far vectors move, and not how well a
trained model tells pictures apart.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from benchmarks.fixtures.pictures import encoded, psnr_db
from benchmarks.fixtures.repositories import bare_encoder, exact_pixels
from benchmarks.fixtures.sample_photos import write_originals
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option
from benchmarks.harness.results import show
from clip_client import ClientConfig, ModelInfo
from clip_client._encoding import IMAGE_ENCODINGS
from clip_client._pipeline.encoder import ImageEncoder
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess

PIXELS: Final = 2_000_000
SETTINGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **{
        f"JPEG q{quality} {name}": (".jpg", {"quality": quality, "subsampling": subsampling})
        for quality in (75, 80, 85, 90, 95)
        for name, subsampling in (("4:2:0", 2), ("4:4:4", 0))
    },
    **{f"WebP q{quality}": (".webp", {"quality": quality}) for quality in (80, 90)},
    "WebP lossless": (".webp", {"lossless": True, "method": 0}),
    "PNG": (".png", {"compress_level": 1}),
}
"""Candidates: name -> ending of the file, and Pillow's options."""


def compare_settings(photos: list[bytes], repository: Path, config: PreprocessConfig) -> dict[str, dict[str, float]]:
    """Encode each photo's exact pixels in each way."""
    encode = bare_encoder(repository)
    pictures = [preprocess(decode(photo, at_least=config.decode_at_least), config) for photo in photos]
    exact = exact_pixels(photos, config)
    reference = encode(np.stack(pictures)).astype(np.float64)
    found = {}
    for name, (suffix, options) in SETTINGS.items():
        sizes, times_ms, psnr, arrived = [], [], [], []
        for picture, pixels in zip(pictures, exact, strict=True):
            started = time.thread_time()
            thumbnail = encoded(Image.fromarray(picture), suffix, **options)
            times_ms.append(1e3 * (time.thread_time() - started))
            sizes.append(len(thumbnail))
            arrived.append(preprocess(decode(thumbnail), config))
            psnr.append(psnr_db(arrived[-1], pixels))
        cosines = (encode(np.stack(arrived)) * reference).sum(axis=1)
        found[name] = {
            "mean_kb": statistics.fmean(sizes) / 1e3,
            "encode_ms": statistics.median(times_ms),
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


def preparation(photos: list[bytes], model: ModelInfo) -> dict[str, dict[str, float]]:
    """Bytes, and milliseconds of processor time, that each way costs the client."""
    found: dict[str, dict[str, float]] = {}
    for way in IMAGE_ENCODINGS:
        encoder = ImageEncoder(ClientConfig(transfer=way))
        sizes, times_ms = [], []
        for photo in [photos[0], *photos]:
            started = time.thread_time()
            sizes.append(len(encoder.unchanged(photo) or encoder.encode(photo, model)))
            times_ms.append(1e3 * (time.thread_time() - started))
        found[way] = {"mean_kb": statistics.fmean(sizes[1:]) / 1e3, "client_ms": statistics.median(times_ms[1:])}
    return found


@experiment(REPOSITORY, option("--most", type=int, help="photos (default: all samples)"))
def measure(run: Run) -> dict[str, Any]:
    model = ModelInfo.from_json(run.passport.to_json(), max_batch_size=32)
    originals = write_originals(run.scratch / "originals")[: run.options.most]
    config = PreprocessConfig.from_mapping(model.preprocess)
    settings = compare_settings([path.read_bytes() for path in originals], run.options.repository, config)
    weights = "random weights" if model.is_random else "trained weights"
    show(f"Sample photos at the model's input size; {model.id}, {weights}", settings)
    return {
        "model": model.id,
        "settings": settings,
        "preparation_2_megapixels": preparation([enlarged(path, PIXELS) for path in originals], model),
        "preparation_12_megapixels": preparation([enlarged(path, 6 * PIXELS) for path in originals[:4]], model),
    }

"""How should photos travel to the server?

Two tables. The first compares settings for thumbnails: the exact pixels that the model takes are encoded in many ways,
with the PSNR against those pixels and the cosine between the vectors of thumbnail and file. The second shows what each
form of a photo costs the client: bytes, and processor time for a photo of 2 and of 12 megapixels. From the first
follows below which speed of the line ``thumbnail-small`` is faster than ``thumbnail``: there, the bytes that it saves
take longer to send than the processor time that it adds on both sides.

The weights are those of the repository. Random ones, as in a fresh clone, show how far vectors move, and not how well a
trained model tells pictures apart.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Mapping
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
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    **{
        f"JPEG q{quality} {name}": {"format": "JPEG", "quality": quality, "subsampling": subsampling}
        for quality in (75, 80, 85, 90, 95)
        for name, subsampling in (("4:2:0", 2), ("4:4:4", 0))
    },
    **{
        f"WebP q{quality}, method {method}": {"format": "WEBP", "quality": quality, "method": method}
        for quality in (80, 90)
        for method in (2, 4)
    },
    "WebP lossless": {"format": "WEBP", "lossless": True, "method": 0},
    "PNG": {"format": "PNG", "compress_level": 1},
}
"""Candidates: name -> Pillow's options."""
CHOSEN: Final = {
    way: name
    for way, one in IMAGE_ENCODINGS.items()
    for name, options in SETTINGS.items()
    if options == one.save_options
}
"""``transfer`` -> the candidate that it is."""


def compare_settings(photos: list[bytes], repository: Path, config: PreprocessConfig) -> dict[str, dict[str, float]]:
    """Encode each photo's exact pixels in each way."""
    encode = bare_encoder(repository)
    pictures = [preprocess(decode(photo, at_least=config.decode_at_least), config) for photo in photos]
    exact = exact_pixels(photos, config)
    reference = encode(np.stack(pictures)).astype(np.float64)
    found = {}
    for name, options in SETTINGS.items():
        sizes, encode_ms, decode_ms, psnr, arrived = [], [], [], [], []
        for picture, pixels in zip(pictures, exact, strict=True):
            started = time.thread_time()
            Image.fromarray(picture).save(file := io.BytesIO(), **options)
            thumbnail = file.getvalue()
            sent = time.thread_time()
            arrived.append(preprocess(decode(thumbnail), config))
            decode_ms.append(1e3 * (time.thread_time() - sent))
            encode_ms.append(1e3 * (sent - started))
            sizes.append(len(thumbnail))
            psnr.append(psnr_db(arrived[-1], pixels))
        cosines = (encode(np.stack(arrived)) * reference).sum(axis=1)
        found[name] = {
            "mean_kb": statistics.fmean(sizes) / 1e3,
            "encode_ms": statistics.median(encode_ms),
            "decode_ms": statistics.median(decode_ms),
            "least_psnr_db": min(psnr),
            "mean_cosine": float(cosines.mean()),
            "least_cosine": float(cosines.min()),
        }
    return found


def faster_below(settings: Mapping[str, Mapping[str, float]]) -> float:
    """Megabits per second below which ``thumbnail-small`` is faster than ``thumbnail``, one photo after the other."""
    large, small = (settings[CHOSEN[way]] for way in ("thumbnail", "thumbnail-small"))
    added_ms = sum(small[key] - large[key] for key in ("encode_ms", "decode_ms"))
    return 8 * (large["mean_kb"] - small["mean_kb"]) / added_ms


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
        "small_is_faster_below_megabits_per_s": faster_below(settings),
        "preparation_2_megapixels": preparation([enlarged(path, PIXELS) for path in originals], model),
        "preparation_12_megapixels": preparation([enlarged(path, 6 * PIXELS) for path in originals[:4]], model),
    }

"""How long does preprocessing take, next to open_clip?

Milliseconds of processor time per image from JPEG file to model input, one image after another, all systems in turn:
open_clip's own transform (to a float tensor), this package on both of its paths, and Pillow's scaled decode (``draft``)
with Pillow's resize. The same run compares the pixels: the exact path gives open_clip's, bit for bit. Sizes are 12 MP,
2 MP, 500x375, 256 px and 224x224, all of sample photos.
"""

from __future__ import annotations

import io
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import open_clip
import torch
from PIL import Image, ImageOps
from torchvision.transforms import functional

from benchmarks.fixtures.pictures import encoded, mosaic, psnr_db
from benchmarks.fixtures.sample_photos import sample_pictures
from benchmarks.harness.experiment import Run, experiment, option, seconds
from benchmarks.harness.results import show
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.quiet import quiet_libraries
from preprocess_ensemble.imaging.transform import PreprocessConfig

SIDE: Final = 224
CONFIG: Final = PreprocessConfig(
    size=(SIDE, SIDE), mean=open_clip.OPENAI_DATASET_MEAN, std=open_clip.OPENAI_DATASET_STD
)
SIZES: Final = {
    "12 MP": (4000, 3000),
    "2 MP": (1632, 1224),
    "500x375": (500, 375),
    "256 px": (341, 256),
    "224x224": (224, 224),
}
QUALITY: Final = 85

_reference = open_clip.image_transform(SIDE, is_train=False)
_fast = Preprocessor(CONFIG, threads=1)
_exact = Preprocessor(CONFIG, threads=1, fast_decode=False)


def by_open_clip(data: bytes) -> torch.Tensor:
    """Decode upright and run open_clip's transform; returns a float tensor (3, 224, 224)."""
    tensor: torch.Tensor = _reference(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    return tensor


def by_draft(data: bytes) -> npt.NDArray[np.uint8]:
    """Pillow's scaled decode, at least as large as the fast path's."""
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", CONFIG.decode_at_least)
    resized = functional.resize(image, SIDE, functional.InterpolationMode.BICUBIC)
    return np.asarray(functional.center_crop(resized, SIDE))


SYSTEMS: Final[dict[str, Callable[[bytes], Any]]] = {
    "open_clip": by_open_clip,
    "fast path": lambda data: _fast.run([[data]])[0][0],
    "exact path": lambda data: _exact.run([[data]])[0][0],
    "Pillow draft": by_draft,
}
"""Name -> what makes the model's input of a JPEG file: uint8 (224, 224, 3), but for open_clip."""
OTHERS: Final = tuple(name for name in SYSTEMS if name != "open_clip")


def files(size: tuple[int, int], count: int) -> list[bytes]:
    sources = list(sample_pictures().values())
    # Nothing is enlarged, so that each size has the detail of a photo.
    mosaics = (mosaic(sources, max(size, SIZES["2 MP"]), 3 * number) for number in range(count))
    return [encoded(picture.resize(size, Image.Resampling.LANCZOS), quality=QUALITY) for picture in mosaics]


def agreement(data: bytes) -> dict[str, float]:
    """PSNR in dB of each system's pixels against open_clip's; 99 if they are the same."""
    tensor = by_open_clip(data) * torch.tensor(CONFIG.std).view(3, 1, 1) + torch.tensor(CONFIG.mean).view(3, 1, 1)
    expected = (tensor * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return {name: psnr_db(SYSTEMS[name](data), expected) for name in OTHERS}


def one_core(jpegs: list[bytes], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of processor time of each system for one file after another, all systems in turn.

    All of them work in the calling thread, whose processor time does not include the machine's other work.
    """
    timings: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    names = list(SYSTEMS)
    generator = random.Random(0)
    end = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < end or number < 2 * len(jpegs):
        data = jpegs[number % len(jpegs)]
        number += 1
        # A system affects the next one through the caches, so the order is random.
        generator.shuffle(names)
        for name in names:
            start = time.thread_time()
            SYSTEMS[name](data)
            timings[name].append(1e3 * (time.thread_time() - start))
    return timings


@experiment(
    seconds(15.0, "per size"),
    option("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES), help="default: all"),
)
def measure(run: Run) -> dict[str, Any]:
    torch.set_num_threads(1)
    sizes: dict[str, Any] = {}
    for name in run.options.sizes:
        jpegs = files(SIZES[name], 2 if name == "12 MP" else 6)
        with quiet_libraries():  # as the server does for a batch
            timings = one_core(jpegs, run.options.seconds)
        agreements = [agreement(data) for data in jpegs]
        sizes[name] = {
            "bytes": [len(data) for data in jpegs],
            "psnr_db": {system: min(one[system] for one in agreements) for system in OTHERS},
            "one_core_ms": {system: statistics.median(values) for system, values in timings.items()},
            "rounds": len(timings["open_clip"]),
        }
    times_ms = {name: {size: sizes[size]["one_core_ms"][name] for size in sizes} for name in SYSTEMS}
    for name in ("fast path", "exact path"):
        reference = times_ms["open_clip"]
        times_ms[f"open_clip / {name}"] = {size: reference[size] / times_ms[name][size] for size in sizes}
    show("Milliseconds of processor time per image, one thread", times_ms)
    psnr_db = {name: {size: sizes[size]["psnr_db"][name] for size in sizes} for name in OTHERS}
    show("PSNR in dB against open_clip's pixels; 99: the same pixels", psnr_db)
    library = "libjpeg-turbo" if turbojpeg_decoder.installed() else "Pillow"
    return {"library": library, "quality": QUALITY, "sizes": sizes}

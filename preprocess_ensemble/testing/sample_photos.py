"""Real photos without a download: those of scikit-image, and copies of them as known near-duplicates."""

from __future__ import annotations

import importlib.util
import io
import shutil
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

ORIGINALS: Final = """
    astronaut.png brick.png camera.png cell.png chelsea.png clock_motion.png coffee.png coins.png color.png grass.png
    gravel.png hubble_deep_field.jpg ihc.png microaneurysms.png moon.png motorcycle_left.png page.png retina.jpg
    rocket.jpg text.png
""".split()
"""Photographs in scikit-image's ``data`` folder, 102 to 1,411 pixels wide, grey and colour."""

FORMATS: Final = ("jpg", "png", "webp")
"""The originals take these formats in turn, so each run has all of them."""


def write_originals(directory: Path) -> list[Path]:
    """Write one file per photo in :data:`ORIGINALS`, in mixed formats; return the paths in that order."""
    source = _data_folder()
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, name in enumerate(ORIGINALS):
        path = directory / f"{Path(name).stem}.{FORMATS[index % len(FORMATS)]}"
        if path.suffix == Path(name).suffix:
            shutil.copyfile(source / name, path)
        else:
            with Image.open(source / name) as image:
                _save(image, path, quality=92)
        paths.append(path)
    return paths


def write_with_copies(directory: Path) -> dict[str, list[Path]]:
    """Write the originals, and resized, re-encoded, cropped (2 %) and renamed copies of some.

    Returns the original's stem -> all files with the same picture, the original first.
    """
    families = {path.stem: [path] for path in write_originals(directory)}
    for stem in ("astronaut", "chelsea", "coffee", "rocket"):
        families[stem].append(_resized(families[stem][0], directory / f"{stem}, half size.jpg"))
    for stem in ("astronaut", "hubble_deep_field", "ihc"):
        with Image.open(families[stem][0]) as image:
            families[stem].append(_save(image, directory / f"{stem}, sent by a friend.jpg", quality=60))
    for stem in ("motorcycle_left", "retina"):
        families[stem].append(_cropped(families[stem][0], directory / f"{stem}, cropped.png"))
    for stem in ("chelsea", "coins"):
        original = families[stem][0]
        families[stem].append(Path(shutil.copy2(original, directory / f"Copy of {original.name}")))
    return families


def write_thumbnails(directory: Path) -> None:
    """Write the originals as JPEG files of 256 pixels on the shorter side, quality 80: 17 KB in the median.

    The longer side is chosen so that a resize to 224 pixels and a centre crop leave margins of whole pixels.
    torchvision and transformers round half a pixel differently, and a crop that is off by one pixel costs more cosine
    similarity (0.005 with random weights) than the differences that benchmarks compare.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as originals:
        for path in write_originals(Path(originals)):
            with Image.open(path) as photo:
                scale = 256 / min(photo.size)
                width, height = (_with_even_margin(round(side * scale)) for side in photo.size)
                small = photo.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
                small.save(directory / f"{path.stem}.jpg", quality=80)


def coarse_noise(count: int) -> list[bytes]:
    """Make JPEG files of 8 x 8 random squares, 256 x 256 pixels, which even random weights tell apart."""
    randomness = np.random.default_rng(0)
    files = []
    for _ in range(count):
        file = io.BytesIO()
        noise = Image.fromarray(randomness.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        noise.resize((256, 256), Image.Resampling.NEAREST).save(file, "JPEG")
        files.append(file.getvalue())
    return files


def _data_folder() -> Path:
    """Find scikit-image's photos without an import, which would need SciPy and others: make demo does without them."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("The sample photos are those of scikit-image: pip install scikit-image")
    return Path(spec.submodule_search_locations[0], "data")


def _with_even_margin(side: int) -> int:
    """The largest length up to ``side`` that becomes an even number when 256 pixels become 224."""
    return next(length for length in range(side, 0, -1) if int(224 * length / 256) % 2 == 0)


def _resized(original: Path, copy: Path) -> Path:
    with Image.open(original) as image:
        half = (image.width // 2, image.height // 2)
        return _save(image.convert("RGB").resize(half, Image.Resampling.LANCZOS), copy, quality=90)


def _cropped(original: Path, copy: Path) -> Path:
    with Image.open(original) as image:
        inset = round(0.01 * min(image.size))
        return _save(image.crop((inset, inset, image.width - inset, image.height - inset)), copy, quality=90)


def _save(image: Image.Image, path: Path, *, quality: int) -> Path:
    if path.suffix == ".png":
        image.save(path)
    else:
        image.convert("RGB").save(path, quality=quality, icc_profile=image.info.get("icc_profile"))
    return path

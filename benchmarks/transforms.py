"""What happens to photos: copies of one original, from a copied file to a screenshot of it, by severity.

Nothing here is random but noise, and that is seeded, so the same files come out of every run.
"""

from __future__ import annotations

import io
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Picture = Image.Image
ROTATIONS: Final = (1, 2, 5)


def _jpeg(image: Picture, quality: int, generations: int = 1) -> Picture:
    for _ in range(generations):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        image = Image.open(buffer).convert("RGB")
    return image


def _scaled(image: Picture, factor: float) -> Picture:
    size = (max(16, round(image.width * factor)), max(16, round(image.height * factor)))
    return image.resize(size, Image.Resampling.LANCZOS)


def _cropped(image: Picture, share: float, *, one_sided: bool = False) -> Picture:
    dx, dy = round(image.width * share), round(image.height * share)
    if one_sided:
        return image.crop((dx, 0, image.width, image.height))
    return image.crop((dx // 2, dy // 2, image.width - dx // 2, image.height - dy // 2))


def _rotated(image: Picture, degrees: float, *, padded: bool) -> Picture:
    turned = image.rotate(degrees, Image.Resampling.BICUBIC, expand=False)
    return turned if padded else _cropped(turned, 2.2 * np.sin(np.radians(degrees)))


def _captioned(image: Picture, *, tiled: bool) -> Picture:
    marked = image.copy()
    draw = ImageDraw.Draw(marked)
    size = max(10, image.height // 24)
    places = (
        [(x, y) for x in range(0, image.width, size * 12) for y in range(0, image.height, size * 6)]
        if tiled
        else [(image.width - size * 10, image.height - size * 2)]
    )
    for place in places:
        draw.text(place, "2024-05-01 12:00", fill=(255, 160, 0), font_size=size)
    return marked


def _screenshot(image: Picture) -> Picture:
    screen = Image.new("RGB", (585, 1266), (18, 18, 20))
    shown = ImageOps.contain(image, (585, 1000))
    screen.paste(shown, (0, (1266 - shown.height) // 2))
    draw = ImageDraw.Draw(screen)
    draw.rectangle((0, 0, 585, 44), fill=(30, 30, 34))
    draw.text((20, 10), "12:00", fill="white", font_size=20)
    draw.rectangle((0, 1200, 585, 1266), fill=(30, 30, 34))
    return screen


def _noisy(image: Picture, deviation: float) -> Picture:
    levels = np.asarray(image, dtype=np.float32)
    noise = np.random.default_rng(image.width).normal(0, deviation, levels.shape)
    return Image.fromarray(np.clip(levels + noise, 0, 255).astype(np.uint8))


def _brighter(image: Picture, factor: float) -> Picture:
    return ImageEnhance.Brightness(image).enhance(factor)


def _contrasted(image: Picture, factor: float) -> Picture:
    return ImageEnhance.Contrast(image).enhance(factor)


def _turned(image: Picture, degrees: int) -> Picture:
    return image.rotate(degrees, expand=True)


def _bordered(image: Picture, share: float) -> Picture:
    return ImageOps.expand(image, round(image.width * share))


def _blurred(image: Picture, radius: float) -> Picture:
    return image.filter(ImageFilter.GaussianBlur(radius))


def _gamma(image: Picture, gamma: float) -> Picture:
    return image.point([round(255 * (level / 255) ** gamma) for level in range(256)] * 3)


CHANGES: Final[dict[str, Callable[[Picture], Picture]]] = {
    **{f"T3 resize {factor}": partial(_scaled, factor=factor) for factor in (0.75, 0.5, 0.25, 0.1)},
    **{f"T4 jpeg q{quality}": partial(_jpeg, quality=quality) for quality in (90, 70, 50, 30)},
    "T4 jpeg q70 x3": partial(_jpeg, quality=70, generations=3),
    **{f"T6 crop {percent}%": partial(_cropped, share=percent / 100) for percent in (5, 10, 15, 20)},
    "T6 crop one side 10%": partial(_cropped, share=0.1, one_sided=True),
    **{f"T7 brightness {factor}": partial(_brighter, factor=factor) for factor in (0.5, 0.75, 1.1, 1.5)},
    **{f"T7 contrast {factor}": partial(_contrasted, factor=factor) for factor in (0.75, 1.25)},
    "T7 gamma 1.4": partial(_gamma, gamma=1.4),
    "T7 saturation 1.5": lambda image: ImageEnhance.Color(image).enhance(1.5),
    "T7 grey": lambda image: ImageOps.grayscale(image).convert("RGB"),
    **{f"T8 rotate {degrees} cropped": partial(_rotated, degrees=degrees, padded=False) for degrees in ROTATIONS},
    **{f"T8 rotate {degrees} padded": partial(_rotated, degrees=degrees, padded=True) for degrees in ROTATIONS},
    **{f"T8 rotate {degrees}": partial(_turned, degrees=degrees) for degrees in (90, 180, 270)},
    "T8 mirror": ImageOps.mirror,
    "T9 date stamp": partial(_captioned, tiled=False),
    "T9 watermark": partial(_captioned, tiled=True),
    "T10 screenshot": _screenshot,
    "T10 messenger": lambda image: _jpeg(ImageOps.contain(image, (800, 800)), 70),
    **{f"T11 border {percent}%": partial(_bordered, share=percent / 100) for percent in (5, 15)},
    **{f"T12 blur {radius}": partial(_blurred, radius=radius) for radius in (1, 3)},
    **{f"T12 noise {deviation}": partial(_noisy, deviation=deviation) for deviation in (5, 15)},
    "T13 crop, jpeg": lambda image: _jpeg(_cropped(image, 0.05), 60),
    "T13 resize, brighter": lambda image: _brighter(_scaled(image, 0.5), 1.2),
}
"""Name -> change of the pixels; T0 to T2 and T5 change the file only and are written by :func:`write_family`."""


def write_family(original: Path, directory: Path) -> dict[str, Path]:
    """Write every copy of ``original``; return what was done -> file. The original itself is ``""``."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = directory / f"original{original.suffix.lower()}"
    shutil.copyfile(original, kept)
    written = {"": kept, "T0 copy": directory / f"T0 copy{kept.suffix}"}
    shutil.copyfile(original, written["T0 copy"])
    with Image.open(original) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    exif = Image.Exif()
    exif[0x010E] = "edited"
    plans: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("T2 png", ".png", {}),
        ("T1 png, other metadata", ".png", {"exif": exif}),
        ("T5 webp q80", ".webp", {"quality": 80}),
        ("T5 webp q40", ".webp", {"quality": 40}),
    )
    for name, suffix, options in plans:
        written[name] = directory / f"{name}{suffix}"
        image.save(written[name], **options)
    for name, change in CHANGES.items():
        written[name] = directory / f"{name}.png"
        change(image).save(written[name], compress_level=1)
    return written


def write_hard_negatives(originals: list[Path], directory: Path) -> list[list[Path]]:
    """Write sets of pictures that look alike and must all be kept: flat frames, and parts of one scene.

    They stand in for what only people's own photos have, bursts above all.
    """
    directory.mkdir(parents=True, exist_ok=True)
    flat = []
    for level in range(20):
        path = directory / f"flat {level}.png"
        Image.new("RGB", (320, 240), (level, level, min(255, level + 2))).save(path)
        flat.append(path)
    sets = [flat]
    for number, original in enumerate(originals):
        with Image.open(original) as opened:
            image = opened.convert("RGB")
        width = round(image.width * 0.7)
        pan = []
        for step, left in enumerate((0, image.width - width)):
            path = directory / f"pan {number} {step}.png"
            image.crop((left, 0, left + width, image.height)).save(path, compress_level=1)
            pan.append(path)
        sets.append(pan)
    return sets

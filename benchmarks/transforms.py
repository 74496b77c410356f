"""What happens to photos: copies of one original, from a copied file to a screenshot of it, by severity.

Nothing here is random but noise, and that is seeded, so the same files come out of every run.
"""

from __future__ import annotations

import io
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps, features

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
"""Name -> change of the pixels; T0 to T2, T5 and the orientation tag change the file only: :func:`write_family`."""


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
        *((("T5 avif q60", ".avif", {"quality": 60}),) if features.check("avif") else ()),
    )
    for name, suffix, options in plans:
        written[name] = directory / f"{name}{suffix}"
        image.save(written[name], **options)
    sideways = Image.Exif()
    sideways[0x0112] = 6  # shown turned by 90 degrees clockwise
    written["T8 exif orientation"] = directory / "T8 exif orientation.jpg"
    image.transpose(Image.Transpose.ROTATE_90).save(written["T8 exif orientation"], quality=95, exif=sideways)
    for name, change in CHANGES.items():
        written[name] = directory / f"{name}.png"
        change(image).save(written[name], compress_level=1)
    return written


def write_hard_negatives(originals: list[Path], directory: Path) -> dict[str, list[list[Path]]]:
    """Write sets of pictures that look alike and must all be kept; return kind -> sets.

    They are built, because what they stand in for is on no list that may be passed on: people's own photos.
    """
    directory.mkdir(parents=True, exist_ok=True)
    flat = [Image.new("RGB", (320, 240), (level, level, min(255, level + 2))) for level in range(20)]
    sets = {
        "flat": [flat],
        "page": [[_text_page(number) for number in range(10)]],
        "chat": [[_chat(number) for number in range(10)]],
    }
    photos = [Image.open(original).convert("RGB") for original in originals]
    sets["pan"] = [_pan(photo) for photo in photos]
    sets["burst"] = [_burst(photo) for photo in photos]
    written: dict[str, list[list[Path]]] = {}
    for kind, some in sets.items():
        written[kind] = []
        for number, pictures in enumerate(some):
            paths = [directory / f"{kind} {number} {step}.png" for step in range(len(pictures))]
            for picture, path in zip(pictures, paths, strict=True):
                picture.save(path, compress_level=1)
            written[kind].append(paths)
    return written


def _pan(photo: Picture) -> list[Picture]:
    """Two frames of one scene that share four sevenths of their width."""
    width = round(photo.width * 0.7)
    return [photo.crop((left, 0, left + width, photo.height)) for left in (0, photo.width - width)]


def _burst(photo: Picture) -> list[Picture]:
    """Three frames held by hand, 3 % apart, in which a tenth of the picture has moved on."""
    width, height = round(photo.width * 0.9), round(photo.height * 0.9)
    subject = photo.crop((photo.width * 2 // 5, photo.height // 4, photo.width * 3 // 5, photo.height * 3 // 4))
    frames = []
    for step in range(3):
        scene = photo.copy()
        scene.paste(subject, (photo.width * (4 + 2 * step) // 10, photo.height // 4))
        left, top = round(photo.width * 0.03 * step), round(photo.height * 0.01 * step)
        frames.append(_noisy(scene.crop((left, top, left + width, top + height)), 2))
    return frames


def _text_page(number: int) -> Picture:
    """A page of one document: other words in the same places."""
    words = np.random.default_rng(number)
    page = Image.new("RGB", (600, 848), "white")
    draw = ImageDraw.Draw(page)
    for line in range(34):
        text = " ".join("".join(map(chr, words.integers(97, 123, length))) for length in words.integers(2, 10, 9))
        draw.text((60, 60 + 21 * line), text[:64], fill="black", font_size=14)
    return page


def _chat(number: int) -> Picture:
    """A screenshot of one app: the same bars, other messages."""
    random = np.random.default_rng(100 + number)
    screen = Image.new("RGB", (585, 1266), (236, 240, 241))
    draw = ImageDraw.Draw(screen)
    draw.rectangle((0, 0, 585, 100), fill=(20, 120, 110))
    draw.text((40, 40), "Family", fill="white", font_size=30)
    top = 130
    while top < 1150:
        height, mine = int(random.integers(50, 160)), bool(random.integers(2))
        left = 180 if mine else 20
        draw.rounded_rectangle((left, top, left + 380, top + height), 16, fill=(210, 248, 198) if mine else "white")
        for line in range(height // 30):
            text = "".join(map(chr, random.integers(97, 123, 30)))
            draw.text((left + 16, top + 12 + 28 * line), text, fill="black", font_size=20)
        top += height + 16
    return screen

"""The pictures and the JPEG encoders of the fidelity benchmark: everything is made here, nothing is downloaded."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

QUALITIES: Final = (60, 85, 95)
SUBSAMPLINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "4:2:0 progressive": {"subsampling": 2, "progressive": True},
    "grey": {},
}
"""Pillow's options."""
_FLAT_TABLE: Final = [16] * 64
"""High frequencies are kept as well as low ones, as encoders that optimise for the eye do at high quality."""
_SIMPLEJPEG: Final[Mapping[str, Mapping[str, Any]]] = {
    "4:2:0 fast DCT": {"colorsubsampling": "420", "fastdct": True},
    "4:4:0": {"colorsubsampling": "440"},
    "4:1:1": {"colorsubsampling": "411"},
}
"""libjpeg-turbo's options."""
ENCODERS: Final = (*SUBSAMPLINGS, "4:2:0 optimised, flat tables", *_SIMPLEJPEG)

SOURCES: Final = ("astronaut", "chelsea", "coffee", "retina")
FINE_SOURCES: Final = ("grass", "gravel", "page", "moon")
"""Of the sample photos, those on which a small change of pixels moves the embedding most."""
TEXTURES: Final = ("grass", "gravel", "brick")
_TEXT_SIZES: Final = (12, 16, 24, 48)
_LINE: Final = "The quick brown fox jumps over the lazy dog, 0123456789 times; Zwölf Boxkämpfer jagen Viktor. " * 12


def photo(source: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Crop to the shape of ``size``, enlarge to it, and add the noise of a sensor."""
    return noisy(_enlarged(source, size), 3)


def noisy(picture: Image.Image, deviation: float) -> Image.Image:
    """Add normal noise of this standard deviation, in levels, to every channel of every pixel."""
    generator = np.random.default_rng(0)
    values = np.asarray(picture, np.float32)
    values = values + generator.normal(0, deviation, values.shape).astype(np.float32)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def mosaic(sources: list[Image.Image], size: tuple[int, int], first: int) -> Image.Image:
    """Lay the sources out in rows, from number ``first`` on, at their own resolution."""
    canvas = Image.new("RGB", size)
    top, number = 0, first
    while top < size[1]:
        left, below = 0, 0
        while left < size[0]:
            source = sources[number % len(sources)]
            canvas.paste(source, (left, top))
            left, below, number = left + source.width, max(below, source.height), number + 1
        top += below
    return canvas


def upscaled(source: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Enlarge at most 512 pixels of the source, without noise: what a social network or a scaler leaves of a photo."""
    small = source.copy()
    small.thumbnail((512, 512))
    return _enlarged(small, size)


def text(size: tuple[int, int], pixels: int) -> Image.Image:
    """A page of black lines on white, in letters of this many pixels."""
    page = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(pixels)
    for number, top in enumerate(range(0, size[1], round(1.3 * pixels))):
        draw.text((8, top), _LINE[number % 40 :], fill="black", font=font)
    return page


def screenshot(sources: list[Image.Image], size: tuple[int, int], first: int) -> Image.Image:
    """A desktop: windows with sharp edges, title bars, one-pixel lines, small text and a photo each."""
    desktop = Image.new("RGB", size, (0x20, 0x50, 0x70))
    draw, font = ImageDraw.Draw(desktop), ImageFont.load_default(14)
    for number in range(12):
        left, top = (37 + 353 * (number % 4)) * size[0] // 1500, (29 + 311 * (number // 4)) * size[1] // 1000
        right, bottom = left + size[0] * 5 // 16, top + size[1] // 3
        draw.rectangle((left, top, right, bottom), fill=("white", "#1e1e1e")[number % 2], outline="black")
        draw.rectangle((left, top, right, top + 24), fill="#3070d0")
        for line, height in enumerate(range(top + 32, bottom - 16, 18)):
            draw.text((left + 8, height), _LINE[line : line + 60], fill=("black", "#d4d4d4")[number % 2], font=font)
        picture = sources[(first + number) % len(sources)].resize((max(1, size[0] // 8), max(1, size[1] // 6)))
        desktop.paste(picture, (right - picture.width - 8, top + 32))
    return desktop


def _enlarged(source: Image.Image, size: tuple[int, int]) -> Image.Image:
    width = min(source.width, source.height * size[0] // size[1])
    height = min(source.height, source.width * size[1] // size[0])
    return source.crop((0, 0, width, height)).resize(size, Image.Resampling.BICUBIC)


_Pictures = dict[str, Image.Image]
KINDS: Final[Mapping[str, Callable[[_Pictures, tuple[int, int]], Iterator[Image.Image]]]] = {
    "photo": lambda sources, size: (photo(sources[name], size) for name in SOURCES),
    "mosaic": lambda sources, size: (mosaic(list(sources.values()), size, 5 * first) for first in range(4)),
    "upscaled": lambda sources, size: (upscaled(sources[name], size) for name in FINE_SOURCES),
    "noisy": lambda sources, size: (noisy(upscaled(sources[name], size), 10) for name in FINE_SOURCES),
    "text": lambda sources, size: (text(size, pixels) for pixels in _TEXT_SIZES),
    "screenshot": lambda sources, size: (screenshot(list(sources.values()), size, 7 * first) for first in range(3)),
    "noise": lambda sources, size: (noisy(upscaled(sources[name], size), 20) for name in FINE_SOURCES),
    "texture": lambda sources, size: (mosaic([sources[name]], size, 0) for name in TEXTURES),
}
"""Kind -> its pictures, drawn one by one."""
STRESS: Final = frozenset({"noise", "texture"})
"""More noise than some of these pictures have contrast, and one small texture repeated at its own resolution: of both,
the resize leaves next to nothing, so errors weigh most."""


def jpeg(picture: Image.Image, quality: int, encoder: str) -> bytes:
    """Encode by one of :data:`ENCODERS`."""
    if encoder in _SIMPLEJPEG:
        import simplejpeg

        file: bytes = simplejpeg.encode_jpeg(np.asarray(picture), quality, "RGB", **_SIMPLEJPEG[encoder])
        return file
    buffer = io.BytesIO()
    if encoder in SUBSAMPLINGS:
        image = picture.convert("L") if encoder == "grey" else picture
        image.save(buffer, "JPEG", quality=quality, **SUBSAMPLINGS[encoder])
    else:
        tables = [_FLAT_TABLE, _FLAT_TABLE]
        picture.save(buffer, "JPEG", qtables=tables, subsampling=2, optimize=True, progressive=True)
    return buffer.getvalue()

"""The one entry to the containers: from the bytes of a file to what its structure says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from preprocess_ensemble.imaging.containers import gif, iso_media, jpeg, jpeg_2000, plain, png, riff, tiff
from preprocess_ensemble.imaging.containers.container import Container

_READERS: Final[tuple[tuple[Callable[[bytes], bool], Callable[[bytes], Container]], ...]] = (
    (lambda data: data.startswith(b"\xff\xd8\xff"), jpeg.read),
    (lambda data: data.startswith(png.SIGNATURE), png.read),
    (lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP", riff.read),
    (lambda data: data.startswith(b"GIF8"), gif.read),
    (lambda data: data.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")), tiff.read),
    (lambda data: data[4:8] == b"ftyp" or data.startswith(iso_media.JXL_CONTAINER), iso_media.read),
    (lambda data: data.startswith((b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  ")), jpeg_2000.read),
    (lambda data: data.startswith(b"BM"), plain.read_bmp),
    (lambda data: data[:1] == b"P" and data[1:2].isdigit(), plain.read_ppm),
    (lambda data: data.startswith(b"qoif"), plain.read_qoi),
)


def read(data: bytes) -> Container:
    """Read the structure of an image file. Never raises; a file of another kind has an empty container."""
    reader = next((read for is_of, read in _READERS if is_of(data)), None)
    return Container(end=len(data)) if reader is None else reader(data)

"""Builders of image files, good and bad, in memory."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

ORIENTATION = 0x0112


def picture(mode: str = "RGB", size: tuple[int, int] = (64, 48), seed: int = 0) -> Image.Image:
    """A smooth picture with noise, (width, height), in any mode that Pillow can convert RGB to."""
    generator = np.random.default_rng(seed)
    width, height = size
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (3 + band) + seed) + np.cos(columns / (4 + band)) for band in range(3)]
    values = 128 + 50 * np.stack(waves, axis=2) + generator.normal(0, 8, (height, width, 3))  # (H, W, 3)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def jpeg(mode: str = "RGB", size: tuple[int, int] = (64, 48), **options: Any) -> bytes:
    return encoded(picture(mode, size), "JPEG", **options)


def rotated_jpeg(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return jpeg(exif=exif.tobytes())


def jpeg_with_segment(marker: int, payload: bytes) -> bytes:
    """A good JPEG with one more segment right behind its start marker."""
    data = jpeg()
    return data[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload + data[2:]


def jpeg_header(width: int, height: int) -> bytes:
    """A JPEG that claims a size and ends behind its header."""
    data = bytearray(jpeg())
    frame = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, frame + 5, height, width)
    return bytes(data[: data.index(b"\xff\xda") + 20])


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def png(width: int, height: int, bit_depth: int, colour_type: int, rows: bytes, *extra: bytes) -> bytes:
    """A PNG from raw rows, each with its filter byte; ``extra`` chunks stand before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [png_chunk(b"IHDR", header), *extra, png_chunk(b"IDAT", zlib.compress(rows, 9)), png_chunk(b"IEND", b"")]
    )


def png_bomb(width: int = 30_000, height: int = 30_000) -> bytes:
    """All black, 1 bit a pixel: about 110 KB for 900 megapixels."""
    return png(width, height, 1, 0, bytes((1 + (width + 7) // 8) * height))


def tiff(entries: list[tuple[int, int, int, int]], tail: bytes = b"", next_directory: int = 0) -> bytes:
    """A little-endian TIFF with one directory of (tag, type, count, value) right behind the header."""
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", next_directory) + tail


def grey_tiff(samples: np.ndarray[Any, Any], next_directory: int = 0) -> bytes:
    """An uncompressed grey TIFF of any integer or float sample type; samples are (H, W)."""
    height, width = samples.shape
    bits = samples.dtype.itemsize * 8
    sample_format = {"u": 1, "i": 2, "f": 3}[samples.dtype.kind]
    short, long = 3, 4
    count = 10
    entries = [
        (256, long, 1, width),
        (257, long, 1, height),
        (258, short, 1, bits),
        (259, short, 1, 1),
        (262, short, 1, 1),
        (273, long, 1, 8 + 2 + 12 * count + 4),
        (277, short, 1, 1),
        (278, long, 1, height),
        (279, long, 1, samples.nbytes),
        (339, short, 1, sample_format),
    ]
    assert len(entries) == count
    return tiff(entries, samples.tobytes(), next_directory)


def endless_tiff() -> bytes:
    """A TIFF whose only directory names itself as the next one."""
    return grey_tiff(np.zeros((4, 4), np.uint8), next_directory=8)

"""Damaged image files of every format that is read, made from good ones with knowledge of their structure.

Bytes changed at random mostly break the first check that looks at them. These mutators change what lies behind it: the
content of chunks whose checksums are then made good again, entropy-coded data behind an intact header, numbers of a
header that contradict the rest, parts that are left out, doubled, swapped or taken from another file.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image, features

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

__all__ = ("mutate", "seeds")

_INTERESTING: Final = (0, 1, 2, 7, 8, 16, 63, 64, 127, 128, 254, 255)
_INTERESTING_SHORTS: Final = (0, 1, 8, 255, 256, 0x7FFF, 0x8000, 0xFFFF)


def seeds() -> dict[str, list[bytes]]:
    """Return good files by format, in all variants that Pillow can write; small, so that many can be tried."""
    rgb, grey = _picture("RGB"), _picture("L")
    alpha = _picture("RGBA")
    frames = [_picture("RGB", seed) for seed in (1, 2)]
    exif = Image.Exif()
    exif[0x0112] = 6
    large = rgb.resize((520, 470))
    found = {
        "JPEG": [
            _encoded(rgb, "JPEG", quality=85),
            _encoded(rgb, "JPEG", subsampling=0, exif=exif.tobytes(), icc_profile=bytes(500)),
            _encoded(rgb, "JPEG", progressive=True),
            _encoded(grey, "JPEG", restart_marker_blocks=3),
            _encoded(rgb.convert("CMYK"), "JPEG"),
            _encoded(rgb, "MPO", save_all=True, append_images=frames),
            # Large enough for the scaled decode.
            _encoded(large, "JPEG", quality=70),
            _encoded(large, "JPEG", progressive=True, exif=exif.tobytes()),
        ],
        "PNG": [
            _encoded(rgb, "PNG"),
            _encoded(alpha, "PNG"),
            _encoded(rgb.quantize(16), "PNG", transparency=3),
            _encoded(_picture("I;16"), "PNG"),
            _encoded(rgb.convert("1"), "PNG"),
            _encoded(rgb, "PNG", save_all=True, append_images=frames, exif=exif),
        ],
        "WebP": [
            _encoded(rgb, "WEBP"),
            _encoded(alpha, "WEBP", lossless=True),
            _encoded(rgb, "WEBP", save_all=True, append_images=frames, exif=exif),
        ],
        "GIF": [_encoded(rgb, "GIF"), _encoded(rgb, "GIF", save_all=True, append_images=frames, transparency=3)],
        "TIFF": [
            _encoded(rgb, "TIFF"),
            _encoded(rgb, "TIFF", compression="tiff_lzw"),
            _encoded(rgb, "TIFF", compression="jpeg"),
            _encoded(grey, "TIFF", compression="tiff_adobe_deflate"),
            _encoded(rgb.convert("1"), "TIFF", compression="group4"),
            _encoded(rgb, "TIFF", save_all=True, append_images=frames),
        ],
        "BMP": [_encoded(rgb, "BMP"), _encoded(grey, "BMP"), _encoded(alpha, "BMP")],
        "JPEG 2000": [_encoded(rgb, "JPEG2000"), _encoded(rgb, "JPEG2000", no_jp2=True)],
        "PPM": [_encoded(rgb, "PPM"), _encoded(grey, "PPM"), b"P3 4 2 255\n" + b"9 8 7 " * 8],
        "QOI": [_encoded(rgb, "QOI")],
    }
    if features.check("avif"):
        found["AVIF"] = [_encoded(rgb, "AVIF", speed=10), _encoded(alpha, "AVIF", speed=10)]
    return found


def mutate(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    """Return ``data`` with one to three changes; ``other`` is a file of the same format to take parts from."""
    for _ in range(randomness.choice((1, 1, 1, 2, 3))):
        change = randomness.choice(_CHANGES)
        data = change(data, other, randomness)
    return data


def _picture(mode: str, seed: int = 0) -> Image.Image:
    generator = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(generator.integers(0, 65536, (37, 52), dtype=np.uint16))
    coarse = generator.integers(0, 256, (9, 13, 4), dtype=np.uint8)
    return Image.fromarray(coarse, "RGBA").resize((52, 37), Image.Resampling.BICUBIC).convert(mode)


def _encoded(image: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    # Pillow leaves its encoder settings on an image that it has saved, and takes them up again in the next format.
    if "append_images" in options:
        options["append_images"] = [frame.copy() for frame in options["append_images"]]
    image.copy().save(buffer, image_format, **options)
    return buffer.getvalue()


Part = tuple[bytes, bytes]
"""A head, which tells what the part is, and a body."""


def _split(data: bytes) -> tuple[bytes, list[Part], Callable[[bytes, Sequence[Part]], bytes]] | None:
    """The start of a file, its parts, and how to put such parts together again; None for formats without parts."""
    if data.startswith(b"\x89PNG"):
        return data[:8], _png_chunks(data), _join_png
    if data.startswith(b"RIFF"):
        return data[:12], _riff_chunks(data), _join_riff
    if data.startswith(b"\xff\xd8"):
        return data[:2], _jpeg_segments(data), _join_jpeg
    if data[4:8] == b"ftyp" or data[4:8] == b"jP  ":
        return b"", _iso_boxes(data), _join_iso
    return None


def _png_chunks(data: bytes) -> list[Part]:
    chunks = []
    position = 8
    while position + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, position)
        chunks.append((data[position + 4 : position + 8], data[position + 8 : position + 8 + length]))
        position += 12 + length
    return chunks


def _join_png(start: bytes, chunks: Sequence[Part]) -> bytes:
    joined = (struct.pack(">I", len(body)) + kind + body + _crc(kind + body) for kind, body in chunks)
    return start + b"".join(joined)


def _crc(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


def _riff_chunks(data: bytes) -> list[Part]:
    chunks = []
    position = 12
    while position + 8 <= len(data):
        (length,) = struct.unpack_from("<I", data, position + 4)
        chunks.append((data[position : position + 4], data[position + 8 : position + 8 + length]))
        position += 8 + length + length % 2
    return chunks


def _join_riff(start: bytes, chunks: Sequence[Part]) -> bytes:
    body = b"".join(kind + struct.pack("<I", len(body)) + body + bytes(len(body) % 2) for kind, body in chunks)
    return start[:4] + struct.pack("<I", 4 + len(body)) + start[8:12] + body


def _jpeg_segments(data: bytes) -> list[Part]:
    segments = []
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        end = position + 2 + length
        if data[position + 1] == 0xDA:
            # The entropy-coded data belongs to its scan: up to the next marker that is neither stuffing nor restart.
            while end + 1 < len(data) and not (data[end] == 0xFF and data[end + 1] not in (0, *range(0xD0, 0xD8))):
                end += 1
        segments.append((data[position : position + 2], data[position + 4 : end]))
        position = end
    return [*segments, (b"", data[position:])]


def _join_jpeg(start: bytes, segments: Sequence[Part]) -> bytes:
    joined = bytearray(start)
    for marker, body in segments:
        if marker == b"\xff\xda":
            length = 6 + 2 * body[0] if body else 2
            joined += marker + struct.pack(">H", length & 0xFFFF) + body
        elif marker:
            joined += marker + struct.pack(">H", min(0xFFFF, len(body) + 2)) + body
        else:
            joined += body
    return bytes(joined)


def _iso_boxes(data: bytes) -> list[Part]:
    boxes = []
    position = 0
    while position + 8 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        end = position + size if size >= 8 else len(data)
        boxes.append((data[position + 4 : position + 8], data[position + 8 : end]))
        position = end
    return boxes


def _join_iso(start: bytes, boxes: Sequence[Part]) -> bytes:
    return start + b"".join(struct.pack(">I", len(body) + 8) + kind + body for kind, body in boxes)


def _change_part(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    """Change the inside of one part and make lengths and checksums good."""
    split = _split(data)
    if split is None or not split[1]:
        return _change_late_bytes(data, other, randomness)
    start, parts, join = split
    number = randomness.randrange(len(parts))
    kind, body = parts[number]
    parts[number] = (kind, _change_bytes(body, other, randomness))
    return join(start, parts)


def _change_compressed(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    """Change the rows of a PNG under their compression, such as the filter of a row, or leave some out."""
    split = _split(data)
    if split is None or not data.startswith(b"\x89PNG"):
        return _change_late_bytes(data, other, randomness)
    start, chunks, join = split
    try:
        rows = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    except zlib.error:
        return data
    rows = _change_bytes(rows, other, randomness)
    rows = rows[: randomness.choice((len(rows), len(rows), len(rows) // 2, 0))] * randomness.choice((1, 1, 1, 3))
    first = next((number for number, (kind, _) in enumerate(chunks) if kind == b"IDAT"), 0)
    others = [chunk for chunk in chunks if chunk[0] != b"IDAT"]
    others.insert(first, (b"IDAT", zlib.compress(rows, 1)))
    return join(start, others)


def _rearrange_parts(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    """Leave a part out, double it, swap two, or take one from the other file."""
    split, foreign = _split(data), _split(other)
    if split is None or len(split[1]) < 2 or foreign is None or not foreign[1]:
        return _splice(data, other, randomness)
    start, parts, join = split
    number, target = randomness.randrange(len(parts)), randomness.randrange(len(parts))
    match randomness.randrange(5):
        case 0:
            del parts[number]
        case 1:
            parts.insert(target, parts[number])
        case 2:
            parts[number], parts[target] = parts[target], parts[number]
        case 3:
            parts.insert(target, randomness.choice(foreign[1]))
        case _:
            parts[target:target] = [parts[number]] * randomness.choice((10, 300))
    return join(start, parts)


def _change_bytes(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    if not data:
        return randomness.randbytes(randomness.randrange(8))
    changed = bytearray(data)
    for _ in range(randomness.choice((1, 2, 4, 16))):
        position = randomness.randrange(len(changed))
        match randomness.randrange(5):
            case 0:
                changed[position] ^= 1 << randomness.randrange(8)
            case 1:
                changed[position] = randomness.choice(_INTERESTING)
            case 2:
                size = struct.pack(randomness.choice("<>") + "H", randomness.choice(_INTERESTING_SHORTS))
                changed[position : position + 2] = size
            case 3:
                length = randomness.randrange(1, 32)
                changed[position : position + length] = randomness.randbytes(length)
            case _:
                changed[position] = (changed[position] + randomness.choice((-1, 1))) % 256
    return bytes(changed)


def _change_late_bytes(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    """Change what comes behind the header; of a TIFF as Pillow writes it, which has its directory behind or before."""
    head = min(len(data), randomness.choice((8, 30, 64, len(data) // 3)))
    return data[:head] + _change_bytes(data[head:], other, randomness)


def _truncate(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    return data[: randomness.randrange(len(data) // 4, len(data) + 1)]


def _cut_out(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    start = randomness.randrange(len(data) // 4, len(data) + 1)
    return data[:start] + data[start + randomness.choice((1, 2, 17, 200)) :]


def _splice(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    """The beginning of this file and the end of another."""
    start = randomness.randrange(len(data) // 8, len(data) + 1)
    return data[:start] + other[min(start, len(other)) :]


def _append(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    return data + randomness.choice((other, data, randomness.randbytes(300), bytes(1000), b"\xff\xd9"))


_CHANGES: Final[tuple[Callable[[bytes, bytes, random.Random], bytes], ...]] = (
    _change_part,
    _change_part,
    _change_part,
    _change_compressed,
    _rearrange_parts,
    _change_bytes,
    _change_late_bytes,
    _change_late_bytes,
    _truncate,
    _cut_out,
    _splice,
    _append,
)

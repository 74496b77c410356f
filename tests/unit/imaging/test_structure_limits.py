"""Files with too many parts, each of which costs far more than its bytes, are refused before Pillow reads them."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

import pytest
from PIL import Image, PngImagePlugin, TiffImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode, quiet_libraries
from preprocess_ensemble.imaging.structure_limits import TagReader, patch_pillow_tags
from tests.fixtures.images import image_files

if TYPE_CHECKING:
    from collections.abc import Callable

_SHORT, _LONG = 3, 4


def _segments(payload: bytes, count: int) -> bytes:
    data = image_files.jpeg()
    segment = b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload
    return data[:2] + segment * count + data[2:]


def _gif(comment: bytes) -> bytes:
    data = image_files.encoded(Image.new("L", (4, 4)), "GIF")
    start = 13 + (3 << ((data[10] & 7) + 1))
    return data[:start] + b"\x21\xfe" + comment + b"\0" + data[start:]


def _png(chunks: int) -> bytes:
    extra = [image_files.png_chunk(b"tEXt", b"a\0b")] * chunks
    return image_files.png(1, 1, 8, 0, b"\0\0", *extra)


def _tiff(tiles: int) -> bytes:
    """One pixel per tile, and the same byte for all tiles."""
    entries = [
        *image_files.GREY_TIFF_4X4,
        (322, _SHORT, 1, 1),
        (323, _SHORT, 1, 1),
        (324, _LONG, tiles, 8 + 2 + 12 * 8 + 4),
    ]
    return image_files.tiff(entries, struct.pack("<I", 8) * tiles)


def _ppm(comments: int) -> bytes:
    return b"P2 2 2 255\n1 2 3\n" + b"#\n" * comments + b"4\n"


@pytest.mark.parametrize(
    ("make", "good", "too_many", "parts"),
    [
        (lambda count: _segments(b"Exif\0\0", count), 1000, 4000, "10,000 parts"),
        (lambda count: _gif(b"\x01a" * count), 1000, 10_000, "10,000 parts"),
        (_png, 900, 1001, "1,000 chunks"),
        (_tiff, 16, 100_001, "100,000 strips or tiles"),
        (_ppm, 1000, 1001, "1,000 comments"),
    ],
    ids=["jpeg", "gif", "png", "tiff", "ppm"],
)
def test_files_of_too_many_parts(make: Callable[[int], bytes], good: int, too_many: int, parts: str) -> None:
    decode(make(good))
    with pytest.raises(DecodeError, match=parts) as caught:
        decode(make(too_many))
    assert caught.value.status is ImageStatus.LIMIT


def test_a_bmp_whose_runs_hold_no_pixels() -> None:
    header = struct.pack("<IiiHHIIiiII", 40, 4, 4, 1, 8, 1, 0, 0, 0, 256, 0)
    start = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + 1024) + header + bytes(1024)
    assert decode(start + b"\x04\x01\0\0" * 4).size == (4, 4)
    with pytest.raises(DecodeError, match=r"the limit is 65,584 for 4 x 4 pixels") as caught:
        decode(start + b"\0\x02\0\0" * 17_000 + b"\x04\x01\0\0" * 4)
    assert caught.value.status is ImageStatus.LIMIT


def test_a_png_whose_parts_follow_its_pixels() -> None:
    data = _png(0)
    end = data.index(b"IDAT") - 4 + 12 + struct.unpack_from(">I", data, data.index(b"IDAT") - 4)[0]
    with pytest.raises(DecodeError, match="1,000 chunks"):
        decode(data[:end] + image_files.png_chunk(b"iCCP", b"") * 1001 + data[end:])


def test_pillow_is_not_asked_for_the_orientation_in_too_much_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow joins the segments of EXIF in quadratic time: 60 MB of them took over a minute."""
    joined: list[bytes] = []
    monkeypatch.setattr(Image.Exif, "load", lambda _, data: joined.append(data))
    limits = DecodeLimits(max_metadata_bytes=2000)
    with pytest.raises(DecodeError, match="more than 1,052,576 bytes"):
        decode(_segments(b"Exif\0\0" + bytes(20_000), 60), limits)
    assert joined == []


def test_tags_that_all_name_the_same_bytes_are_read_twice_at_most() -> None:
    reader = TagReader(io.BytesIO(bytes(100)))
    for _ in range(2):
        reader.seek(0)
        assert len(reader.read(100)) == 100
    reader.seek(0)
    with pytest.raises(OSError, match="claim more bytes"):
        reader.read(1)


@pytest.mark.parametrize("version", ["12.3.0", "13.0.0"])
def test_only_an_old_pillow_needs_bounded_tags(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[object, object]] = []
    monkeypatch.setattr("PIL.__version__", version)
    monkeypatch.setattr(TiffImagePlugin.ImageFileDirectory_v2, "load", lambda *loaded: read.append(loaded))
    patch_pillow_tags()
    source = io.BytesIO(b"")
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    directory.load(source)
    assert read[0][0] is directory
    assert isinstance(read[0][1], TagReader) == (version == "12.3.0")


def test_memory_for_tags_is_bounded_by_the_file() -> None:
    """With any Pillow: 500 tags of 100 KB each, in a file of 100 KB."""
    size, count = 100_000, 500
    exif = b"II*\0\x08\0\0\0" + struct.pack("<H", count)
    exif += b"".join(struct.pack("<HHII", 1000 + number, 1, size - 100, 8) for number in range(count))
    directory = TiffImagePlugin.ImageFileDirectory_v2(exif[:8])
    source = io.BytesIO(exif.ljust(size, b"\0"))
    source.seek(8)
    with quiet_libraries():
        directory.load(source)
    assert sum(len(value) for value in directory._tagdata.values()) <= 2 * size


def test_a_photo_with_ordinary_metadata_is_read() -> None:
    exif = Image.Exif()
    exif[image_files.ORIENTATION] = 6
    exif[0x010E] = "words " * 5000
    text = PngImagePlugin.PngInfo()
    for number in range(50):
        text.add_text(f"key {number}", "value")
    assert decode(image_files.jpeg(exif=exif.tobytes(), icc_profile=bytes(500_000))).size == (48, 64)
    assert decode(image_files.encoded(image_files.picture(), "PNG", pnginfo=text, exif=exif)).size == (48, 64)

"""The length that a file's own structure claims, which reveals truncation if the reader does not."""

from __future__ import annotations

import io
import struct

import pytest
from PIL import Image, TiffImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import DecodeError, decode
from preprocess_ensemble.imaging.formats import FORMATS
from preprocess_ensemble.imaging.structure_limits import structure_end
from tests.fixtures.images import image_files

AVIF, TIFF, WEBP, PNG = (
    next(known for known in FORMATS if known.name == name) for name in ("AVIF", "TIFF", "WebP", "PNG")
)
SHORT, LONG = 3, 4
FILE_TYPE = struct.pack(">I4s", 16, b"ftyp") + b"avif\0\0\0\0"


def box(kind: bytes, payload: int) -> bytes:
    return struct.pack(">I4s", 8 + payload, kind) + bytes(payload)


@pytest.mark.parametrize(
    ("boxes", "end"),
    [
        (box(b"mdat", 100), 16 + 108),
        (box(b"meta", 30) + box(b"mdat", 100), 16 + 38 + 108),
        (struct.pack(">I4sQ", 1, b"mdat", 16 + 50) + bytes(50), 16 + 66),
        (struct.pack(">I4sQ", 1, b"mdat", 2**33) + bytes(50), 16 + 2**33),
        (struct.pack(">I4s", 0, b"mdat") + bytes(50), 16),
        (struct.pack(">I4s", 7, b"mdat") + bytes(50), 16),
    ],
    ids=["one", "two", "64 bits", "far beyond", "up to the end", "less than a header"],
)
def test_boxes_of_iso_media_end_where_the_last_one_does(boxes: bytes, end: int) -> None:
    data = FILE_TYPE + boxes
    assert structure_end(AVIF, None, data) == end
    if len(data) == end:
        assert structure_end(AVIF, None, data[:-10]) == end


def test_an_avif_that_lacks_its_last_bytes_is_truncated() -> None:
    data = image_files.encoded(image_files.picture(), "AVIF")
    assert structure_end(AVIF, None, data) == len(data)
    for lost in (1, 100):
        with pytest.raises(DecodeError) as caught:
            decode(data[:-lost])
        assert caught.value.status is ImageStatus.TRUNCATED


def tiff(places: int, sizes: int, offsets: tuple[int, ...], counts: tuple[int, ...]) -> bytes:
    """A header whose parts may lie anywhere."""
    tail = 8 + 2 + 9 * 12 + 4
    entries = [
        *image_files.GREY_TIFF_4X4,
        *(((278, SHORT, 1, 2), (277, SHORT, 1, 1)) if places == 273 else ((322, SHORT, 1, 16), (323, SHORT, 1, 16))),
        (places, LONG, len(offsets), tail),
        (sizes, LONG, len(counts), tail + 4 * len(offsets)),
    ]
    return image_files.tiff(sorted(entries), struct.pack(f"<{len(offsets) + len(counts)}I", *offsets, *counts))


@pytest.mark.parametrize(("places", "sizes"), [(273, 279), (324, 325)], ids=["strips", "tiles"])
def test_a_tiff_ends_behind_the_part_that_lies_last(places: int, sizes: int) -> None:
    data = tiff(places, sizes, (5000, 9000, 200), (8, 16, 8))
    with TiffImagePlugin.TiffImageFile(io.BytesIO(data)) as image:
        assert structure_end(TIFF, image, data) == 9016


@pytest.mark.parametrize("compression", [None, "tiff_deflate", "tiff_lzw"])
def test_a_tiff_that_lacks_its_last_pixels_is_truncated(compression: str | None) -> None:
    # The directory comes first, as most programs write it; Pillow writes it last if it compresses.
    picture = image_files.picture()
    data = image_files.encoded(picture, "TIFF", compression=compression)
    with Image.open(io.BytesIO(data)) as image:
        end = structure_end(TIFF, image, data)
    assert 100 < end <= len(data)
    with pytest.raises(DecodeError) as caught:
        decode(data[: end - 1])
    assert caught.value.status is ImageStatus.TRUNCATED


def test_a_webp_says_its_length_and_a_png_does_not() -> None:
    webp = image_files.encoded(image_files.picture(), "WEBP")
    assert structure_end(WEBP, None, webp[:20]) == len(webp)
    assert structure_end(PNG, None, image_files.encoded(image_files.picture(), "PNG")) == 0

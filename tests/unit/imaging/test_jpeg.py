"""The head and the end of JPEG files, which this package reads by itself: what they say, and what is refused."""

import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.containers.jpeg import JpegHeader, read_header
from preprocess_ensemble.imaging.decode import decode
from tests.fixtures.images import image_files
from tests.fixtures.images.good_files import status_of


def segment(marker: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(payload) if length is None else length) + payload


def frame(
    marker: int = 0xC0, *, width: int = 64, height: int = 48, bits: int = 8, factors: tuple[int, ...] = (65, 18, 17)
) -> bytes:
    components = b"".join(bytes([number, factor, 0]) for number, factor in enumerate(factors))
    return segment(marker, struct.pack(">BHHB", bits, height, width, len(factors)) + components)


def jpeg(*segments: bytes) -> bytes:
    return b"\xff\xd8" + b"".join(segments)


SCAN = segment(0xDA, b"\3" + bytes(9))
HEADER = JpegHeader(64, 48, False, sampling=((4, 1), (1, 2), (1, 1)), metadata_bytes=0, has_app1=False)
HEADERS = {
    "bare": (jpeg(frame(), SCAN), HEADER),
    "with pixels": (jpeg(frame(), SCAN) + b"pixels\xff\xd9", HEADER),
    "grey": (jpeg(frame(factors=(0x11,)), segment(0xDA, b"\1\0")), HEADER._replace(sampling=((1, 1),))),
    "a scan for each colour": (jpeg(frame(), segment(0xDA, b"\1\0")), HEADER),
    "high": (jpeg(frame(width=1, height=65535), SCAN), HEADER._replace(width=1, height=65535)),
    "wide": (jpeg(frame(width=65535, height=1), SCAN), HEADER._replace(width=65535, height=1)),
    "no EXIF": (jpeg(segment(0xE0), segment(0xE2), frame(), SCAN), HEADER._replace(metadata_bytes=4)),
    "last application": (jpeg(frame(), segment(0xEF, b"abc"), SCAN), HEADER._replace(metadata_bytes=5)),
    "comment": (jpeg(segment(0xFE, b"abc"), frame(), SCAN), HEADER._replace(metadata_bytes=5)),
    "EXIF": (jpeg(segment(0xE1, b"Exif"), frame(), SCAN), HEADER._replace(metadata_bytes=6, has_app1=True)),
    "beside the applications": (jpeg(segment(0xF0, b"abc"), segment(0xDF, b"abc"), frame(), SCAN), HEADER),
    "tables": (jpeg(segment(0xDB, bytes(65)), segment(0xC4, bytes(17)), frame(), SCAN), HEADER),
    "no frames among the frames": (jpeg(segment(0xC8, bytes(15)), segment(0xCC, bytes(15)), frame(), SCAN), HEADER),
    "extended": (jpeg(frame(0xC1), SCAN), HEADER),
    "progressive": (jpeg(frame(0xC2), SCAN), HEADER._replace(is_progressive=True)),
}
CODINGS_THAT_SOME_LIBRARIES_LACK = {*range(0xC3, 0xD0)} - {0xC4, 0xC8, 0xCC}
ODD = {
    "the start only": jpeg(),
    "no scan": jpeg(frame()),
    "no frame": jpeg(SCAN),
    "two frames": jpeg(frame(), frame(), SCAN),
    "no width": jpeg(frame(width=0), SCAN),
    "no height": jpeg(frame(height=0), SCAN),
    "a scan that is cut": jpeg(frame(), SCAN)[:-1],
    "a segment that is cut": jpeg(frame(), segment(0xFE, bytes(9), length=2000), SCAN),
    "a frame that is cut": jpeg(segment(0xC0)),
    "an empty frame": jpeg(segment(0xC0), SCAN),
    "length 0": jpeg(segment(0xFE, length=0), frame(), SCAN),
    "length 1": jpeg(segment(0xFE, length=1), b"\0", frame(), SCAN),
    "fewer components than said": jpeg(frame().replace(struct.pack(">HB", 64, 3), struct.pack(">HB", 64, 4)), SCAN),
    "more components than said": jpeg(frame().replace(struct.pack(">HB", 64, 3), struct.pack(">HB", 64, 2)), SCAN),
    "padding": jpeg(b"\xff", frame(), SCAN),
    "no marker": jpeg(b"\x00" + segment(0xFE)[1:], frame(), SCAN),
    "behind the start": b"\xff\xd8\0\0" + frame() + SCAN,
    "12 bits": jpeg(frame(bits=12), SCAN),
    "two colours": jpeg(frame(factors=(0x11,) * 2), SCAN),
    "four colours": jpeg(frame(factors=(0x11,) * 4), SCAN),
    # What follows these looks like a length: without the marker's own meaning it would be skipped.
    **{
        f"marker {marker:x}": jpeg(segment(marker, b"ab"), frame(), SCAN) for marker in (0, 1, *range(0xD0, 0xDA), 0xFF)
    },
    **{f"coding {coding:x}": jpeg(frame(coding), SCAN) for coding in sorted(CODINGS_THAT_SOME_LIBRARIES_LACK)},
}


@pytest.mark.parametrize("name", [*HEADERS, *ODD])
def test_what_a_header_says_and_that_an_odd_one_is_refused(name: str) -> None:
    data, header = HEADERS[name] if name in HEADERS else (ODD[name], None)
    assert read_header(data) == header


GREYS = np.random.default_rng(0).integers(0, 256, (9, 12, 3)).astype(np.uint8)
SMOOTH = Image.fromarray(GREYS).resize((93, 70), Image.Resampling.BICUBIC)
FLAT = Image.new("RGB", (93, 70), "teal")
MOSTLY_OUTSIDE = SMOOTH.crop((0, 0, 81, 18))
"""The last blocks of colour cover 16 x 16 pixels, of which one column and two rows are in the picture."""
KINDS: dict[str, dict[str, Any]] = {
    "coarse": {"quality": 20},
    "finest": {"quality": 100, "subsampling": 0},
    "own code": {"quality": 90, "optimize": True},
    "restart markers": {"restart_marker_blocks": 3},
    "a row in each part": {"restart_marker_rows": 1},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("picture", [SMOOTH, FLAT, MOSTLY_OUTSIDE], ids=["smooth", "flat", "mostly outside"])
def test_a_jpeg_that_lacks_only_its_end_has_the_same_pixels(picture: Image.Image, mode: str, kind: str) -> None:
    data = image_files.encoded(picture.convert(mode), "JPEG", **KINDS[kind])
    whole = decode(data).tobytes()
    assert decode(data[:-2]).tobytes() == whole
    assert decode(data[:-1]).tobytes() == whole
    for lost in (3, 5, 6, 9):
        cut = data[:-lost]
        # The last byte of code may hold one bit, of a colour that shows nowhere.
        assert status_of(cut) is ImageStatus.TRUNCATED or decode(cut).tobytes() == whole, lost
    assert status_of(data[:-50]) is ImageStatus.TRUNCATED


def test_a_part_that_is_missing_as_a_whole_is_noticed() -> None:
    data = image_files.encoded(SMOOTH, "JPEG", restart_marker_rows=1)
    parts = [start for start in range(len(data)) if data[start] == 0xFF and 0xD0 <= data[start + 1] <= 0xD7]
    assert len(parts) == 4
    for start in parts:
        assert status_of(data[:start]) is ImageStatus.TRUNCATED
        assert status_of(data[: start + 2]) is ImageStatus.TRUNCATED


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_progressive_jpeg_is_whole_if_all_its_scans_are(mode: str) -> None:
    progressive = image_files.encoded(SMOOTH.convert(mode), "JPEG", progressive=True)
    assert decode(progressive[:-2]).tobytes() == decode(progressive).tobytes()
    scans = [start for start in range(len(progressive)) if progressive[start : start + 2] == b"\xff\xda"]
    for start in scans[1:]:
        # Before a scan stands the table of its codes.
        end = progressive.rindex(b"\xff\xc4", 0, start)
        assert status_of(progressive[:end]) is ImageStatus.TRUNCATED
    assert status_of(progressive[:-50]) is ImageStatus.TRUNCATED


def test_a_jpeg_without_its_end_is_scaled_and_turned_as_ever() -> None:
    exif = image_files.oriented(6).tobytes()
    data = image_files.encoded(SMOOTH.resize((930, 700)), "JPEG", exif=exif)
    for at_least in (None, (100, 100)):
        expected, image = (decode(one, at_least=at_least) for one in (data, data[:-2]))
        assert image.size == expected.size
        assert np.abs(np.asarray(image, np.int16) - np.asarray(expected, np.int16)).max() <= 1

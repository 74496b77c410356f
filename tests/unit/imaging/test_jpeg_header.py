"""The reader of JPEG headers, on headers put together byte by byte: what it says of them, and which it refuses."""

import struct

import pytest

from preprocess_ensemble.imaging.containers.jpeg import JpegHeader, read_header


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
}


@pytest.mark.parametrize("name", HEADERS)
def test_what_a_header_says(name: str) -> None:
    data, header = HEADERS[name]
    assert read_header(data) == header


@pytest.mark.parametrize("coding", [code for code in range(0xC0, 0xD0) if code not in (0xC4, 0xC8, 0xCC)])
def test_a_coding_that_some_libraries_lack_is_refused(coding: int) -> None:
    header = read_header(jpeg(frame(coding), SCAN))
    expected = HEADER._replace(is_progressive=coding == 0xC2)
    assert header == (expected if coding in (0xC0, 0xC1, 0xC2) else None)


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
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_an_odd_header_is_refused(data: bytes) -> None:
    assert read_header(data) is None

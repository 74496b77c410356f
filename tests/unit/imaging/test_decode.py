"""Decoding, compared with Pillow: good files have its pixels, others give an image or a status, and nothing is said."""

import io
import logging
import struct
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from clip_client.dedup.compare.aligner import keypoints_in
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.formats.encoding import read_encoding
from clip_client.dedup.metadata.facts import read_facts
from clip_client.dedup.metadata.summary import read_metadata
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
from preprocess_ensemble.imaging.formats import FORMATS, identify
from preprocess_ensemble.imaging.quiet import quiet_libraries
from tests.fixtures.images import image_files
from tests.fixtures.images.good_files import CONVERTED_FILES, GOOD_FILES, assert_same_pixels, on_white, reference


@pytest.mark.parametrize("name", GOOD_FILES)
def test_good_files_have_pillows_pixels(name: str) -> None:
    for limits in (DecodeLimits(), DecodeLimits(allow_truncated=True)):
        assert_same_pixels(decode(memoryview(GOOD_FILES[name]), limits), reference(GOOD_FILES[name]))


CONVERTED = {**CONVERTED_FILES, "1 bit, of a PPM": image_files.file("PPM", "1")}


@pytest.mark.parametrize(("name", "data"), CONVERTED.items(), ids=CONVERTED)
def test_other_modes_are_shown_on_white(name: str, data: bytes) -> None:
    decoded = decode(data)
    assert decoded.mode == ("L" if name.startswith("1 bit") else "RGB")
    assert np.abs(np.asarray(decoded.convert("RGB")) - on_white(reference(data))).max() <= 0.51


@pytest.mark.skipif(
    (b"II", 1, (1,), 1, (8, 8), (1,)) not in TiffImagePlugin.OPEN_INFO, reason="this Pillow is too old for such files"
)
def test_grey_that_is_multiplied_by_its_transparency_is_shown_on_white() -> None:
    data = image_files.encoded(Image.new("LA", (4, 2), (60, 100)), "TIFF")
    kind, multiplied = (struct.pack("<HHIHH", 338, 3, 1, number, 0) for number in (2, 1))
    assert decode(data.replace(kind, multiplied)).getpixel((0, 0)) == (215, 215, 215)  # 60 + 255 - 100
    assert decode(data).getpixel((0, 0)) != (215, 215, 215)


def test_every_readable_format_is_met_here() -> None:
    met = {known.name for data in (*GOOD_FILES.values(), *CONVERTED_FILES.values()) if (known := identify(data))}
    assert met == {known.name for known in FORMATS if known.readable}


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation(image_format: str) -> None:
    for orientation in range(9) if image_format == "JPEG" else (3, 6):
        data = image_files.file(image_format, exif=image_files.oriented(orientation))
        image = decode(data)
        assert_same_pixels(image, reference(data))
        assert image.size == ((48, 64) if orientation > 4 else (64, 48))


@pytest.mark.parametrize(
    "exif",
    [b"", b"II*\0", b"garbage garbage garbage", b"MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 40, b"II*\0\xff\xff\xff\x7f",
     b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x02AB\0\0\0\0\0\0",
     b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\x01\0\0\0\0\0\0\0"],
)  # fmt: skip
def test_broken_exif_leaves_the_image_as_it_is(exif: bytes) -> None:
    data = image_files.jpeg_with_segment(0xE1, b"Exif\0\0" + exif)
    assert_same_pixels(decode(data), Image.open(io.BytesIO(image_files.jpeg())))


def test_16_bits_are_scaled_to_8() -> None:
    samples = np.arange(64 * 66, dtype=np.uint16).reshape(64, 66) * 15
    grey = (samples >> 8).astype(np.uint8)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    even, odd = samples[:, ::2] >> 4, samples[:, 1::2] >> 4
    of_12_bits = np.dstack([even >> 4, (even & 15) << 4 | odd >> 8, odd & 255]).astype(np.uint8).tobytes()
    for data, expected in (
        (image_files.png(66, 64, 16, 0, rows), grey),
        (b"P5 66 64 65535\n" + samples.astype(">u2").tobytes(), grey),
        (image_files.grey_tiff(samples), grey),
        (image_files.tiff(image_files.picture_tags((66, 64), [16], 0, 8448), samples.tobytes()), ~grey),
        (image_files.tiff(image_files.picture_tags((66, 64), [12], 1, 6336), of_12_bits), grey),
        (image_files.png(22, 64, 16, 2, rows), grey.reshape(64, 22, 3)),
    ):
        assert np.array_equal(np.asarray(decode(data)), expected)


@pytest.mark.parametrize(
    ("depth", "bands", "row", "key", "other"),
    [
        (2, 1, b"\x60", b"\0\1", 170),
        (4, 1, b"\x12", b"\0\1", 34),
        *((8, bands, b"\x14" * bands + b"\x28" * bands, b"\0\x14" * bands, 40) for bands in (1, 3)),
        *((16, bands, b"\x14\0" * bands + b"\x28\0" * bands, b"\x14\0" * bands, 40) for bands in (1, 3)),
    ],
)
def test_a_colour_key_becomes_white(depth: int, bands: int, row: bytes, key: bytes, other: int) -> None:
    """The first of two pixels has that colour. Colour type 0 is grey, and 2 is RGB."""
    chunk = image_files.png_chunk(b"tRNS", key)
    decoded = decode(image_files.png(2, 1, depth, bands - 1, b"\0" + row, chunk)).convert("RGB")
    assert np.asarray(decoded).tolist() == [[[255] * 3, [other] * 3]]


def test_warnings_are_suppressed_and_no_filter_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # the pictures have 3072 pixels: Pillow would warn
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(decode, [GOOD_FILES["tiff"], GOOD_FILES["tiff lzw"], GOOD_FILES["baseline"]] * 50))
    assert warnings.filters == before
    with pytest.warns(Image.DecompressionBombWarning):
        TiffImagePlugin.TiffImageFile(io.BytesIO(GOOD_FILES["tiff"])).load()


def damaged_fax() -> bytes:
    """A TIFF of which libtiff says for each row that it is damaged, and which Pillow shows nevertheless."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60), dtype=np.uint8)).convert("1")
    data = bytearray(image_files.encoded(noise, "TIFF", compression="group4"))
    with TiffImagePlugin.TiffImageFile(io.BytesIO(data)) as image:
        start = image.tag_v2[TiffImagePlugin.STRIPOFFSETS][0]
    for position in range(start + 20, start + 200, 10):
        data[position] ^= 0x5A
    return bytes(data)


def load(data: bytes) -> None:
    with TiffImagePlugin.TiffImageFile(io.BytesIO(data)) as image:
        image.load()


def test_what_libtiff_says_is_heard_outside_alone(capfd: pytest.CaptureFixture[str]) -> None:
    data = damaged_fax()
    decode(data)
    with quiet_libraries():
        load(data)
        with quiet_libraries():
            pass
        load(data)
        thread = threading.Thread(target=decode, args=(data,))
        thread.start()
        thread.join()
        load(data)
    assert capfd.readouterr().err == ""
    load(data)
    assert "Fax4Decode" in capfd.readouterr().err


@pytest.mark.parametrize("read", [read_metadata, read_facts, read_encoding, keypoints_in, extract_features])
def test_nothing_warns_of_what_a_file_lacks(read: object) -> None:
    assert callable(read)
    entries = [(0x010F, 2, 5000, 90_000), (0x0112, 3, 1, 1), (0x8769, 4, 1, 99_999)]
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read(image_files.jpeg_with_segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0" + directory))
    assert [str(one.message) for one in caught] == []


def test_pillow_logs_nothing_of_a_file(caplog: pytest.LogCaptureFixture) -> None:
    data = image_files.tiff(image_files.picture_tags((4, 4), [8] * 9, 1, 144), bytes(144))
    with caplog.at_level(logging.WARNING, "PIL"):
        with pytest.raises(DecodeError):
            decode(data)
        assert caplog.messages == []
        with pytest.raises(SyntaxError):
            load(data)
        assert caplog.messages == ["More samples per pixel than can be decoded: 9"]

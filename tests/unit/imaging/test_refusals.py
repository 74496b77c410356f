"""Every kind of refused file has its status, and a message of one sentence."""

from __future__ import annotations

import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, features

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
from preprocess_ensemble.imaging.formats import outdated_refusals
from tests.fixtures.images import image_files
from tests.fixtures.images.good_files import GOOD_FILES, animation, assert_same_pixels, reference


def refused(data: bytes, **limits: Any) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode(data, DecodeLimits(**limits))
    assert caught.value.message.endswith(".")
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("samples", [np.full((4, 4), 70_000, np.int32), np.full((4, 4), 0.5, np.float32)])
def test_samples_without_a_white_are_refused(samples: np.ndarray[Any, Any]) -> None:
    assert refused(image_files.grey_tiff(samples)).status is ImageStatus.UNSUPPORTED_FORMAT


def test_empty() -> None:
    assert refused(b"").status is ImageStatus.EMPTY


@pytest.mark.parametrize(
    "data", [b"x", b"just some text, not an image\n" * 100, bytes(1000), b"<html></html>", b"BM is text"]
)
def test_not_an_image(data: bytes) -> None:
    assert refused(data).status is ImageStatus.NOT_AN_IMAGE


UNSUPPORTED = {
    "Photoshop PSD": b"8BPS\0\x01" + bytes(50),
    "PDF": b"%PDF-1.7\n",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n",
    "SVG": b'<?xml version="1.0"?>\n<!-- drawn --><svg xmlns="http://www.w3.org/2000/svg"/>',
    "ICO": b"\0\0\x01\0\x01\0\x10\x10" + bytes(50),
    "video (MP4 or QuickTime)": b"\0\0\0\x18ftypmp42" + bytes(50),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_formats_are_named(name: str) -> None:
    error = refused(UNSUPPORTED[name])
    assert error.status is ImageStatus.UNSUPPORTED_FORMAT
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("heic", "pillow_heif", "pillow-heif"), ("jpeg xl", "pillow_jxl", "pillow-jxl-plugin")],
)
def test_a_missing_plugin_is_named(name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    error = refused(GOOD_FILES[name])
    assert error.status is ImageStatus.UNSUPPORTED_FORMAT
    assert error.message.endswith(f", which cannot be read here: pip install {package}.")
    assert error.message not in outdated_refusals()
    monkeypatch.undo()
    assert error.message in outdated_refusals(), "a stored refusal is dropped once the package is there"


def test_an_unsupported_variant_of_a_format() -> None:
    bitmap = bytearray(image_files.encoded(image_files.picture(), "BMP"))
    bitmap[28:30] = struct.pack("<H", 7)  # 7 bits per pixel
    error = refused(bytes(bitmap))
    assert error.status is ImageStatus.UNSUPPORTED_FORMAT
    assert "BMP" in error.message


def test_subsampled_ycbcr_of_a_tiff_is_not_taken_for_whole() -> None:
    data = image_files.encoded(image_files.picture("YCbCr"), "TIFF")
    subsampling = struct.pack("<HHI2H", 530, 3, 2, 1, 1)
    assert subsampling in data
    for changed in (struct.pack("<HHI2H", 530, 3, 2, 2, 2), struct.pack("<HHI2H", 531, 3, 2, 1, 1)):
        error = refused(data.replace(subsampling, changed))
        assert error.status is ImageStatus.UNSUPPORTED_FORMAT


def test_a_codec_that_pillow_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "check", lambda name: False)
    assert refused(GOOD_FILES["webp"]).status is ImageStatus.UNSUPPORTED_FORMAT


# Nothing needs the last byte of these: trailing bytes, a page that is not shown, the marker behind the pixels.
_LONGER_THAN_NEEDED = {
    "trailing bytes",
    "mpo",
    "apng",
    "animated webp",
    "tiff pages",
    "one pixel",
    "png 1x1",
    "icc",
    "jpeg 2000",
}
_WITHOUT_AN_END = {"jpeg xl", "jpeg xl grey", "jpeg xl of 10 bits"}
"""Nothing in these says how long they are, so they count as corrupt."""


@pytest.mark.parametrize("name", sorted(GOOD_FILES.keys() - _LONGER_THAN_NEEDED))
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_files(name: str, share: float) -> None:
    data = GOOD_FILES[name]
    error = refused(data[: int(len(data) * share)])
    expected = ImageStatus.CORRUPT if name in _WITHOUT_AN_END else ImageStatus.TRUNCATED
    assert error.status is expected
    assert expected.name.lower() in error.message


@pytest.mark.parametrize("length", [3, 10, 20, 100])
def test_a_few_bytes_of_a_jpeg_are_truncated(length: int) -> None:
    assert refused(image_files.jpeg()[:length]).status is ImageStatus.TRUNCATED


@pytest.mark.parametrize("name", ["baseline", "progressive", "grey", "png"])
def test_allow_truncated_shows_what_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = GOOD_FILES[name][: len(GOOD_FILES[name]) * 2 // 3]
    image = decode(data, DecodeLimits(allow_truncated=True))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert_same_pixels(image, reference(data))


def test_allow_truncated_does_not_change_good_files() -> None:
    limits = DecodeLimits(allow_truncated=True)
    for data in GOOD_FILES.values():
        assert_same_pixels(decode(data, limits), decode(data))


def test_the_hosts_own_flag_for_truncated_images_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for name in ("baseline", "progressive", "png", "bmp"):
        data = GOOD_FILES[name]
        assert refused(data[: len(data) * 2 // 3]).status is ImageStatus.TRUNCATED
        assert_same_pixels(decode(data), reference(data))


def test_truncated_and_allowed_differ_between_threads() -> None:
    data = GOOD_FILES["baseline"][: len(GOOD_FILES["baseline"]) * 2 // 3]

    def attempt(number: int) -> bool:
        try:
            decode(data, DecodeLimits(allow_truncated=number % 2 == 0))
        except DecodeError as error:
            return error.status is ImageStatus.TRUNCATED and number % 2 == 1
        return number % 2 == 0

    with ThreadPoolExecutor(8) as executor:
        assert all(executor.map(attempt, range(400)))


def corrupt_files() -> dict[str, bytes]:
    good_png = GOOD_FILES["png"]
    broken_png = bytearray(good_png)
    pixels = good_png.index(b"IDAT") + 4
    broken_png[pixels : pixels + 200] = b"\xff" * 200
    huffman = GOOD_FILES["baseline"].index(b"\xff\xc4")
    broken_jpeg = bytearray(GOOD_FILES["baseline"])
    broken_jpeg[huffman + 4 : huffman + 24] = b"\xff" * 20
    webp = bytearray(GOOD_FILES["webp"])
    webp[20:60] = b"\xff" * 40
    return {"png": bytes(broken_png), "jpeg": bytes(broken_jpeg), "webp": bytes(webp)}


@pytest.mark.parametrize("name", ["png", "jpeg", "webp"])
def test_corrupt_files(name: str) -> None:
    error = refused(corrupt_files()[name])
    assert error.status is ImageStatus.CORRUPT
    assert "corrupt" in error.message


def test_too_many_bytes() -> None:
    data = image_files.jpeg()
    decode(data, DecodeLimits(max_bytes=len(data)))
    error = refused(bytes(2000), max_bytes=1999)
    assert error.status is ImageStatus.TOO_LARGE
    assert "2,000" in error.message
    assert "1,999" in error.message


@pytest.mark.parametrize("data", [image_files.png_bomb(), image_files.jpeg_header(65_000, 65_000)])
def test_bombs_are_refused_from_the_header(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pixels(self: ImageFile.ImageFile) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", no_pixels)
    error = refused(data)
    assert error.status is ImageStatus.TOO_LARGE
    assert "128" in error.message


def test_the_megapixels_are_named_with_their_limit() -> None:
    error = refused(image_files.jpeg(size=(1000, 1200)), max_pixels=1_000_000)
    assert error.status is ImageStatus.TOO_LARGE
    assert "1.2 megapixels (1000 x 1200); the limit is 1." in error.message


@pytest.mark.parametrize(
    "data",
    [
        image_files.encoded(Image.new("RGB", (1100, 1000)), "QOI"),
        b"P5 1100 1000 1023\n" + bytes(2 * 1100 * 1000),
        b"P2 1100 1000 255\n" + b"0 " * 1100 * 1000,
    ],
)
def test_what_pillow_decodes_in_python_has_a_smaller_limit(data: bytes) -> None:
    error = refused(data)
    assert error.status is ImageStatus.TOO_LARGE
    assert "1.1 megapixels" in error.message


def test_side_ratio() -> None:
    assert decode(image_files.jpeg(size=(500, 10))).size == (500, 10)
    error = refused(image_files.jpeg(size=(510, 10)))
    assert error.status is ImageStatus.LIMIT
    assert "51.0" in error.message
    assert "50" in error.message


@pytest.mark.parametrize("image_format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_frames(image_format: str) -> None:
    data = animation(image_format, 5)
    decode(data, DecodeLimits(max_frames=5))
    error = refused(data, max_frames=4)
    assert error.status is ImageStatus.LIMIT
    assert "4 frames" in error.message


def test_a_tiff_without_an_end_of_frames() -> None:
    assert refused(image_files.endless_tiff()).status is ImageStatus.LIMIT


def test_metadata() -> None:
    data = image_files.jpeg(icc_profile=bytes(300_000))
    decode(data)
    error = refused(data, max_metadata_bytes=100_000)
    assert error.status is ImageStatus.LIMIT
    assert "300,000" in error.message


def test_a_defect_is_internal_and_keeps_its_text_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(self: ImageFile.ImageFile) -> None:
        raise AttributeError("/secret/path")

    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", defect)
    error = refused(GOOD_FILES["png"])
    assert error.status is ImageStatus.INTERNAL
    assert "secret" not in error.message
    assert isinstance(error.__cause__, AttributeError)


def test_pillows_own_pixel_limit_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert refused(GOOD_FILES["tiff"]).status is ImageStatus.TOO_LARGE


@pytest.mark.parametrize(
    "field", ["max_bytes", "max_pixels", "max_side_ratio", "max_frames", "max_metadata_bytes", "max_decode_s"]
)
def test_limits_that_would_refuse_everything_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        DecodeLimits(**dict[str, Any]({field: 0}))


def test_the_smallest_limits_are_limits() -> None:
    DecodeLimits(max_bytes=1, max_pixels=1, max_side_ratio=1.0, max_frames=1, max_metadata_bytes=1, max_decode_s=0.001)
    with pytest.raises(ValueError, match=r"^max_side_ratio must be at least 1, not 0\.5\.$"):
        DecodeLimits(max_side_ratio=0.5)
    with pytest.raises(ValueError, match=r"^max_decode_s must be above 0, not -1\.$"):
        DecodeLimits(max_decode_s=-1)


@pytest.mark.parametrize(
    ("data", "limits", "message"),
    [
        (b"", {}, "The image is empty: 0 bytes were received."),
        (bytes(2000), {"max_bytes": 1999}, "The image file has 2,000 bytes; the limit is 1,999."),
        (b"x", {}, "The file is not an image of any known format."),
        (UNSUPPORTED["PDF"], {}, "The file is of format PDF, which cannot be read here."),
    ],
    ids=["empty", "bytes", "unknown", "unsupported"],
)
def test_a_refusal_is_one_sentence_for_people(data: bytes, limits: dict[str, Any], message: str) -> None:
    assert refused(data, **limits).message == message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "There was not enough memory to decode the image."),
        (AttributeError("/secret/path"), "The decoder failed in an unexpected way."),
    ],
    ids=["memory", "defect"],
)
def test_what_is_not_the_files_fault_says_so(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ImageFile.ImageFile) -> None:
        raise error

    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", fail)
    caught = refused(GOOD_FILES["png"])
    assert (caught.status, caught.message) == (ImageStatus.INTERNAL, message)
    assert caught.__cause__ is error


def test_pillows_own_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    message = "The image has more pixels than Pillow's own limit of 0.002 megapixels."
    assert refused(GOOD_FILES["tiff"]).message == message

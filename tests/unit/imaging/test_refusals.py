"""Every kind of refused file has its status, and a message of one sentence."""

import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image, ImageFile, features

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
from preprocess_ensemble.imaging.formats import outdated_refusals
from preprocess_ensemble.imaging.inspection import structure_end
from tests.fixtures.images import image_files
from tests.fixtures.images.good_files import GOOD_FILES, animation, assert_same_pixels, reference, refused


def changed(data: bytes, start: int, by: bytes) -> bytes:
    return data[:start] + by + data[start + len(by) :]


UNREADABLE = {
    "Photoshop PSD": b"8BPS\0\x01" + bytes(50),
    "PDF": b"%PDF-1.7\n",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n",
    "SVG": b'<?xml version="1.0"?>\n<!-- drawn --><svg xmlns="http://www.w3.org/2000/svg"/>',
    "ICO": b"\0\0\x01\0\x01\0\x10\x10" + bytes(50),
    "video (MP4 or QuickTime)": b"\0\0\0\x18ftypmp42" + bytes(50),
}
YCBCR = image_files.file("TIFF", "YCbCr")
SUBSAMPLING = struct.pack("<HHI2H", 530, 3, 2, 1, 1)
PNG, BASELINE = GOOD_FILES["png"], GOOD_FILES["baseline"]
REFUSED = {
    "empty": (b"", ImageStatus.EMPTY, "The image is empty: 0 bytes were received."),
    "a letter": (b"x", ImageStatus.NOT_AN_IMAGE, "The file is not an image of any known format."),
    "text": (b"just some text, not an image\n" * 100, ImageStatus.NOT_AN_IMAGE, ""),
    "zeros": (bytes(1000), ImageStatus.NOT_AN_IMAGE, ""),
    "a page": (b"<html></html>", ImageStatus.NOT_AN_IMAGE, ""),
    "text like a BMP": (b"BM is text", ImageStatus.NOT_AN_IMAGE, ""),
    **{
        name: (data, ImageStatus.UNSUPPORTED_FORMAT, f"The file is of format {name}, which cannot be read here.")
        for name, data in UNREADABLE.items()
    },
    **{
        f"{kind}: {level}": (
            image_files.grey_tiff(np.full((4, 4), level, kind)), ImageStatus.UNSUPPORTED_FORMAT, "outside 0 to 65,535",
        )
        for kind, level in (("int32", 70_000), ("int16", -1))
    },
    "floats": (image_files.grey_tiff(np.full((4, 4), 0.5, np.float32)), ImageStatus.UNSUPPORTED_FORMAT, "mode F"),
    "a BMP of 7 bits": (changed(GOOD_FILES["bmp"], 28, b"\7\0"), ImageStatus.UNSUPPORTED_FORMAT, "BMP"),
    "four pixels of a colour": (
        YCBCR.replace(SUBSAMPLING, struct.pack("<HHI2H", 530, 3, 2, 2, 2)), ImageStatus.UNSUPPORTED_FORMAT, "TIFF",
    ),
    "four pixels of a colour by default": (
        YCBCR.replace(SUBSAMPLING, struct.pack("<HHI2H", 531, 3, 2, 1, 1)), ImageStatus.UNSUPPORTED_FORMAT, "TIFF",
    ),
    **{
        f"compression {method} in a TIFF": (
            image_files.tiff(image_files.picture_tags((4, 4), [8], 1, 16, compression=method), bytes(16)),
            ImageStatus.UNSUPPORTED_FORMAT,
            f"compressed by {name}, which Pillow cannot read here. No extra",
        )
        for method, name in ((34712, "method 34712"), (50001, "webp"))
    },
    **{f"{length} bytes of a JPEG": (BASELINE[:length], ImageStatus.TRUNCATED, "") for length in (3, 10, 20, 100)},
    "broken pixels": (changed(PNG, PNG.index(b"IDAT") + 4, b"\xff" * 200), ImageStatus.CORRUPT, "corrupt"),
    "broken code": (changed(BASELINE, BASELINE.index(b"\xff\xc4") + 4, b"\xff" * 20), ImageStatus.CORRUPT, "corrupt"),
    "a broken frame": (changed(GOOD_FILES["webp"], 20, b"\xff" * 40), ImageStatus.CORRUPT, "corrupt"),
    "no palette": (image_files.png(4, 4, 8, 3, bytes(5 * 4)), ImageStatus.CORRUPT, "lacks its palette"),
    # What Pillow decodes in Python.
    "a large QOI": (
        changed(GOOD_FILES["qoi"], 4, struct.pack(">2I", 1100, 1000)), ImageStatus.TOO_LARGE, "1.1 megapixels",
    ),
    "a large PPM of 10 bits": (
        b"P5 1100 1000 1023\n" + bytes(2 * 1100 * 1000), ImageStatus.TOO_LARGE, "1.1 megapixels",
    ),
    "a large plain PPM": (b"P2 1100 1000 255\n" + b"0 " * 1100 * 1000, ImageStatus.TOO_LARGE, "1.1 megapixels"),
    "frames without an end": (image_files.endless_tiff(), ImageStatus.LIMIT, "10,000 frames"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "status", "words"), REFUSED.values(), ids=REFUSED)
def test_a_file_is_refused_with_its_status(data: bytes, status: ImageStatus, words: str) -> None:
    error = refused(data)
    assert error.status is status
    assert words in error.message


@pytest.mark.parametrize(("name", "module"), [("heic", "pillow_heif"), ("jpeg xl", "pillow_jxl")])
def test_the_extra_of_a_missing_plugin_is_named(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    error = refused(GOOD_FILES[name])
    assert error.status is ImageStatus.UNSUPPORTED_FORMAT
    remedy = "pip install '.[phone]' in a clone of clip-triton"
    assert error.message == f"The file is of format {name.upper()}, which cannot be read here: {remedy}."
    assert not error.message.startswith(tuple(outdated_refusals()))
    monkeypatch.undo()
    assert error.message.startswith(tuple(outdated_refusals())), "a stored refusal is dropped once the package is there"


def test_a_codec_that_pillow_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "check", lambda name: False)
    assert refused(GOOD_FILES["webp"]).status is ImageStatus.UNSUPPORTED_FORMAT


# Nothing needs the last byte of these: trailing bytes, a page that is not shown, the marker behind the pixels.
_LONGER_THAN_NEEDED = {
    "trailing bytes", "mpo", "apng", "animated webp", "tiff pages", "one pixel", "png 1x1", "icc", "jpeg 2000",
    "jpeg 2000 without boxes",
}  # fmt: skip
_WITHOUT_AN_END = {"jpeg xl", "jpeg xl grey", "jpeg xl of 10 bits"}
"""Nothing in these says how long they are, so they count as corrupt."""


@pytest.mark.parametrize("name", sorted(GOOD_FILES.keys() - _LONGER_THAN_NEEDED))
def test_truncated_files(name: str) -> None:
    data = GOOD_FILES[name]
    expected = ImageStatus.CORRUPT if name in _WITHOUT_AN_END else ImageStatus.TRUNCATED
    for share in (0.3, 0.6, 0.9):
        error = refused(data[: int(len(data) * share)])
        assert error.status is expected
        assert expected.name.lower() in error.message


TIFFS = {f"tiff {one}": image_files.file("TIFF", compression=one) for one in (None, "tiff_deflate", "tiff_lzw")}
WHOLE = {name: data[: structure_end("TIFF", data)] for name, data in TIFFS.items()}
if features.check("avif"):
    WHOLE["avif"] = GOOD_FILES["avif"]


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_lacks_its_last_byte_is_truncated(name: str) -> None:
    assert refused(WHOLE[name][:-1]).status is ImageStatus.TRUNCATED


@pytest.mark.parametrize("name", ["baseline", "progressive", "grey", "png"])
def test_allow_truncated_shows_what_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = GOOD_FILES[name][: len(GOOD_FILES[name]) * 2 // 3]
    image = decode(data, DecodeLimits(allow_truncated=True))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert_same_pixels(image, reference(data))


def test_the_hosts_own_flag_for_truncated_images_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for name in ("baseline", "progressive", "png", "bmp"):
        data = GOOD_FILES[name]
        assert refused(data[: len(data) * 2 // 3]).status is ImageStatus.TRUNCATED
        assert_same_pixels(decode(data), reference(data))


def test_truncated_and_allowed_differ_between_threads() -> None:
    data = BASELINE[: len(BASELINE) * 2 // 3]

    def attempt(number: int) -> bool:
        try:
            decode(data, DecodeLimits(allow_truncated=number % 2 == 0))
        except DecodeError as error:
            return error.status is ImageStatus.TRUNCATED and number % 2 == 1
        return number % 2 == 0

    with ThreadPoolExecutor(8) as executor:
        assert all(executor.map(attempt, range(400)))


@pytest.mark.parametrize("data", [image_files.png_bomb(), image_files.jpeg_header(65_000, 65_000)])
def test_bombs_are_refused_from_the_header(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", Mock(side_effect=AssertionError("pixels were decoded")))
    error = refused(data)
    assert error.status is ImageStatus.TOO_LARGE
    assert "128" in error.message


JPEG = image_files.jpeg(size=(1000, 1200))
LIMITS = {
    "max_bytes": (
        JPEG, len(JPEG), len(JPEG) - 1, ImageStatus.TOO_LARGE,
        f"The image file has {len(JPEG):,} bytes; the limit is {len(JPEG) - 1:,}: use a smaller file.",
    ),
    "max_pixels": (
        JPEG, 1_200_000, 1_100_000, ImageStatus.TOO_LARGE,
        "The image has 1.2 megapixels (1000 x 1200); the limit is 1.1: save a smaller copy and use it.",
    ),
    "max_side_ratio": (
        image_files.jpeg(size=(510, 10)), 51.0, 50.0, ImageStatus.LIMIT,
        "The image's sides, 510 x 10, have a ratio of 51.0; the limit is 50: crop it.",
    ),
    "max_metadata_bytes": (
        image_files.jpeg(icc_profile=bytes(300_000)), 300_000, 100_000, ImageStatus.LIMIT,
        "The image carries 300,000 bytes of metadata (EXIF, XMP, colour profile); the limit is 100,000: remove some.",
    ),
    **{
        f"max_frames of {name}": (
            animation(name, 5), 5, 4, ImageStatus.LIMIT, "The image has more than 4 frames, which is the limit.",
        )
        for name in ("GIF", "PNG", "WEBP", "TIFF")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_exact_and_its_sentence_says_what_was_found(name: str) -> None:
    field, (data, allowed, limit, status, message) = name.partition(" ")[0], LIMITS[name]
    decode(data, DecodeLimits(**dict[str, Any]({field: allowed})))
    error = refused(data, **dict[str, Any]({field: limit}))
    assert (error.status, error.message) == (status, message)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "There was not enough memory to decode the image."),
        (AttributeError("/secret/path"), "The decoder failed in an unexpected way."),
    ],
    ids=["memory", "defect"],
)
def test_what_is_not_the_files_fault_says_so(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", Mock(side_effect=error))
    caught = refused(PNG)
    assert (caught.status, caught.message) == (ImageStatus.INTERNAL, message)
    assert caught.__cause__ is error


def test_pillows_own_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    error = refused(GOOD_FILES["tiff"])
    message = "The image has more pixels than Pillow's own limit of 0.002 megapixels: save a smaller copy and use it."
    assert (error.status, error.message) == (ImageStatus.TOO_LARGE, message)


@pytest.mark.parametrize(
    ("field", "least", "wrong"),
    [*((name, 1, 0) for name in ("max_bytes", "max_pixels", "max_frames", "max_metadata_bytes")),
     ("max_side_ratio", 1.0, 0.5), ("max_decode_s", 0.001, 0)],
)  # fmt: skip
def test_limits_that_would_refuse_everything_are_refused(field: str, least: float, wrong: float) -> None:
    DecodeLimits(**dict[str, Any]({field: least}))
    with pytest.raises(ValueError, match=rf"^{field} must be .*, not {wrong}\.$"):
        DecodeLimits(**dict[str, Any]({field: wrong}))

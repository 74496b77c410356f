"""Decoding against Pillow itself for good files, and the promised status for every kind of bad one."""

from __future__ import annotations

import io
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageFile, ImageOps, TiffImagePlugin, features

from preprocess_ensemble import decode as decode_module
from preprocess_ensemble.decode import DecodeError, DecodeLimits, ImageStatus, decode
from preprocess_ensemble.formats import FORMATS, identify
from tests.unit import image_files

if TYPE_CHECKING:
    from pathlib import Path

PLAIN_MODES = ("L", "RGB", "CMYK")


def reference(data: bytes) -> Image.Image:
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data)))


def assert_same_pixels(image: Image.Image, expected: Image.Image) -> None:
    assert (image.mode, image.size) == (expected.mode, expected.size)
    assert image.tobytes() == expected.tobytes()


def refused(data: bytes, **limits: Any) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode(data, DecodeLimits(**limits))
    assert caught.value.message.endswith(".")
    assert "\n" not in caught.value.message
    return caught.value


GOOD_FILES = {
    "baseline": image_files.jpeg(quality=85),
    "progressive": image_files.jpeg(progressive=True),
    "grey": image_files.jpeg("L"),
    "cmyk": image_files.jpeg("CMYK"),
    "444": image_files.jpeg(subsampling=0),
    "422": image_files.jpeg(subsampling=1),
    "420": image_files.jpeg(subsampling=2),
    "icc": image_files.jpeg(icc_profile=b"not really a profile" * 100),
    "trailing bytes": image_files.jpeg() + b"some more" * 1000,
    "one pixel": image_files.jpeg(size=(1, 1)),
    "png": image_files.encoded(image_files.picture(), "PNG"),
    "png grey": image_files.encoded(image_files.picture("L"), "PNG"),
    "png 1x1": image_files.encoded(image_files.picture("RGB", (1, 1)), "PNG"),
    "webp": image_files.encoded(image_files.picture(), "WEBP"),
    "webp lossless": image_files.encoded(image_files.picture(), "WEBP", lossless=True),
    "tiff": image_files.encoded(image_files.picture(), "TIFF"),
    "tiff lzw": image_files.encoded(image_files.picture(), "TIFF", compression="tiff_lzw"),
    "tiff cmyk": image_files.encoded(image_files.picture("CMYK"), "TIFF"),
    "tiff ycbcr": image_files.encoded(image_files.picture("YCbCr"), "TIFF"),
    "bmp": image_files.encoded(image_files.picture(), "BMP"),
    "jpeg 2000": image_files.encoded(image_files.picture(), "JPEG2000"),
    "ppm": image_files.encoded(image_files.picture(), "PPM"),
    "qoi": image_files.encoded(image_files.picture(), "QOI"),
    "mpo": image_files.encoded(
        image_files.picture(), "MPO", save_all=True, append_images=[image_files.picture(seed=1)]
    ),
    "apng": image_files.encoded(
        image_files.picture(), "PNG", save_all=True, append_images=[image_files.picture(seed=1)]
    ),
    "animated webp": image_files.encoded(
        image_files.picture(), "WEBP", save_all=True, append_images=[image_files.picture(seed=1)]
    ),
    "tiff pages": image_files.encoded(
        image_files.picture(), "TIFF", save_all=True, append_images=[image_files.picture(seed=1)]
    ),
}
if features.check("avif"):
    GOOD_FILES["avif"] = image_files.encoded(image_files.picture(), "AVIF")


@pytest.mark.parametrize("name", GOOD_FILES)
def test_good_files_have_pillows_pixels(name: str) -> None:
    assert_same_pixels(decode(GOOD_FILES[name]), reference(GOOD_FILES[name]))


def test_real_photos_have_pillows_pixels(photos: Path) -> None:
    compared = 0
    for path in sorted(photos.iterdir()):
        expected = reference(path.read_bytes())
        if expected.mode in PLAIN_MODES:
            assert_same_pixels(decode(path.read_bytes()), expected)
            compared += 1
    assert compared >= 10


def test_a_memoryview_is_as_good_as_bytes() -> None:
    data = image_files.jpeg()
    assert_same_pixels(decode(memoryview(data)), decode(data))


@pytest.mark.parametrize("orientation", range(9))
def test_exif_orientation(orientation: int) -> None:
    data = image_files.rotated_jpeg(orientation)
    assert_same_pixels(decode(data), reference(data))


@pytest.mark.parametrize("image_format", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [3, 6])
def test_exif_orientation_outside_jpeg(image_format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[image_files.ORIENTATION] = orientation
    data = image_files.encoded(image_files.picture(), image_format, exif=exif)
    image = decode(data)
    assert_same_pixels(image, reference(data))
    assert image.size == ((48, 64) if orientation == 6 else (64, 48))


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0",
        b"Exif\0\0II*\0",
        b"Exif\0\0garbage garbage garbage",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 40,
        b"Exif\0\0II*\0\xff\xff\xff\x7f",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x02AB\0\0\0\0\0\0",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\x01\0\0\0\0\0\0\0",
    ],
)
def test_broken_exif_leaves_the_image_as_it_is(exif: bytes) -> None:
    data = image_files.jpeg_with_segment(0xE1, exif)
    assert_same_pixels(decode(data), Image.open(io.BytesIO(image_files.jpeg())))


def test_16_bit_grey_is_scaled_to_8() -> None:
    samples = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    expected = (samples >> 8).astype(np.uint8)
    as_png = image_files.png(64, 64, 16, 0, b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples))
    as_ppm = b"P5 64 64 65535\n" + samples.astype(">u2").tobytes()
    for data in (as_png, as_ppm, image_files.grey_tiff(samples)):
        image = decode(data)
        assert image.mode == "L"
        assert np.array_equal(np.asarray(image), expected)


def test_16_bit_colour_is_scaled_like_grey() -> None:
    samples = np.arange(32 * 32 * 3, dtype=np.uint16).reshape(32, 32 * 3) * 21
    data = image_files.png(32, 32, 16, 2, b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples))
    assert np.array_equal(np.asarray(decode(data)), (samples >> 8).astype(np.uint8).reshape(32, 32, 3))


@pytest.mark.parametrize("samples", [np.full((4, 4), 70_000, np.int32), np.full((4, 4), 0.5, np.float32)])
def test_samples_without_a_white_are_refused(samples: np.ndarray[Any, Any]) -> None:
    assert refused(image_files.grey_tiff(samples)).status is ImageStatus.UNSUPPORTED_FORMAT


def on_white(rgba: Image.Image) -> np.ndarray[Any, Any]:
    values = np.asarray(rgba).astype(np.float64)  # (H, W, 4)
    alpha = values[..., 3:] / 255
    return values[..., :3] * alpha + 255 * (1 - alpha)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("image_format", ["PNG", "WEBP", "TIFF"])
def test_alpha_is_composited_on_white(mode: str, image_format: str) -> None:
    image = image_files.picture(mode)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    data = image_files.encoded(image, image_format, **({"lossless": True} if image_format == "WEBP" else {}))
    decoded = decode(data)
    assert decoded.mode == "RGB"
    difference = np.abs(np.asarray(decoded) - on_white(Image.open(io.BytesIO(data)).convert("RGBA")))
    assert difference.max() <= 0.51


def test_palette_becomes_rgb() -> None:
    data = image_files.encoded(image_files.picture().quantize(16), "PNG")
    assert_same_pixels(decode(data), Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("transparency", [3, bytes([0, 255, 128] + [255] * 13)])
def test_transparent_palette_entries_become_white(transparency: int | bytes) -> None:
    image = image_files.picture().quantize(16)
    data = image_files.encoded(image, "PNG", transparency=transparency)
    difference = np.abs(np.asarray(decode(data)) - on_white(Image.open(io.BytesIO(data)).convert("RGBA")))
    assert difference.max() <= 0.51


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize(("colour_type", "bands"), [(0, 1), (2, 3)])
def test_a_colour_key_becomes_white(depth: int, colour_type: int, bands: int) -> None:
    kind = ">u1" if depth == 8 else ">u2"
    scale = 1 if depth == 8 else 256
    samples = np.full((2, 2, bands), 40 * scale).astype(kind)
    samples[0, 0] = 20 * scale
    key = image_files.png_chunk(b"tRNS", struct.pack(f">{bands}H", *[20 * scale] * bands))
    rows = b"".join(b"\0" + row.tobytes() for row in samples)
    decoded = np.asarray(decode(image_files.png(2, 2, depth, colour_type, rows, key)).convert("RGB"))
    assert decoded[1, 1].tolist() == [40, 40, 40]
    assert decoded[0, 0].tolist() == [255, 255, 255]


def test_one_bit_becomes_grey() -> None:
    data = image_files.encoded(image_files.picture("1"), "PNG")
    assert_same_pixels(decode(data), Image.open(io.BytesIO(data)).convert("L"))


def test_gif_and_its_first_frame() -> None:
    frames = [image_files.picture(seed=seed).quantize(32) for seed in range(3)]
    data = image_files.encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    assert not ImageChops.difference(decode(data), expected).getbbox()


def test_empty() -> None:
    assert refused(b"").status is ImageStatus.EMPTY


@pytest.mark.parametrize(
    "data", [b"x", b"just some text, not an image\n" * 100, bytes(1000), b"<html></html>", b"BM is text"]
)
def test_not_an_image(data: bytes) -> None:
    assert refused(data).status is ImageStatus.NOT_AN_IMAGE


UNSUPPORTED = {
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100),
    "JPEG XL": b"\xff\x0a" + bytes(50),
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


def test_an_unsupported_variant_of_a_format() -> None:
    bitmap = bytearray(image_files.encoded(image_files.picture(), "BMP"))
    bitmap[28:30] = struct.pack("<H", 7)  # 7 bits a pixel
    error = refused(bytes(bitmap))
    assert error.status is ImageStatus.UNSUPPORTED_FORMAT
    assert "BMP" in error.message


def test_a_codec_that_pillow_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "check", lambda name: False)
    assert refused(GOOD_FILES["webp"]).status is ImageStatus.UNSUPPORTED_FORMAT


# Of these, nothing needs the last byte: trailing bytes, a page that is not shown, the marker behind the pixels.
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


@pytest.mark.parametrize("name", sorted(GOOD_FILES.keys() - _LONGER_THAN_NEEDED))
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_files(name: str, share: float) -> None:
    data = GOOD_FILES[name]
    error = refused(data[: int(len(data) * share)])
    assert error.status is ImageStatus.TRUNCATED
    assert "truncated" in error.message


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


def test_a_host_that_loads_truncated_images_does_not_decide_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
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


def animation(image_format: str, frames: int) -> bytes:
    pictures = [image_files.picture("RGB", (8, 8), seed=seed) for seed in range(frames)]
    return image_files.encoded(pictures[0], image_format, save_all=True, append_images=pictures[1:])


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
    def defect(*args: object) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(decode_module, "_decode", defect)
    error = refused(image_files.jpeg())
    assert error.status is ImageStatus.INTERNAL
    assert "secret" not in error.message
    assert isinstance(error.__cause__, RuntimeError)


def test_no_warning_gets_out_and_no_filter_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # the pictures have 3072 pixels: Pillow would warn
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(decode, [GOOD_FILES["tiff"], GOOD_FILES["tiff lzw"], GOOD_FILES["baseline"]] * 50))
    assert warnings.filters == before
    with pytest.warns(Image.DecompressionBombWarning):
        TiffImagePlugin.TiffImageFile(io.BytesIO(GOOD_FILES["tiff"])).load()


def test_pillows_own_pixel_limit_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert refused(GOOD_FILES["tiff"]).status is ImageStatus.TOO_LARGE


@pytest.mark.parametrize("field", ["max_bytes", "max_pixels", "max_side_ratio", "max_frames", "max_metadata_bytes"])
def test_limits_that_would_refuse_everything_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        DecodeLimits(**dict[str, Any]({field: 0}))


def test_every_readable_format_is_met_here() -> None:
    met = {known.name for data in [*GOOD_FILES.values(), animation("GIF", 1)] if (known := identify(data))}
    assert met == {known.name for known in FORMATS if known.readable}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(GOOD_FILES)),
    changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=8),
    cut=st.floats(0.1, 1),
)
def test_mutated_files_give_an_image_or_a_status(name: str, changes: list[tuple[int, int]], cut: float) -> None:
    data = bytearray(GOOD_FILES[name])
    for position, value in changes:
        data[position % len(data)] = value
    try:
        image = decode(bytes(data[: int(len(data) * cut)]), DecodeLimits(max_pixels=1_000_000))
    except DecodeError as error:
        assert error.status is not ImageStatus.INTERNAL  # noqa: PT017
    else:
        assert image.mode in (*PLAIN_MODES, "YCbCr")

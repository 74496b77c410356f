"""Decoding, compared with Pillow: good files have its pixels, and all others give an image or a status."""

from __future__ import annotations

import io
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, ImageChops, TiffImagePlugin

from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.formats import FORMATS, identify
from tests.fixtures.images import image_files
from tests.fixtures.images.good_files import GOOD_FILES, animation, assert_same_pixels, reference

if TYPE_CHECKING:
    from pathlib import Path


PLAIN_MODES = ("L", "RGB", "CMYK")


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


def test_warnings_are_suppressed_and_no_filter_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # the pictures have 3072 pixels: Pillow would warn
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(decode, [GOOD_FILES["tiff"], GOOD_FILES["tiff lzw"], GOOD_FILES["baseline"]] * 50))
    assert warnings.filters == before
    with pytest.warns(Image.DecompressionBombWarning):
        TiffImagePlugin.TiffImageFile(io.BytesIO(GOOD_FILES["tiff"])).load()


def test_every_readable_format_is_met_here() -> None:
    met = {known.name for data in [*GOOD_FILES.values(), animation("GIF", 1)] if (known := identify(data))}
    assert met == {known.name for known in FORMATS if known.readable}

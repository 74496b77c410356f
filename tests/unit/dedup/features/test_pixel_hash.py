"""Equal pixels are what moves a copy without a question, so only whole pictures have a hash of them."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import ExifTags, Image, PngImagePlugin

from clip_client.dedup.features.pixel_hash import pixel_hash, pixel_hash_of
from tests.fixtures.albums import write

if TYPE_CHECKING:
    from pathlib import Path

NOISE = Image.effect_noise((32, 24), 60)


def encoded(image: Image.Image, image_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def deep_png() -> bytes:
    """RGB of 16 bits a channel, which Pillow reads, as 8 bits, but does not write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = np.repeat(np.asarray(NOISE).astype(">u2")[..., None] * 257, 3, axis=2)  # (24, 32, 3)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", 32, 24, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def test_pixels_are_the_same_in_any_lossless_form() -> None:
    hashes = {
        pixel_hash(encoded(NOISE.convert(mode), image_format))
        for mode, image_format in (("L", "PNG"), ("RGB", "PNG"), ("RGB", "TIFF"), ("RGB", "BMP"), ("P", "GIF"))
    }
    assert len(hashes) == 1
    assert hashes != {""}


@pytest.mark.parametrize(
    "data",
    [
        encoded(NOISE, "GIF", save_all=True, append_images=[NOISE.rotate(180)]),
        encoded(NOISE, "PNG", save_all=True, append_images=[NOISE.rotate(180)]),
        encoded(NOISE, "TIFF", save_all=True, append_images=[NOISE.rotate(180)]),
        encoded(Image.merge("LA", (NOISE, NOISE)), "PNG"),
        encoded(NOISE.convert("P"), "PNG", transparency=0),
        encoded(Image.fromarray(np.asarray(NOISE).astype(np.uint16) * 257), "PNG"),
        deep_png(),
    ],
    ids=["animated GIF", "animated PNG", "pages", "alpha", "transparent colour", "16 bits of grey", "16 bits of RGB"],
)
def test_what_holds_more_than_its_pixels_show_has_no_hash(data: bytes) -> None:
    """A still of a film's first frame may be the larger file, and the film is no copy of it."""
    assert pixel_hash(data) == ""


def with_gamma(gamma: int) -> bytes:
    fields = PngImagePlugin.PngInfo()
    fields.add(b"gAMA", struct.pack(">I", gamma))
    return encoded(NOISE, "PNG", pnginfo=fields)


def from_camera_set_to_adobe_rgb() -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Make] = "Camera"
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.IFD.Interop] = {1: "R03"}
    return encoded(NOISE, "PNG", exif=exif)


def test_the_colour_space_is_part_of_the_pixels() -> None:
    """Equal numbers under ProPhoto RGB and under sRGB are colours that differ by 25 levels."""
    profiles = {
        "none": {pixel_hash(encoded(NOISE, "PNG")), pixel_hash(encoded(NOISE, "TIFF")), pixel_hash(with_gamma(45455))},
        "wide": {pixel_hash(encoded(NOISE, name, icc_profile=b"wide" * 50)) for name in ("PNG", "TIFF")},
        "narrow": {pixel_hash(encoded(NOISE, "PNG", icc_profile=b"narrow" * 50))},
        "linear": {pixel_hash(with_gamma(100_000))},
        "Adobe RGB": {pixel_hash(from_camera_set_to_adobe_rgb())},
        "CMYK": {pixel_hash(encoded(NOISE.convert("CMYK"), "TIFF"))},
    }
    assert all(len(hashes) == 1 for hashes in profiles.values())
    assert len(set.union(*profiles.values())) == len(profiles)
    assert "" not in set.union(*profiles.values())


def test_a_pixel_hash_belongs_to_the_content_that_was_compared(tmp_path: Path) -> None:
    path = write(tmp_path / "1.jpg", b"x")
    expected = hashlib.sha256(b"x").hexdigest()
    assert pixel_hash_of(str(path), expected) == ""  # the right content, though no picture
    path.write_bytes(b"another photo, saved over it while the search ran")
    assert pixel_hash_of(str(path), expected) is None
    assert pixel_hash_of(str(tmp_path / "gone.jpg"), expected) is None

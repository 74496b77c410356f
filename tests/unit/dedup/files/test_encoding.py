"""What one file of a picture has that another one lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image, ImageCms

from clip_client.dedup.files.encoding import Encoding, read_encoding
from tests.fixtures.images.scenes import resized, scene

if TYPE_CHECKING:
    from pathlib import Path


def encoding(image_format: str = "JPEG", **more: Any) -> Encoding:
    return Encoding(**{"format": image_format, "size_bytes": 1000, "pixels": 10_000, **more})


@pytest.mark.parametrize(
    ("kept", "copy", "lacks"),
    [
        # Equal size: two JPEGs by their tables, a lossless file before all others, else by bytes.
        (encoding(quantisation=500), encoding(quantisation=500), ""),
        (encoding(quantisation=500), encoding(quantisation=600, size_bytes=2000), ""),
        (encoding(quantisation=600, size_bytes=2000), encoding(quantisation=500), "less compression"),
        (encoding("PNG"), encoding(quantisation=100), ""),
        (encoding(quantisation=100, size_bytes=9000), encoding("PNG"), "a lossless format"),
        (encoding("PNG", size_bytes=1), encoding("TIFF", size_bytes=9), ""),
        (encoding(quantisation=100, size_bytes=2000), encoding("WEBP", size_bytes=1000), ""),
        (encoding(quantisation=100, size_bytes=2000), encoding("AVIF", size_bytes=1100), "less compression"),
        # A larger kept photo is better, unless it was compressed a lot.
        (encoding(quantisation=3000, pixels=40_000), encoding("PNG"), ""),
        (encoding(quantisation=5000, pixels=40_000), encoding("PNG"), "less compression"),
        (encoding(quantisation=5000, pixels=40_000), encoding(quantisation=5000), ""),
        (encoding("WEBP", pixels=40_000), encoding("PNG"), "less compression"),
        (encoding("WEBP", pixels=40_000, size_bytes=4000), encoding("PNG"), ""),
        # What no quality replaces.
        (encoding("PNG"), encoding("PNG", extras=("transparency",)), "transparency"),
        (encoding("PNG", extras=("transparency",)), encoding("PNG", extras=("transparency",)), ""),
        (encoding("PNG"), encoding("PNG", colour_space=b"P3"), "another colour profile"),
        (encoding("PNG", colour_space=b"P3"), encoding("PNG"), ""),
    ],
)
def test_what_would_be_lost(kept: Encoding, copy: Encoding, lacks: str) -> None:
    assert kept.lacks(copy) == lacks


def test_a_header_says_how_a_file_is_stored(tmp_path: Path) -> None:
    picture = resized(scene(0), 0.2)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for name, options in (("fine.jpg", {"quality": 95}), ("coarse.jpg", {"quality": 20, "icc_profile": profile})):
        picture.save(tmp_path / name, **options)
    picture.convert("RGBA").resize((80, 60)).save(tmp_path / "clear.webp", lossless=True)
    Image.new("RGBA", (80, 60), (9, 9, 9, 9)).save(tmp_path / "clear.png")
    Image.new("I;16", (80, 60), 999).save(tmp_path / "deep.png")
    (tmp_path / "text.jpg").write_text("This is no image.")
    fine, coarse = read_encoding(str(tmp_path / "fine.jpg")), read_encoding(str(tmp_path / "coarse.jpg"))
    assert fine is not None
    assert coarse is not None
    assert (fine.format, fine.pixels, fine.size_bytes) == ("JPEG", 4800, (tmp_path / "fine.jpg").stat().st_size)
    assert 0 < fine.quantisation < coarse.quantisation
    assert coarse.colour_space == b""  # it calls itself sRGB
    for name, extra in (("clear.png", "transparency"), ("deep.png", "more than 8 bits a channel")):
        found = read_encoding(str(tmp_path / name))
        assert found is not None
        assert found.extras == (extra,)
    assert read_encoding(str(tmp_path / "text.jpg")) is None
    assert read_encoding(str(tmp_path / "gone.jpg")) is None

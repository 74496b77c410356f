"""What one file of a picture has that another one lacks."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageCms

from clip_client.dedup.files.colours import space_of_profile
from clip_client.dedup.files.encoding import Encoding, read_encoding
from tests.fixtures.images import colour_profiles, image_files, phone_files
from tests.fixtures.images.scenes import resized, scene

if TYPE_CHECKING:
    from pathlib import Path


P3 = space_of_profile(colour_profiles.P3)


@pytest.mark.parametrize(
    ("kept", "copy", "lacks"),
    [
        (Encoding(), Encoding(extras=("transparency",)), "transparency"),
        (Encoding(extras=("transparency",)), Encoding(extras=("transparency",)), ""),
        (Encoding(), Encoding(colour_space=P3), "the colour profile Display P3"),
        (Encoding(colour_space=P3), Encoding(), ""),
        (
            Encoding(),
            Encoding(extras=("more than 8 bits a channel",), colour_space=P3),
            "more than 8 bits a channel and the colour profile Display P3",
        ),
    ],
)
def test_what_no_quality_makes_up_for(kept: Encoding, copy: Encoding, lacks: str) -> None:
    assert kept.lacks_kinds_of(copy) == lacks


def test_a_header_says_how_a_file_is_stored(tmp_path: Path) -> None:
    picture = resized(scene(0), 0.2)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture.save(tmp_path / "coarse.jpg", quality=20, icc_profile=profile)
    picture.convert("RGBA").resize((80, 60)).save(tmp_path / "clear.webp", lossless=True)
    Image.new("RGBA", (80, 60), (9, 9, 9, 9)).save(tmp_path / "clear.png")
    Image.new("I;16", (80, 60), 999).save(tmp_path / "deep.png")
    (tmp_path / "text.jpg").write_text("This is no image.")
    coarse = read_encoding(str(tmp_path / "coarse.jpg"))
    assert coarse is not None
    assert coarse.colour_space.name == "sRGB"
    for name, extra in (("clear.png", "transparency"), ("deep.png", "more than 8 bits a channel")):
        found = read_encoding(str(tmp_path / name))
        assert found is not None
        assert found.extras == (extra,)
    assert read_encoding(str(tmp_path / "text.jpg")) is None
    assert read_encoding(str(tmp_path / "gone.jpg")) is None


def with_chunk(png: bytes, name: bytes, data: bytes) -> bytes:
    """A PNG with a chunk behind its header."""
    return png[:33] + image_files.png_chunk(name, data) + png[33:]


PNG = image_files.encoded(image_files.picture(), "PNG")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (image_files.encoded(image_files.picture(), "JPEG", icc_profile=colour_profiles.P3), "Display P3"),
        (image_files.encoded(image_files.picture(), "PNG", icc_profile=colour_profiles.ADOBE_RGB), "Adobe RGB"),
        (image_files.encoded(image_files.picture(), "WEBP", icc_profile=colour_profiles.P3), "Display P3"),
        (phone_files.heic(icc_profile=colour_profiles.P3), "Display P3"),
        (phone_files.heic(), "sRGB"),
        (phone_files.avif_of_10_bits(), "Rec. 2020 with HDR"),
        (with_chunk(PNG, b"cICP", bytes((12, 13, 0, 1))), "Display P3"),
        (with_chunk(PNG, b"cICP", bytes((9, 16, 0, 1))), "Rec. 2020 with HDR"),
        (with_chunk(PNG, b"cICP", bytes((1, 13, 0, 1))), "sRGB"),
        (
            with_chunk(PNG, b"cHRM", struct.pack(">8I", 31270, 32900, 64000, 33000, 21000, 71000, 15000, 6000)),
            "Adobe RGB",
        ),
        (with_chunk(PNG, b"gAMA", struct.pack(">I", 100000)), "with another gamma"),
        # What says sRGB counts before the gamma for programs that do not know it.
        (with_chunk(with_chunk(PNG, b"gAMA", struct.pack(">I", 100000)), b"sRGB", b"\0"), "sRGB"),
        (PNG, "sRGB"),
    ],
)
def test_the_colour_space_of_a_file_is_found_wherever_it_stands(data: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / "photo").write_bytes(data)
    found = read_encoding(str(tmp_path / "photo"))
    assert found is not None
    assert found.colour_space.name == name

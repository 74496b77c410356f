"""What one file of a picture has that another one lacks."""

from __future__ import annotations

import struct

import pytest
from PIL import Image, ImageCms

from clip_client.dedup.files.colours import space_of_profile
from clip_client.dedup.files.encoding import Encoding, read_encoding
from tests.fixtures.images import colour_profiles, image_files, phone_files

P3 = space_of_profile(colour_profiles.P3)
OWN_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


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


def with_chunk(png: bytes, name: bytes, data: bytes) -> bytes:
    """A PNG with a chunk behind its header."""
    return png[:33] + image_files.png_chunk(name, data) + png[33:]


PNG = image_files.encoded(image_files.picture(), "PNG")


@pytest.mark.parametrize(
    ("data", "extras"),
    [
        (image_files.jpeg(quality=20), ()),
        (image_files.encoded(Image.new("RGBA", (80, 60), (9, 9, 9, 9)), "PNG"), ("transparency",)),
        (image_files.encoded(Image.new("I;16", (80, 60), 999), "PNG"), ("more than 8 bits a channel",)),
        (b"This is no image.", None),
        (b"", None),
    ],
)
def test_a_header_says_what_an_opaque_picture_of_8_bits_cannot_hold(data: bytes, extras: tuple[str, ...]) -> None:
    found = read_encoding(data)
    assert (found and found.extras) == extras


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (image_files.jpeg(icc_profile=OWN_SRGB), "sRGB"),
        (image_files.jpeg(icc_profile=colour_profiles.P3), "Display P3"),
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
def test_the_colour_space_of_a_file_is_found_wherever_it_stands(data: bytes, name: str) -> None:
    found = read_encoding(data)
    assert found is not None
    assert found.colour_space.name == name

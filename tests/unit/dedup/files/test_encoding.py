"""What one file of a picture has that another one lacks: channels, bits, frames, and colours of a wider space."""

import struct
from typing import Any

import pytest
from PIL import Image, ImageCms

from clip_client.dedup.formats.colours import (
    ADOBE_RGB,
    SRGB,
    ColourSpace,
    space_of_chromaticities,
    space_of_codes,
    space_of_profile,
)
from clip_client.dedup.formats.encoding import Encoding, read_encoding
from tests.fixtures.images import colour_profiles, phone_files
from tests.fixtures.images.image_files import encoded, file, jpeg, png_with_chunk

OWN_PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
P3 = space_of_profile(colour_profiles.P3)
OWN_SRGB = space_of_profile(OWN_PROFILE)
PRINTER = space_of_profile(b"\0" * 16 + b"CMYK" + b"\0" * 108 + b"one")
GREY = space_of_profile(b"\0" * 16 + b"GRAY" + b"\0" * 108)
DEEP, CLEAR = ("more than 8 bits a channel",), ("transparency",)


def test_what_no_quality_makes_up_for() -> None:
    plain, clear, wide = Encoding(), Encoding(extras=CLEAR), Encoding(colour_space=P3)
    assert plain.lacks_kinds_of(clear) == clear.lacks_kinds_of(clear) == "transparency"
    assert (plain.lacks_kinds_of(wide), wide.lacks_kinds_of(plain)) == ("the colour profile Display P3", "")
    both = Encoding(extras=DEEP, colour_space=P3)
    assert plain.lacks_kinds_of(both) == "more than 8 bits a channel and the colour profile Display P3"


def jpeg_2000_with(profile: bytes) -> bytes:
    data = file("JPEG2000")
    start, header = data.index(b"colr") - 4, data.index(b"jp2h") - 4
    (size,), (whole,) = (struct.unpack_from(">I", data, place) for place in (start, header))
    own = struct.pack(">I", 11 + len(profile)) + b"colr\2\0\0" + profile
    grown = struct.pack(">I", whole - size + len(own))
    return data[:header] + grown + data[header + 4 : start] + own + data[start + size :]


def bmp_with(profile: bytes) -> bytes:
    data = file("BMP")
    header = data[14:54].replace(struct.pack("<I", 40), struct.pack("<I", 124), 1)
    header += bytes(16) + b"DEBM" + bytes(52) + struct.pack("<II", len(data) - 54 + 124, len(profile)) + bytes(4)
    return data[:10] + struct.pack("<I", 138) + header + data[54:] + profile


CHROMATICITIES = struct.pack(">8I", 31270, 32900, 64000, 33000, 21000, 71000, 15000, 6000)
LINEAR = struct.pack(">I", 100000)
FILES: list[tuple[bytes, str]] = [
    (jpeg(icc_profile=OWN_PROFILE), "sRGB"),
    (jpeg(icc_profile=colour_profiles.P3), "Display P3"),
    (file("PNG", icc_profile=colour_profiles.ADOBE_RGB), "Adobe RGB"),
    (file("WEBP", icc_profile=colour_profiles.P3), "Display P3"),
    (phone_files.heic(icc_profile=colour_profiles.P3), "Display P3"),
    (phone_files.heic(), "sRGB"),
    (phone_files.avif_of_10_bits(), "Rec. 2020 with HDR"),
    (png_with_chunk(b"cICP", bytes((12, 13, 0, 1))), "Display P3"),
    (png_with_chunk(b"cICP", bytes((1, 13, 0, 1))), "sRGB"),
    (png_with_chunk(b"cHRM", CHROMATICITIES), "Adobe RGB"),
    (png_with_chunk(b"gAMA", LINEAR), "with another gamma"),
    (png_with_chunk(b"gAMA", LINEAR, png_with_chunk(b"cHRM", CHROMATICITIES)), "with another gamma"),
    # What says sRGB counts before the gamma for programs that do not know it.
    (png_with_chunk(b"sRGB", b"\0", png_with_chunk(b"gAMA", LINEAR)), "sRGB"),
    (file("PNG"), "sRGB"),
    (file("TIFF", "CMYK"), "of a printer without a name"),
    (jpeg("CMYK"), "of a printer without a name"),
    (file("TIFF", icc_profile=colour_profiles.P3), "Display P3"),
    (jpeg_2000_with(colour_profiles.P3), "Display P3"),
    (bmp_with(colour_profiles.P3), "Display P3"),
]


@pytest.mark.parametrize(("data", "name"), FILES)
def test_the_colour_space_of_a_file_is_found_wherever_it_stands(data: bytes, name: str) -> None:
    found = read_encoding(data)
    assert found is not None
    assert found.colour_space.name == name


def jpeg_2000_of(bits: int, **options: Any) -> bytes:
    """A header that gives the last of three components more bits, which Pillow reads but does not write."""
    data = bytearray(file("JPEG2000", **options))
    data[data.index(b"\xff\x4f\xff\x51") + 48] = bits - 1
    return bytes(data)


def test_a_header_says_what_an_opaque_picture_of_8_bits_cannot_hold() -> None:
    for data, extras in (
        (jpeg(quality=20), ()),
        (encoded(Image.new("RGBA", (80, 60), (9, 9, 9, 9)), "PNG"), CLEAR),
        (encoded(Image.new("I;16", (80, 60), 999), "PNG"), DEEP),
        (file("PPM"), ()),
        (b"P6 1 1 1023\n" + bytes(6), DEEP),
        (file("JPEG2000"), ()),
        (jpeg_2000_of(16), DEEP),
        (jpeg_2000_of(12, no_jp2=True), DEEP),
    ):
        assert read_encoding(data) == Encoding(extras=extras)
    assert read_encoding(b"This is no image.") is read_encoding(b"") is None
    assert read_encoding(jpeg("CMYK")) is not None
    without_adobe = jpeg("CMYK").replace(b"\xff\xee\0\x0eAdobe", b"\xff\xee\0\x0eOther")
    assert read_encoding(without_adobe) is None, "it may be a negative"


ADOBE_PRIMARIES = (0.64, 0.33, 0.21, 0.71, 0.15, 0.06)


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (space_of_profile(colour_profiles.P3_OF_ANOTHER_VENDOR), "Display P3"),
        (space_of_profile(colour_profiles.P3_CALLED_SRGB), "Display P3"),
        (space_of_profile(colour_profiles.SRGB_WITHOUT_ITS_NAME), "sRGB"),
        (space_of_codes(1, 13), "sRGB"),
        (space_of_codes(2, 2), "sRGB"),
        (space_of_codes(1, 18), "sRGB with HDR"),
        (space_of_codes(77, 13), "H.273 number 77"),
        (space_of_chromaticities((0.3127, 0.329), ADOBE_PRIMARIES, b"key"), "Adobe RGB"),
        (space_of_chromaticities((0.3127, 0.0), ADOBE_PRIMARIES, b"key"), "without a name"),
        (space_of_profile(b"no profile"), "without a name"),
    ],
)
def test_a_space_is_known_by_its_primaries(space: ColourSpace, name: str) -> None:
    assert space.name == name
    assert space.has_all_of(space)


@pytest.mark.parametrize(
    ("kept", "copy", "is_held"),
    [
        (SRGB, P3, False),
        (P3, SRGB, True),
        (P3, OWN_SRGB, True),
        (OWN_SRGB, SRGB, True),
        (space_of_profile(colour_profiles.SRGB), space_of_profile(colour_profiles.SRGB_WITHOUT_ITS_NAME), True),
        (P3, space_of_profile(colour_profiles.P3_OF_ANOTHER_VENDOR), True),
        (SRGB, space_of_profile(colour_profiles.P3_CALLED_SRGB), False),
        # Each has colours that the other one lacks.
        (P3, space_of_profile(colour_profiles.ADOBE_RGB), False),
        (space_of_profile(colour_profiles.ADOBE_RGB), P3, False),
        # No comparison converts these, so the numbers of the two files may mean other colours.
        (SRGB, ADOBE_RGB, False),
        (ADOBE_RGB, SRGB, False),
        (space_of_codes(12, 13), P3, True),
        (space_of_codes(12, 13), SRGB, False),
        (space_of_codes(1, 1), SRGB, True),
        # The same numbers on a linear curve are brighter.
        (SRGB, space_of_codes(1, 8), False),
        (SRGB, space_of_codes(1, 1), True),
        (space_of_codes(9, 16), space_of_codes(9, 14), True),
        (space_of_codes(9, 14), space_of_codes(9, 16), False),
        # What cannot be measured has only its own colours.
        (PRINTER, PRINTER, True),
        (PRINTER, P3, False),
        (PRINTER, SRGB, True),
        (SRGB, PRINTER, False),
        (SRGB, GREY, True),
        (GREY, P3, False),
    ],
)
def test_a_space_holds_another_one_or_not(kept: ColourSpace, copy: ColourSpace, is_held: bool) -> None:
    assert kept.has_all_of(copy) == is_held

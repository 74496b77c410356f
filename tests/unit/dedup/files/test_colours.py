"""Which colour spaces hold the colours of which others, measured from the profiles themselves."""

from __future__ import annotations

import pytest
from PIL import ImageCms

from clip_client.dedup.files.colours import (
    ADOBE_RGB,
    SRGB,
    ColourSpace,
    space_of_chromaticities,
    space_of_codes,
    space_of_profile,
)
from tests.fixtures.images import colour_profiles

P3 = space_of_profile(colour_profiles.P3)
OWN_SRGB = space_of_profile(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
PRINTER = space_of_profile(b"\0" * 16 + b"CMYK" + b"\0" * 108 + b"one")
GREY = space_of_profile(b"\0" * 16 + b"GRAY" + b"\0" * 108)


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (P3, "Display P3"),
        (space_of_profile(colour_profiles.P3_OF_ANOTHER_VENDOR), "Display P3"),
        (space_of_profile(colour_profiles.P3_CALLED_SRGB), "Display P3"),
        (space_of_profile(colour_profiles.ADOBE_RGB), "Adobe RGB"),
        (space_of_profile(colour_profiles.SRGB), "sRGB"),
        (space_of_profile(colour_profiles.SRGB_WITHOUT_ITS_NAME), "sRGB"),
        (OWN_SRGB, "sRGB"),
        (space_of_codes(1, 13), "sRGB"),
        (space_of_codes(2, 2), "sRGB"),
        (space_of_codes(12, 13), "Display P3"),
        (space_of_codes(9, 16), "Rec. 2020 with HDR"),
        (space_of_codes(1, 18), "sRGB with HDR"),
        (space_of_codes(77, 13), "H.273 number 77"),
        (space_of_chromaticities((0.3127, 0.329), (0.64, 0.33, 0.21, 0.71, 0.15, 0.06), b"key"), "Adobe RGB"),
        (space_of_chromaticities((0.3127, 0.0), (0.64, 0.33, 0.21, 0.71, 0.15, 0.06), b"key"), "without a name"),
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
        (SRGB, OWN_SRGB, True),
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

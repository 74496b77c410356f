"""A JPEG without its end marker is read if every block is there, and only then."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import decode
from tests.fixtures.images import image_files
from tests.fixtures.images.good_files import status_of

GREYS = np.random.default_rng(0).integers(0, 256, (9, 12, 3)).astype(np.uint8)
SMOOTH = Image.fromarray(GREYS).resize((93, 70), Image.Resampling.BICUBIC)
FLAT = Image.new("RGB", (93, 70), "teal")
MOSTLY_OUTSIDE = SMOOTH.crop((0, 0, 81, 18))
"""The last blocks of colour cover 16 x 16 pixels, of which one column and two rows are in the picture."""
KINDS: dict[str, dict[str, Any]] = {
    "coarse": {"quality": 20},
    "finest": {"quality": 100, "subsampling": 0},
    "own code": {"quality": 90, "optimize": True},
    "restart markers": {"restart_marker_blocks": 3},
    "a row in each part": {"restart_marker_rows": 1},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("picture", [SMOOTH, FLAT, MOSTLY_OUTSIDE], ids=["smooth", "flat", "mostly outside"])
def test_a_jpeg_that_lacks_only_its_end_has_the_same_pixels(picture: Image.Image, mode: str, kind: str) -> None:
    data = image_files.encoded(picture.convert(mode), "JPEG", **KINDS[kind])
    whole = decode(data).tobytes()
    assert decode(data[:-2]).tobytes() == whole
    assert decode(data[:-1]).tobytes() == whole
    for lost in (3, 5, 6, 9):
        cut = data[:-lost]
        # The last byte of code may hold one bit, of a colour that shows nowhere.
        assert status_of(cut) is ImageStatus.TRUNCATED or decode(cut).tobytes() == whole, lost
    assert status_of(data[:-50]) is ImageStatus.TRUNCATED


def test_a_part_that_is_missing_as_a_whole_is_noticed() -> None:
    data = image_files.encoded(SMOOTH, "JPEG", restart_marker_rows=1)
    parts = [start for start in range(len(data)) if data[start] == 0xFF and 0xD0 <= data[start + 1] <= 0xD7]
    assert len(parts) == 4
    for start in parts:
        assert status_of(data[:start]) is ImageStatus.TRUNCATED
        assert status_of(data[: start + 2]) is ImageStatus.TRUNCATED


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_progressive_jpeg_is_whole_if_all_its_scans_are(mode: str) -> None:
    progressive = image_files.encoded(SMOOTH.convert(mode), "JPEG", progressive=True)
    assert decode(progressive[:-2]).tobytes() == decode(progressive).tobytes()
    scans = [start for start in range(len(progressive)) if progressive[start : start + 2] == b"\xff\xda"]
    for start in scans[1:]:
        # Before a scan stands the table of its codes.
        end = progressive.rindex(b"\xff\xc4", 0, start)
        assert status_of(progressive[:end]) is ImageStatus.TRUNCATED
    assert status_of(progressive[:-50]) is ImageStatus.TRUNCATED


def test_a_jpeg_without_its_end_is_scaled_and_turned_as_ever() -> None:
    exif = image_files.oriented(6).tobytes()
    data = image_files.encoded(SMOOTH.resize((930, 700)), "JPEG", exif=exif)
    for at_least in (None, (100, 100)):
        expected, image = (decode(one, at_least=at_least) for one in (data, data[:-2]))
        assert image.size == expected.size
        assert np.abs(np.asarray(image, np.int16) - np.asarray(expected, np.int16)).max() <= 1

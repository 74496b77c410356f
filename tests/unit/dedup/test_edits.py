"""Changes of an editor to the whole picture, saved at a high quality: no metadata makes the original move."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import ExifTags, Image, ImageEnhance, ImageFilter

from tests.fixtures.albums import planned
from tests.fixtures.images.camera_files import exif
from tests.fixtures.images.scenes import resized
from tests.unit.dedup.searches import by_name, search


def in_its_colours(picture: Image.Image) -> Image.Image:
    luma, *colours = picture.convert("YCbCr").split()
    soft = (colour.filter(ImageFilter.GaussianBlur(1)) for colour in colours)
    return Image.merge("YCbCr", (luma, *soft)).convert("RGB")


def compressed_off_the_grid(picture: Image.Image) -> Image.Image:
    file = io.BytesIO()
    Image.fromarray(np.pad(np.asarray(picture), ((4, 4), (4, 4), (0, 0)), mode="edge")).save(file, "JPEG", quality=70)
    with Image.open(file) as larger:
        return larger.crop((4, 4, 4 + picture.width, 4 + picture.height))


def in_another_hue(picture: Image.Image) -> Image.Image:
    hue, *others = picture.convert("HSV").split()
    return Image.merge("HSV", (hue.point(lambda level: (level + 1) % 256), *others)).convert("RGB")


EDITS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "by half a pixel": lambda one: Image.fromarray(cv2.GaussianBlur(np.asarray(one), (0, 0), 0.5)),
    "in its colours": in_its_colours,
    "with less noise": lambda one: Image.fromarray(cv2.fastNlMeansDenoisingColored(np.array(one), None, 3, 3, 5, 11)),
    "more saturated": lambda one: ImageEnhance.Color(one).enhance(1.04),
    "compressed off the grid": compressed_off_the_grid,
    "sharpened": lambda one: one.filter(ImageFilter.UnsharpMask(1, 50, 2)),
    "in another hue": in_another_hue,
}


@pytest.mark.parametrize("with_exif", [{"edited"}, {"original"}, {"edited", "original"}, set()], ids=sorted)
@pytest.mark.parametrize("edit", EDITS)
def test_the_original_stays_whichever_file_has_the_metadata_of_a_camera(
    edit: str, with_exif: set[str], photos: Path, tmp_path: Path
) -> None:
    with Image.open(photos / "chelsea.png") as cat:
        picture = resized(cat.convert("RGB"), 0.8)
    of_a_camera = exif(size=picture.size)
    of_a_camera.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.SubsecTimeOriginal] = "123"  # else two files may be a burst
    metadata = dict.fromkeys(with_exif, of_a_camera)
    picture.save(tmp_path / "original.jpg", quality=92, exif=metadata.get("original", b""))
    with Image.open(tmp_path / "original.jpg") as original:
        EDITS[edit](original.convert("RGB")).save(tmp_path / "edited.jpg", quality=98, exif=metadata.get("edited", b""))
    found = search(tmp_path)
    assert set(by_name(found)) == {"original.jpg", "edited.jpg"}
    assert {move.duplicate.name for move in planned(found, [tmp_path]).moves} <= {"edited.jpg"}

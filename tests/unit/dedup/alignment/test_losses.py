"""What a photo has that its copy lacks, by alignment: on generated pictures and photos."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from clip_client.dedup.aligned import PUT_INTO
from clip_client.dedup.alignment.align import align
from clip_client.dedup.types import EDITED
from tests.fixtures.images.scenes import cropped, resized, scene
from tests.unit.dedup.alignment.pictures import aligned, keypoints, photo

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[Image.Image], Image.Image]


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda picture: cropped(picture, 0, 0.2, 0, 0), "20% of the picture"),
        (lambda picture: resized(picture, 0.5), "2 times the resolution"),
        (lambda picture: ImageOps.grayscale(picture).convert("RGB"), "colour"),
        (lambda picture: picture.filter(ImageFilter.GaussianBlur(2)), "sharpness"),
        (lambda picture: ImageEnhance.Brightness(picture).enhance(1.25), "detail in light or dark parts"),
    ],
)
def test_what_only_the_duplicate_has_is_named(change: Change, lost: str) -> None:
    there, back = align(photo(0), keypoints(change(scene(0)))), aligned(change(scene(0)))
    assert there is not None
    assert (there.lost, back.lost) == ((lost,), ())


@pytest.mark.parametrize(
    ("weaken", "lost"),
    [
        (lambda picture: ImageEnhance.Color(picture).enhance(0.05), "colour"),
        (lambda picture: ImageEnhance.Brightness(picture).enhance(0.25), "tonal range"),
    ],
    ids=["colour", "brightness"],
)
def test_what_is_weakened_is_lost(weaken: Change, lost: str) -> None:
    weak = keypoints(weaken(scene(0)))
    there, back = align(photo(0), weak), align(weak, photo(0))
    assert there is not None
    assert back is not None
    assert (lost in there.lost, back.lost) == (True, ())


def test_a_blurred_scene_beyond_the_kept_photo_is_lost() -> None:
    wide = Image.fromarray(np.random.default_rng(1).integers(40, 220, (3, 4, 3), dtype=np.uint8))
    wide = wide.resize((600, 450), Image.Resampling.BICUBIC)
    wide.paste(scene(0), (100, 75))
    found = align(keypoints(wide), photo(0))
    assert found is not None
    assert [lost.endswith("of the picture") for lost in found.lost] == [True]


@pytest.mark.parametrize(("factor", "lost"), [(1.02, ()), (1.05, ("1.1 times the resolution",))])
def test_sizes_that_differ_by_rounding_lose_nothing(factor: float, lost: tuple[str, ...]) -> None:
    assert aligned(resized(scene(0), factor)).lost == lost


@pytest.mark.parametrize("side", range(4))
def test_a_bar_on_one_side_shows_that_the_picture_was_put_into_something(side: int) -> None:
    border = tuple(24 if number == side else 0 for number in range(4))
    found = align(photo(0), keypoints(ImageOps.expand(scene(0), border, "white")))
    assert found is not None
    assert found.doubts == (PUT_INTO,)


def test_what_a_brighter_grey_copy_has_cut_off_is_lost(sample_photos: dict[str, Image.Image]) -> None:
    grey = ImageOps.grayscale(sample_photos["astronaut"]).convert("RGB")
    found = align(keypoints(grey), keypoints(ImageEnhance.Brightness(grey).enhance(2)))
    assert found is not None
    assert (found.tier, found.lost) == (EDITED, ("detail in light or dark parts",))


def test_a_faint_colour_in_a_small_part_is_lost(sample_photos: dict[str, Image.Image]) -> None:
    grey = ImageOps.grayscale(sample_photos["coffee"]).convert("RGB")
    tinted = np.array(grey.convert("YCbCr"))
    height, width = tinted.shape[:2]
    tinted[height // 3 : height * 19 // 30, width // 3 : width * 19 // 30, 2] += 5
    found = align(keypoints(Image.fromarray(tinted, "YCbCr").convert("RGB")), keypoints(grey))
    assert found is not None
    assert found.lost == ("colour",)


def test_the_colours_of_a_photo_are_lost_in_a_grey_copy_with_a_little_colour(
    sample_photos: dict[str, Image.Image],
) -> None:
    photo = sample_photos["chelsea"]
    grey, faint = (ImageEnhance.Color(photo).enhance(strength) for strength in (0, 0.1))
    left, top = photo.width // 3, photo.height // 3
    grey.paste(faint.crop((left, top, left + photo.width // 4, top + photo.height // 4)), (left, top))
    found = align(keypoints(photo), keypoints(grey))
    assert found is not None
    assert (found.changes, found.lost) == (("in colour",), ("colour",))

"""Which of two photos that show the same is the source of the other."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from clip_client.dedup.proof.prove import DUPLICATE, EITHER, KEPT, prove
from tests.fixtures.images.image_files import encoded
from tests.fixtures.images.scenes import noisy, picture_in, scene

PHOTO = noisy(scene(21, (400, 304)), 3, 21)
CAMERA = encoded(PHOTO, "JPEG", quality=93)


def source(kept: bytes, duplicate: bytes) -> str:
    proof = prove(kept, duplicate)
    assert proof.holds
    return proof.source


def test_a_copy_lies_anywhere_between_the_steps_of_its_source() -> None:
    assert source(CAMERA, encoded(picture_in(CAMERA), "JPEG", quality=70)) == KEPT
    smaller = picture_in(CAMERA).resize((200, 152), Image.Resampling.LANCZOS)
    assert source(CAMERA, encoded(smaller, "JPEG", quality=70)) == KEPT


def test_a_photo_that_was_enlarged_lies_on_the_steps_of_its_source() -> None:
    small = encoded(PHOTO.resize((200, 152), Image.Resampling.LANCZOS), "JPEG", quality=60)
    enlarged = encoded(picture_in(small).resize((400, 304), Image.Resampling.BICUBIC), "JPEG", quality=95)
    assert source(enlarged, small) == DUPLICATE


def test_a_child_of_the_same_size_that_shows_more_is_not_kept_for_its_source() -> None:
    coarse = encoded(picture_in(CAMERA), "JPEG", quality=50)
    grain = np.random.default_rng(1).integers(-1, 2, (304, 400, 3))
    child = encoded(Image.fromarray(np.clip(np.asarray(picture_in(coarse)) + grain, 0, 255).astype(np.uint8)), "PNG")
    assert source(child, coarse) == DUPLICATE


def test_of_two_files_that_show_all_of_each_other_one_may_be_made_from_the_other() -> None:
    coarse = encoded(picture_in(CAMERA), "JPEG", quality=50)
    finer = encoded(picture_in(coarse), "JPEG", quality=95)
    assert source(coarse, finer) == KEPT, "the finer one lies on the steps of the coarse one"
    assert source(finer, coarse) == DUPLICATE
    lossless = encoded(picture_in(coarse), "PNG")
    assert (source(lossless, coarse), source(coarse, lossless)) == (DUPLICATE, KEPT)


def test_a_re_save_at_similar_steps_is_known_by_the_steps_of_the_kept_photo() -> None:
    """It is spread over the steps of the duplicate as a source is."""
    first = encoded(picture_in(CAMERA), "JPEG", quality=80)
    later = encoded(picture_in(first), "JPEG", quality=82)
    assert source(first, encoded(picture_in(first), "JPEG", quality=50)) == KEPT
    assert source(later, first) == EITHER


def test_of_two_files_known_to_a_level_the_one_with_finer_steps_is_the_source() -> None:
    smooth = Image.fromarray(np.random.default_rng(3).integers(60, 200, (4, 5, 3), dtype=np.uint8)).resize((400, 304))
    original = encoded(smooth, "JPEG", qtables=[[3] * 64, [3] * 64], subsampling=0)
    copy = encoded(picture_in(original), "JPEG", qtables=[[5] * 64, [5] * 64], subsampling=0)
    assert source(copy, original) == DUPLICATE
    assert source(original, copy) == KEPT


@pytest.mark.parametrize(("quality", "size"), [(98, (400, 304)), (75, (16, 16))])
def test_fine_steps_and_few_of_them_tell_nothing(quality: int, size: tuple[int, int]) -> None:
    copy = encoded(picture_in(CAMERA).resize(size, Image.Resampling.LANCZOS), "JPEG", quality=quality)
    assert source(encoded(picture_in(copy), "PNG"), copy) == EITHER


def test_turned_pixels_do_not_tell_which_photo_is_upright() -> None:
    upright, turned = (encoded(one, "PNG") for one in (PHOTO, PHOTO.transpose(Image.Transpose.ROTATE_90)))
    assert source(upright, turned) == source(turned, upright) == EITHER

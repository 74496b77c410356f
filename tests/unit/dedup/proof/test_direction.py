"""Which of two photos that show the same is the source of the other."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from clip_client.dedup.proof.prove import DUPLICATE, EITHER, KEPT, NEITHER, prove
from tests.fixtures.images.image_files import encoded
from tests.fixtures.images.scenes import noisy, picture_in, scene
from tests.unit.dedup.proof.conftest import Trellis

PHOTO = noisy(scene(21, (400, 304)), 3, 21)
CAMERA = encoded(PHOTO, "JPEG", quality=93)


def source(kept: bytes, duplicate: bytes) -> str:
    proof = prove(kept, duplicate)
    assert proof.holds
    return proof.source


def re_saved(photo: Image.Image, first: int, more: int, turn: Image.Transpose | None = None) -> tuple[bytes, bytes]:
    """Return a file of a photo, and one that was made from it with ``more`` quality."""
    original = encoded(photo, "JPEG", quality=first)
    picture = picture_in(original)
    return original, encoded(picture if turn is None else picture.transpose(turn), "JPEG", quality=first + more)


def check_source(original: bytes, copy: bytes) -> None:
    assert source(original, copy) == KEPT
    assert prove(copy, original).source in (DUPLICATE, "")


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


@pytest.mark.parametrize("turn", [None, Image.Transpose.ROTATE_90])
@pytest.mark.parametrize("first", [80, 85, 93])
@pytest.mark.parametrize("more", [-40, -12, -5, -2, 2, 4])
def test_the_source_of_a_re_save_is_known_at_steps_that_are_alike_or_not(
    first: int, more: int, turn: Image.Transpose | None
) -> None:
    """Whether 7 became 9 or 9 became 7, one lies as near the other; but no 14 is made from a multiple of 9."""
    check_source(*re_saved(PHOTO, first, more, turn))


@pytest.mark.parametrize("more", [-40, -4, -2, 2, 4])
def test_the_source_of_a_mirrored_re_save_is_known_although_it_has_other_blocks(more: int) -> None:
    check_source(*re_saved(PHOTO.crop((0, 0, 396, 304)), 92, more, Image.Transpose.FLIP_LEFT_RIGHT))


def test_a_few_values_that_rounding_decided_do_not_make_the_source_a_copy() -> None:
    """At steps so fine, 17 of 29,040 values of the copy do not follow from its source, and 32 of 60,667 in reverse."""
    assert source(*re_saved(noisy(scene(6, (522, 404)), 2, 6), 96, 2)) == KEPT


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_a_turned_file_with_nearly_the_same_values_tells_no_source(seed: int) -> None:
    """As of files that jpegtran turned, 0 values of the one and 1 or 2 of the other do not follow, by rounding."""
    original = encoded(noisy(scene(seed, (400, 304)), 3, seed), "JPEG", quality=90, subsampling=0)
    with Image.open(io.BytesIO(original)) as image:
        quantization = image.quantization  # type: ignore[attr-defined]
    tables = [np.reshape(table, (8, 8)).T.ravel().tolist() for table in quantization.values()]
    turned = picture_in(original).transpose(Image.Transpose.ROTATE_90)
    copy = encoded(turned, "JPEG", qtables=tables, subsampling=0)
    assert source(original, copy) == source(copy, original) == NEITHER


def test_a_mirrored_file_whose_source_is_untold_does_not_take_its_place() -> None:
    """Steps of 1 tell nothing, and of mirrored files the finer one is not what anybody wants."""
    fine = encoded(PHOTO.crop((0, 0, 396, 304)), "JPEG", quality=100, subsampling=0)
    picture = picture_in(fine).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    mirrored = encoded(picture, "JPEG", quality=99, subsampling=0)
    assert source(fine, mirrored) == source(mirrored, fine) == NEITHER


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("first", "more"), [(96, -1), (90, -3), (93, -2), (80, 2), (97, -4)])
def test_the_source_of_a_small_saturated_picture_is_known(seed: int, first: int, more: int) -> None:
    """RGB cuts off some of its colours, so that some values of the copy do not follow from the source either."""
    colours = np.random.default_rng(seed).integers(0, 2, (26, 33, 3), dtype=np.uint8) * 255
    picture = noisy(Image.fromarray(colours).resize((264, 208), Image.Resampling.BICUBIC), 3, seed)
    check_source(*re_saved(picture, first, more))


def grainy(seed: int) -> Image.Image:
    return noisy(scene(seed, (400, 304)).convert("L"), 6, seed)


@pytest.mark.parametrize(("first", "more"), [(85, 3), (90, 3), (82, 5)])
def test_a_photo_that_was_made_brighter_does_not_take_the_place_of_its_source(first: int, more: int) -> None:
    """Only the levels of its blocks do not follow from the source, of which it shows all at finer steps."""
    original = encoded(grainy(1), "JPEG", quality=first)
    brighter = picture_in(original).convert("L").point(lambda level: min(255, level + 1))
    child = encoded(brighter, "JPEG", quality=first + more)
    assert (source(original, child), source(child, original)) == (KEPT, DUPLICATE)
    turned = brighter.transpose(Image.Transpose.ROTATE_90)
    assert source(original, encoded(turned, "JPEG", quality=first - 10)) == KEPT


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("first", [82, 90])
def test_a_photo_that_may_have_been_changed_does_not_take_the_place_of_its_source(first: int, seed: int) -> None:
    """Values that a lossy WebP moved are neither those of the source nor the child's own."""
    original = encoded(grainy(seed), "JPEG", quality=first)
    changed = picture_in(encoded(picture_in(original), "WEBP", quality=95)).convert("L")
    assert source(encoded(changed, "JPEG", quality=first + 3), original) == NEITHER


@pytest.mark.parametrize(("finer", "coarser"), [(85, 82), (88, 85), (93, 88)])
def test_of_two_files_that_were_made_from_one_photo_the_finer_one_is_kept(finer: int, coarser: int) -> None:
    check_source(*(encoded(grainy(1), "JPEG", quality=quality) for quality in (finer, coarser)))


def test_a_copy_whose_values_were_rounded_up_from_five_eighths_follows_from_its_source(trellis: Trellis) -> None:
    """ffmpeg rounds so, and its steps are finer in some places and coarser in others."""
    original = trellis.encode(0.5, [9] * 64)
    check_source(original, trellis.encode(5 / 8, [7, 11] * 32, original))


def saved(steps: int, sampling: int, chroma: int = 4) -> bytes:
    smooth = Image.fromarray(np.random.default_rng(3).integers(60, 200, (4, 5, 3), dtype=np.uint8)).resize((400, 304))
    return encoded(smooth, "JPEG", qtables=[[steps] * 64, [chroma] * 64], subsampling=sampling)


def test_of_two_files_that_each_have_something_finer_neither_is_the_source() -> None:
    first, across = saved(3, 0), saved(3, 1)
    for finer, coarser in ((first, saved(4, 0)), (first, saved(3, 0, chroma=5)), (first, across)):
        assert (source(finer, coarser), source(coarser, finer)) == (KEPT, DUPLICATE)
    for other in (saved(2, 2), saved(2, 0, chroma=5)):
        assert source(first, other) == source(other, first) == NEITHER
    turned = encoded(picture_in(across).transpose(Image.Transpose.ROTATE_90), "JPEG", subsampling=1, qtables=[[3] * 64])
    assert source(across, turned) == NEITHER


@pytest.mark.parametrize(("quality", "size"), [(98, (400, 304)), (75, (16, 16))])
def test_fine_steps_and_few_of_them_tell_nothing(quality: int, size: tuple[int, int]) -> None:
    copy = encoded(picture_in(CAMERA).resize(size, Image.Resampling.LANCZOS), "JPEG", quality=quality)
    assert source(encoded(picture_in(copy), "PNG"), copy) == EITHER


def test_turned_pixels_do_not_tell_which_photo_is_upright() -> None:
    upright, turned = (encoded(one, "PNG") for one in (PHOTO, PHOTO.transpose(Image.Transpose.ROTATE_90)))
    assert source(upright, turned) == source(turned, upright) == EITHER

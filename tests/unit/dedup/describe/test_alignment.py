"""Which photos are copies of each other by alignment, and what each lacks: on generated pictures and photos."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from clip_client.dedup.aligned import PUT_INTO, UNTOLD, Alignment
from clip_client.dedup.describe.align import align, copy_transform
from clip_client.dedup.describe.comparison import compare
from clip_client.dedup.describe.keypoints import Keypoints, extract_keypoints
from clip_client.dedup.types import ALTERED, EDITED, RE_ENCODED
from tests.fixtures.images.scenes import SIZE, cropped, encoded, noisy, resized, scene

Change = Callable[[Image.Image], Image.Image]


@pytest.fixture(scope="module")
def sample_photos(photos: Path) -> dict[str, Image.Image]:
    """Name -> photo, in RGB."""
    return {path.stem: Image.open(path).convert("RGB") for path in photos.iterdir()}


@cache
def photo(seed: int) -> Keypoints:
    return keypoints(scene(seed))


def keypoints(picture: Image.Image) -> Keypoints:
    return extract_keypoints(picture, picture.size)


def both_ways(changed: Image.Image, original: Image.Image | None = None) -> tuple[Alignment, Alignment]:
    """Align a changed picture with its original, by default the first scene, and the other way round."""
    one, other = keypoints(changed), photo(0) if original is None else keypoints(original)
    there, back = align(one, other)
    assert there is not None
    assert back is not None
    return there, back


def aligned(changed: Image.Image, original: Image.Image | None = None) -> Alignment:
    return both_ways(changed, original)[0]


def is_copy(found: Alignment | None) -> bool:
    return found is not None and found.tier in (RE_ENCODED, EDITED)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda picture: picture, ()),
        (lambda picture: encoded(picture, "JPEG", quality=30), ()),
        (lambda picture: encoded(picture, "WEBP", quality=60), ()),
        (lambda picture: encoded(resized(picture, 0.7), "JPEG", quality=60), ("70% of the size",)),
        (lambda picture: resized(picture, 2), ("twice the size",)),
    ],
)
def test_another_file_of_the_same_picture_is_re_encoded(change: Change, words: tuple[str, ...]) -> None:
    found = aligned(change(scene(0)))
    assert (found.tier, found.changes, found.region, found.region_share) == (RE_ENCODED, words, None, 0)
    assert found.residual < 0.1


BRIGHT = "detail in light or dark parts"
EDITS: dict[str, tuple[Change, str, str]] = {
    "crop": (lambda picture: cropped(picture, 0, 0.12, 0, 0), "cropped to 88%", "12% of the picture"),
    "large crop": (lambda picture: cropped(picture, 0.15, 0.15, 0.15, 0.15), "cropped to 49%", "51% of the picture"),
    "right": (lambda picture: picture.rotate(-90, expand=True), "rotated by 90 degrees to the right", ""),
    "left": (lambda picture: picture.rotate(90, expand=True), "rotated by 90 degrees to the left", ""),
    "half": (lambda picture: picture.rotate(180), "rotated by 180 degrees", ""),
    "mirror": (ImageOps.mirror, "mirrored", ""),
    "flip": (ImageOps.flip, "mirrored top to bottom", ""),
    "mirrored and smaller": (
        lambda picture: resized(ImageOps.mirror(picture), 0.7), "mirrored, 70% of the size", "1.4 times the resolution",
    ),
    "left and smaller": (
        lambda picture: resized(picture.rotate(90, expand=True), 0.7),
        "rotated by 90 degrees to the left, 70% of the size", "1.4 times the resolution",
    ),
    "mirrored crop": (
        lambda picture: ImageOps.mirror(cropped(picture, 0.1, 0, 0, 0)), "mirrored", "10% of the picture",
    ),
    "brighter": (lambda picture: ImageEnhance.Brightness(picture).enhance(1.25), "brighter", BRIGHT),
    "darker": (lambda picture: ImageEnhance.Brightness(picture).enhance(0.75), "darker", ""),
    "contrast": (lambda picture: ImageEnhance.Contrast(picture).enhance(1.25), "with other contrast or colours", ""),
    "grey": (lambda picture: ImageOps.grayscale(picture).convert("RGB"), "black and white", "colour"),
    "blur": (lambda picture: picture.filter(ImageFilter.GaussianBlur(2)), "blurred", "sharpness"),
    "border": (lambda picture: ImageOps.expand(picture, 24, "white"), "with a border", ""),
    "squash": (lambda picture: picture.resize((400, 255)), "squashed", "1.1 times the resolution"),
}  # fmt: skip
"""A change, what is said of it, and what only the original has."""


@pytest.mark.parametrize("edit", EDITS)
def test_a_change_of_the_whole_picture_is_an_edit_and_loses_what_is_named(edit: str) -> None:
    change, words, lost = EDITS[edit]
    found, back = both_ways(change(scene(0)))
    assert (found.tier, found.region, found.lost) == (EDITED, None, ())
    # Tones and sharpness do not tell which of the two shows more.
    assert found.doubts == ((UNTOLD,) if edit in ("brighter", "darker", "contrast", "blur") else ())
    assert words in ", ".join(found.changes)
    assert lost in back.lost if lost else back.lost == ()


def test_a_photo_is_no_copy_of_a_crop_by_a_few_pixels() -> None:
    """What lies outside is too little to be called more of the scene, and would be lost."""
    crop = keypoints(cropped(scene(0), 0.008, 0.008, 0.008, 0.008))
    there, back = align(crop, photo(0))
    assert there is not None
    assert (there.tier, there.changes) == (EDITED, ("cropped to 97%",))
    assert back is None


def removed(picture: Image.Image) -> Image.Image:
    """Replace a spot of 24 pixels by what is next to it."""
    picture = picture.copy()
    picture.paste(picture.crop((240, 100, 264, 124)).filter(ImageFilter.GaussianBlur(3)), (300, 200))
    return picture


def lettered(picture: Image.Image) -> Image.Image:
    picture = picture.copy()
    ImageDraw.Draw(picture).text((290, 200), "2026", fill="white", font_size=30)
    return picture


def recoloured(picture: Image.Image) -> Image.Image:
    picture = picture.copy()
    spot = picture.crop((290, 190, 340, 240))
    picture.paste(Image.merge("RGB", [spot.getchannel(band) for band in "GBR"]), (290, 190))
    return picture


@pytest.mark.parametrize(
    "after",
    [
        lambda picture: picture,
        lambda picture: encoded(picture, "JPEG", quality=75),
        lambda picture: cropped(picture, 0.3, 0.3, 0, 0),
    ],
    ids=["lossless", "JPEG", "crop"],
)
@pytest.mark.parametrize("change", [removed, lettered, recoloured])
def test_a_changed_region_is_altered_and_found_in_the_kept_photo(change: Change, after: Change) -> None:
    found = aligned(after(change(scene(0))))
    assert found.tier == ALTERED
    assert found.region is not None
    left, top, width, height = found.region
    assert left < 315 / SIZE[0] < left + width
    assert top < 215 / SIZE[1] < top + height
    assert 0 < found.region_share < 0.1


def test_a_spot_in_another_colour_of_the_same_brightness_is_altered() -> None:
    muted = Image.eval(scene(0), lambda level: 64 + level // 2)  # else a channel would be cut off
    planes = np.array(muted.convert("YCbCr"))
    planes[190:240, 290:340, 1] += 20
    assert aligned(Image.fromarray(planes, "YCbCr").convert("RGB"), muted).tier == ALTERED


def test_a_coloured_date_on_a_grey_photo_is_altered(sample_photos: dict[str, Image.Image]) -> None:
    grey = sample_photos["cell"]
    dated = grey.copy()
    place = (grey.width * 0.55, grey.height * 0.8)
    ImageDraw.Draw(dated).text(place, "12:00 05/01", fill=(255, 160, 0), font_size=27)
    assert aligned(dated, grey).tier == ALTERED


def with_bar(picture: Image.Image) -> Image.Image:
    """Four pixels along the lower edge of the small picture of 512 pixels."""
    barred = picture.copy()
    height = round(4 / 512 * max(picture.size))
    barred.paste((255, 120, 0), (0, picture.height - height, picture.width, picture.height))
    return barred


@pytest.mark.parametrize(
    "change",
    [lambda picture: encoded(picture, "JPEG", quality=60), lambda picture: resized(picture, 0.5)],
    ids=["encoded", "resized"],
)
def test_a_bar_along_an_edge_is_seen(change: Change, sample_photos: dict[str, Image.Image]) -> None:
    clock = sample_photos["clock_motion"]
    assert is_copy(align(keypoints(change(clock)), keypoints(clock))[0])
    assert not is_copy(align(keypoints(change(with_bar(clock))), keypoints(clock))[0])
    assert not is_copy(align(keypoints(change(clock)), keypoints(with_bar(clock)))[0])


def test_two_views_that_overlap_are_no_copies_however_plain_what_they_do_not_share_is() -> None:
    scenery, plain = scene(0, (600, 300)), Image.new("RGB", (600, 300), (120, 130, 140))
    plain.paste(scene(0, (340, 300)), (130, 0))
    for wide, off in ((scenery, 0.2), (scenery, 0.5), (plain, 0.2)):
        one, other = keypoints(cropped(wide, off, 0, 0, 0)), keypoints(cropped(wide, 0, 0, off, 0))
        assert align(one, other) == (None, None)


@pytest.mark.parametrize("size", [(384, 512), (512, 384), (512, 90)])
def test_a_strip_along_an_edge_is_too_little(size: tuple[int, int]) -> None:
    one, other = (np.asarray(scene(seed, size)) for seed in (0, 1))

    def can_be_compared(overlap: int) -> bool:
        return compare(one, other, np.array([[1.0, 0, size[0] - overlap], [0, 1, 0]])) is not None

    assert not any(can_be_compared(pixels) for pixels in range(1, 10))
    assert can_be_compared(40)


def test_a_rotated_and_padded_copy_is_aligned_although_it_lacks_the_corners() -> None:
    found = aligned(scene(0).rotate(7, Image.Resampling.BICUBIC))
    assert found.changes[0].startswith("rotated by 7")


def logo(picture: Image.Image) -> Image.Image:
    picture.paste(scene(99, (200, 150)), (100, 75))
    return picture


def frame(picture: Image.Image) -> Image.Image:
    ornate = scene(98)
    ornate.paste(picture.resize((300, 200)), (50, 50))
    return ornate


def caption(picture: Image.Image) -> Image.Image:
    picture.paste(scene(97, (400, 100)), (0, 200))
    return picture


def sky(picture: Image.Image) -> Image.Image:
    picture.paste(noisy(Image.linear_gradient("L").convert("RGB").resize((400, 150)), 2, 96), (0, 0))
    return picture


def template(picture: Image.Image) -> Image.Image:
    page = scene(95)
    for number in range(3):
        page.paste(picture.crop((0, 90 * number, 360, 90 * number + 70)), (20, 90 * number + 20))
    return page


SHARED: dict[str, Change] = {"logo": logo, "frame": frame, "caption": caption, "sky": sky, "template": template}


@settings(max_examples=3, deadline=None, derandomize=True)
@given(first=st.integers(0, 40), second=st.integers(41, 80))
@pytest.mark.parametrize("shared", SHARED)
def test_no_shared_part_makes_two_photos_a_copy(shared: str, first: int, second: int) -> None:
    one, other = (keypoints(SHARED[shared](scene(seed))) for seed in (first, second))
    assert not is_copy(align(one, other)[0])


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 5), edit=st.sampled_from(["removed", "other", *EDITS]))
def test_the_order_of_two_photos_changes_nothing_but_the_words(seed: int, edit: str) -> None:
    changes: dict[str, Change] = {"removed": removed, "other": lambda picture: scene(50)}
    change = changes[edit] if edit in changes else EDITS[edit][0]
    one, other = keypoints(change(scene(seed))), photo(seed)
    there, back = align(one, other)
    assert align(other, one) == (back, there)
    assert (there is None) == (back is None)
    if there is None or back is None:
        return
    assert (there.tier, there.residual) == (back.tier, back.residual)
    matrices = [np.vstack([np.reshape(found.transform, (2, 3)), [0, 0, 1]]) for found in (there, back)]
    np.testing.assert_allclose(matrices[0] @ matrices[1], np.eye(3), atol=1e-6)


def test_the_transform_leads_from_the_duplicate_to_the_kept_photo_at_full_size() -> None:
    picture = scene(0, (1200, 900))
    copy = resized(picture.crop((300, 90, 1200, 900)), 0.5)
    found = aligned(copy, picture)
    np.testing.assert_allclose(np.reshape(found.transform, (2, 3)), [[2, 0, 300], [0, 2, 90]], atol=1)


def gamma(picture: Image.Image) -> Image.Image:
    return picture.point([round(255 * (level / 255) ** 1.5) for level in range(256)] * 3)


PHOTO_EDITS: dict[str, tuple[str, Change]] = {
    # The curve moves the edges of letters, by which a transform is improved.
    "crop with other tones": ("page", lambda picture: gamma(cropped(picture, 0.025, 0.025, 0.025, 0.025))),
    # The outermost pixels of the photo take on the black beside them.
    "black border": ("clock_motion", lambda picture: ImageOps.expand(picture, 20)),
    # What is blurred at the edge depends on what lies beyond it.
    "blur, at the edges": ("coins", lambda picture: picture.filter(ImageFilter.GaussianBlur(2))),
    # Much of it is black, but the copy has lost what is nearly white.
    "brighter night": ("rocket", lambda picture: ImageEnhance.Brightness(picture).enhance(1.25)),
}


@pytest.mark.parametrize(("name", "change"), PHOTO_EDITS.values(), ids=PHOTO_EDITS)
def test_an_edit_of_a_photo_is_recognised(name: str, change: Change, sample_photos: dict[str, Image.Image]) -> None:
    assert aligned(change(sample_photos[name]), sample_photos[name]).tier == EDITED


def test_what_is_weakened_is_lost() -> None:
    for weaken, lost in ((ImageEnhance.Color, "colour"), (ImageEnhance.Brightness, "tonal range")):
        found, back = both_ways(weaken(scene(0)).enhance(0.05 if lost == "colour" else 0.25))
        assert (lost in back.lost, found.lost) == (True, ())


def test_what_only_the_duplicate_has_is_lost(sample_photos: dict[str, Image.Image]) -> None:
    blurred = Image.fromarray(np.random.default_rng(1).integers(40, 220, (3, 4, 3), dtype=np.uint8))
    wide = blurred.resize((600, 450), Image.Resampling.BICUBIC)
    wide.paste(scene(0), (100, 75))
    assert [lost.endswith("of the picture") for lost in aligned(wide).lost] == [True]
    astronaut = ImageOps.grayscale(sample_photos["astronaut"]).convert("RGB")
    assert aligned(astronaut, ImageEnhance.Brightness(astronaut).enhance(2)).lost == (BRIGHT,)


@pytest.mark.parametrize(
    ("factor", "lost"), [(1.02, ()), (1.05, ("1.1 times the resolution",)), (2, ("2 times the resolution",))]
)
def test_sizes_that_differ_by_rounding_lose_nothing(factor: float, lost: tuple[str, ...]) -> None:
    assert aligned(resized(scene(0), factor)).lost == lost


@pytest.mark.parametrize("side", range(4))
def test_a_bar_on_one_side_shows_that_the_picture_was_put_into_something(side: int) -> None:
    border = tuple(24 if number == side else 0 for number in range(4))
    assert both_ways(ImageOps.expand(scene(0), border, "white"))[1].doubts == (PUT_INTO,)


def with_an_object_moved(picture: Image.Image) -> Image.Image:
    """As in the next frame of a film."""
    changed = picture.copy()
    changed.paste((250, 250, 250), (100, 100, 130, 130))
    return changed


LIKE_A_COPY: dict[str, tuple[Change, bool]] = {
    "coarse": (lambda picture: encoded(picture, "JPEG", quality=40), True),
    "coarse and tiny": (lambda picture: encoded(resized(picture, 0.0625), "JPEG", quality=40), True),
    "turned and smaller": (lambda picture: resized(picture.transpose(Image.Transpose.TRANSVERSE), 0.7), True),
    "enlarged": (lambda picture: resized(picture, 1.5), True),
    "without a filter": (lambda picture: picture.resize((160, 120), Image.Resampling.NEAREST), True),
    "an object moved": (with_an_object_moved, False),
    "cropped": (lambda picture: cropped(picture, 0.1, 0, 0, 0.1), False),
    "another photo": (lambda _: scene(6, (640, 480)), False),
}


@pytest.mark.parametrize(("change", "is_tried"), LIKE_A_COPY.values(), ids=LIKE_A_COPY)
def test_a_proof_is_tried_only_for_what_looks_like_the_whole_photo(change: Change, is_tried: bool) -> None:
    picture = noisy(scene(5, (640, 480)), 3, 5)
    whole, other = keypoints(picture), keypoints(change(picture))
    assert (copy_transform(other, whole) is not None, copy_transform(whole, other) is not None) == (is_tried,) * 2

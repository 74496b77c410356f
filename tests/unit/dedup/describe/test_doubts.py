"""Which pairs a proof is tried for, and what a description cannot tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from clip_client.dedup.aligned import UNTOLD
from clip_client.dedup.describe.align import align, copy_transform
from clip_client.dedup.describe.keypoints import Keypoints, extract_keypoints
from clip_client.dedup.types import EDITED
from tests.fixtures.images.scenes import cropped, encoded, noisy, resized, scene

PHOTO = noisy(scene(5, (640, 480)), 3, 5)


def keypoints(picture: Image.Image) -> Keypoints:
    return extract_keypoints(picture, picture.size)


def with_an_object_moved(picture: Image.Image) -> Image.Image:
    """As in the next frame of a film."""
    changed = picture.copy()
    changed.paste((250, 250, 250), (100, 100, 130, 130))
    return changed


LIKE_A_COPY: dict[str, tuple[Callable[[Image.Image], Image.Image], bool]] = {
    "coarse": (lambda picture: encoded(picture, "JPEG", quality=40), True),
    "coarse and tiny": (lambda picture: encoded(resized(picture, 0.0625), "JPEG", quality=40), True),
    "turned and smaller": (lambda picture: resized(picture.transpose(Image.Transpose.TRANSVERSE), 0.7), True),
    "enlarged": (lambda picture: resized(picture, 1.5), True),
    "without a filter": (lambda picture: picture.resize((160, 120), Image.Resampling.NEAREST), True),
    "an object moved": (with_an_object_moved, False),
    "cropped": (lambda picture: cropped(picture, 0.1, 0, 0, 0.1), False),
    "another photo": (lambda _: scene(6, (640, 480)), False),
}


@pytest.mark.parametrize("way", LIKE_A_COPY)
def test_a_proof_is_tried_only_for_what_looks_like_the_whole_photo(way: str) -> None:
    change, is_tried = LIKE_A_COPY[way]
    whole, other = keypoints(PHOTO), keypoints(change(PHOTO))
    assert (copy_transform(other, whole) is not None, copy_transform(whole, other) is not None) == (is_tried,) * 2


EDITS: dict[str, tuple[Callable[[Image.Image], Image.Image], tuple[str, ...]]] = {
    "cropped": (lambda picture: cropped(picture, 0.1, 0, 0, 0.1), ()),
    "grey": (lambda picture: ImageOps.grayscale(picture).convert("RGB"), ()),
    "darker": (lambda picture: ImageEnhance.Brightness(picture).enhance(0.85), (UNTOLD,)),
    "blurred": (lambda picture: picture.filter(ImageFilter.GaussianBlur(1.5)), (UNTOLD,)),
}


@pytest.mark.parametrize("edit", EDITS)
def test_tones_and_sharpness_do_not_tell_which_of_two_shows_more(edit: str) -> None:
    change, doubts = EDITS[edit]
    found = align(keypoints(change(scene(0))), keypoints(scene(0)))
    assert found is not None
    assert (found.tier, found.doubts) == (EDITED, doubts)

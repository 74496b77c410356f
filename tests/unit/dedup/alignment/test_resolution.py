"""Which of two files of one size was made from the other, by the finest detail of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from clip_client.dedup.aligned import NOISY, SOFTER
from clip_client.dedup.alignment.resolution import doubt_about
from tests.fixtures.images.scenes import noisy, resized, scene

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[Image.Image], Image.Image]

SAME_PLACE = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def same(picture: Image.Image) -> Image.Image:
    return picture


def blurred(pixels: float) -> Change:
    return lambda picture: picture.filter(ImageFilter.GaussianBlur(pixels))


def with_contrast(factor: float) -> Change:
    return lambda picture: ImageEnhance.Contrast(picture).enhance(factor)


def with_noise(picture: Image.Image) -> Image.Image:
    return noisy(picture, 12, seed=1)


@pytest.mark.parametrize(
    ("kept", "duplicate", "doubt"),
    [
        (same, blurred(1), ""),
        (same, blurred(2), ""),
        (same, blurred(3), ""),
        (same, with_contrast(0.6), ""),
        (same, with_contrast(1.4), ""),
        (blurred(1), same, SOFTER),
        (blurred(2), same, SOFTER),
        (blurred(3), same, SOFTER),
        (lambda picture: with_contrast(2)(blurred(1)(picture)), same, SOFTER),
        (lambda picture: resized(resized(picture, 0.5), 2), same, SOFTER),
        (with_noise, same, NOISY),
        (with_noise, with_contrast(0.6), NOISY),
        (with_noise, with_contrast(1.4), NOISY),
        (lambda picture: with_noise(blurred(1)(picture)), blurred(1), NOISY),
        (lambda picture: with_noise(blurred(2)(picture)), blurred(2), NOISY),
    ],
    ids=[
        "blurred by 1", "blurred by 2", "blurred by 3", "paler", "stronger",
        "kept blurred by 1", "kept blurred by 2", "kept blurred by 3", "kept blurred and stronger", "kept enlarged",
        "kept noisy", "kept noisy, paler", "kept noisy, stronger", "kept noisy, both blurred by 1", "both by 2",
    ],
)  # fmt: skip
def test_the_sign_does_not_depend_on_what_else_was_done(kept: Change, duplicate: Change, doubt: str) -> None:
    picture = noisy(scene(0, (1200, 900)), 2, seed=2)  # as grainy as a camera leaves it
    lumas = [np.asarray(change(picture).convert("L")) for change in (kept, duplicate)]
    assert doubt_about(lumas[0], lumas[1], SAME_PLACE) == doubt

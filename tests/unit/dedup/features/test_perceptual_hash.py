"""The perceptual hash has the bits of the package ImageHash; the inner one is that of what lies within a border."""

from __future__ import annotations

import imagehash
import numpy as np
import pytest
from PIL import Image, ImageOps

from clip_client.dedup.features.perceptual_hash import inner_hash, perceptual_hash
from tests.fixtures.images.scenes import encoded, scene

STRIPES = Image.fromarray(np.tile(np.array([0, 255], np.uint8), (64, 32)))
PICTURES = {
    "noise": Image.effect_noise((300, 200), 60),
    "colour": Image.merge("RGB", [Image.effect_noise((90, 120), sigma) for sigma in (20, 60, 90)]),
    "small": Image.effect_noise((9, 5), 60),
    # Most coefficients of these are zero, and rounding must not decide which side of the median they are on.
    "black": Image.new("RGB", (50, 50)),
    "one colour": Image.new("RGB", (100, 80), (90, 9, 7)),
    "linear gradient": Image.linear_gradient("L"),
    "radial gradient": Image.radial_gradient("L"),
    "stripes": STRIPES,
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_hash_is_that_of_imagehash(name: str) -> None:
    image = PICTURES[name]
    assert perceptual_hash(image) == int(str(imagehash.phash(image)), 16)


def test_random_pictures_have_the_hashes_of_imagehash() -> None:
    randomness = np.random.default_rng(0)
    for _ in range(100):
        image = Image.fromarray(randomness.integers(0, 256, (32, 32), dtype=np.uint8))
        assert perceptual_hash(image) == int(str(imagehash.phash(image)), 16)


def bits_inside(picture: Image.Image) -> int:
    """Return the bits by which the inner hash of a picture as a search sees it differs from the hash of the scene."""
    whole = perceptual_hash(preview(scene(0)))
    return (whole ^ inner_hash(preview(picture))).bit_count()


def preview(picture: Image.Image) -> Image.Image:
    seen = encoded(picture, "JPEG", quality=80)
    seen.thumbnail((128, 128))
    return seen


@pytest.mark.parametrize(
    "border",
    [12, 24, 60, (0, 30), (50, 0), (20, 40, 60, 10)],
    ids=["narrow", "a width of 6 %", "wide", "above and below", "left and right", "of four widths"],
)
@pytest.mark.parametrize("colour", ["black", "white", (90, 20, 20)])
def test_a_border_leaves_the_hash_of_what_lies_within_it(
    border: int | tuple[int, ...], colour: str | tuple[int, ...]
) -> None:
    assert bits_inside(ImageOps.expand(scene(0), border, colour)) <= 6


@pytest.mark.parametrize(
    "picture",
    [
        scene(0),
        ImageOps.expand(scene(0), (0, 40, 0, 0), "white"),
        ImageOps.expand(scene(0), 400, "white"),
        Image.new("RGB", (100, 100), "white"),
    ],
    ids=["no border", "sky", "a spot on a ground", "nothing"],
)
def test_without_a_border_there_is_no_inner_hash(picture: Image.Image) -> None:
    assert inner_hash(preview(picture)) == 0

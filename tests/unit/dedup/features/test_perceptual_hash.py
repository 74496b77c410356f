"""The perceptual hash has the bits of the package ImageHash, so that hashes in old stores stay true."""

from __future__ import annotations

import imagehash
import numpy as np
import pytest
from PIL import Image

from clip_client.dedup.features.perceptual_hash import perceptual_hash

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
    for _ in range(500):
        image = Image.fromarray(randomness.integers(0, 256, (32, 32), dtype=np.uint8))
        assert perceptual_hash(image) == int(str(imagehash.phash(image)), 16)

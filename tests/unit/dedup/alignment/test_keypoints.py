"""What is kept of one photo, and which photos cannot be verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest
from PIL import Image, ImageFilter

from clip_client.dedup.alignment.keypoints import Keypoints, extract_keypoints, opencv_for_many
from tests.fixtures.images.scenes import scene

if TYPE_CHECKING:
    from collections.abc import Callable


def test_bytes_hold_everything() -> None:
    made = extract_keypoints(scene(1, (900, 600)), (3600, 2400))
    data = made.to_bytes()
    read = Keypoints.from_bytes(data)
    assert (read.width, read.height, read.jpeg, read.reason) == (3600, 2400, made.jpeg, "")
    assert read.picture.shape == (341, 512, 3)
    np.testing.assert_array_equal(read.thumbnail, made.thumbnail)
    np.testing.assert_array_equal(read.positions, made.positions)
    np.testing.assert_array_equal(read.descriptors, made.descriptors)
    assert made.positions.dtype == np.float32
    assert len(made.positions) <= 500
    assert len(data) < 200_000


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"PK\x03\x04 but not really",
        lambda data: data[:-1],
        lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
        lambda data: b"",
    ],
    ids=["others", "cut off", "one bit", "none"],
)
def test_other_bytes_are_refused(damage: Callable[[bytes], bytes]) -> None:
    data = extract_keypoints(scene(1), (300, 200)).to_bytes()
    with pytest.raises(ValueError, match="no keypoints"):
        Keypoints.from_bytes(damage(data))


@pytest.mark.parametrize(
    ("picture", "reason"),
    [
        (Image.new("RGB", (300, 200), "blue"), "texture"),
        (Image.linear_gradient("L").convert("RGB"), "texture"),
        (scene(1).filter(ImageFilter.GaussianBlur(40)), "texture"),
        (scene(1, (400, 60)), "80 pixels"),
    ],
)
def test_flat_and_tiny_pictures_cannot_be_verified(picture: Image.Image, reason: str) -> None:
    assert reason in extract_keypoints(picture, picture.size).reason


def test_opencv_uses_one_thread_inside_and_its_own_number_outside() -> None:
    before = cv2.getNumThreads()
    with opencv_for_many():
        assert cv2.getNumThreads() == 1
    assert cv2.getNumThreads() == before

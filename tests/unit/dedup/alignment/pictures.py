"""Keypoints and alignments of generated pictures."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from clip_client.dedup.alignment.align import align
from clip_client.dedup.alignment.keypoints import extract_keypoints
from tests.fixtures.images.scenes import scene

if TYPE_CHECKING:
    from PIL import Image

    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.alignment.keypoints import Keypoints


@cache
def photo(seed: int) -> Keypoints:
    return keypoints(scene(seed))


def keypoints(picture: Image.Image) -> Keypoints:
    return extract_keypoints(picture, picture.size)


def aligned(changed: Image.Image, seed: int = 0) -> Alignment:
    found = align(keypoints(changed), photo(seed))
    assert found is not None
    return found

"""What is seen of RAW files."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from clip_client.dedup.features.image_features import BYTES_ONLY, extract_features
from clip_client.dedup.features.preview import NEEDS_RAWPY, raw_preview, thumbnail
from tests.fixtures.albums import write
from tests.fixtures.images.image_files import encoded, oriented
from tests.fixtures.images.raw_files import dng

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """Something with an upper and a lower half."""
    levels = np.linspace(0, 255, 240, dtype=np.uint8)[:, None, None] * np.ones((1, 320, 3), np.uint8)
    levels[:60, :80] = 255
    return Image.fromarray(levels)


@pytest.mark.parametrize(("orientation", "size"), [(1, (64, 48)), (3, (64, 48)), (6, (48, 64)), (8, (48, 64))])
def test_features_are_those_of_the_oriented_preview(
    picture: Image.Image, orientation: int, size: tuple[int, int], tmp_path: Path
) -> None:
    jpeg = encoded(picture, "JPEG", quality=90, exif=oriented(orientation))
    data = dng(picture, orientation=orientation)
    features = extract_features(data, is_raw=True)[0]
    assert features.perceptual_hash == extract_features(jpeg)[0].perceptual_hash
    assert (features.width, features.height) == size
    assert features.capture_time.taken_ms == 1_588_748_889_000
    assert features.capture_time.camera == "Maker Model"
    small = thumbnail(str(write(tmp_path / "a.dng", data)), 64)
    assert small is not None
    with Image.open(io.BytesIO(small)) as seen:
        assert (seen.width > seen.height) == (orientation in (1, 3))


@pytest.mark.parametrize("data", [dng(None), b"no RAW file at all", b""], ids=["no preview", "text", "empty"])
def test_without_a_preview_only_bytes_count(data: bytes) -> None:
    assert raw_preview(data) is None
    features = extract_features(data, is_raw=True)[0]
    assert (features.code, features.is_flat) == (BYTES_ONLY, True)


def test_without_rawpy_only_bytes_count(picture: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rawpy", None)  # as if it were not installed
    features = extract_features(dng(picture), is_raw=True)[0]
    assert (features.code, features.message) == (BYTES_ONLY, NEEDS_RAWPY)

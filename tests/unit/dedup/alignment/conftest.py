"""Photos for the tests of alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="package")
def sample_photos(photos: Path) -> dict[str, Image.Image]:
    """Name -> photo, in RGB."""
    return {path.stem: Image.open(path).convert("RGB") for path in photos.iterdir()}

"""An encoder whose coefficients lie where a test wants them."""

from __future__ import annotations

import io
from typing import Any, Final

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.fixtures.images.image_files import encoded

MOZJPEG: Final = (
    "16 16 16 18 25 37 56 85 16 17 20 27 34 40 53 75 16 20 24 31 43 62 91 135 18 27 31 40 53 74 106 156 "
    "25 34 43 53 69 94 131 189 37 40 62 74 94 124 169 238 56 53 91 106 131 169 226 311 85 75 135 156 189 238 311 418"
)
"""Its luma table at quality 50."""


class Trellis:
    """A grey photo, and encodings of it whose coefficients were all moved towards zero."""

    def __init__(self) -> None:
        random = np.random.default_rng(8)
        smooth = cv2.GaussianBlur(random.normal(0, 40, (160, 208)).astype(np.float32), (0, 0), 1.2)
        self._levels = np.clip(np.rint(128 + 2.2 * smooth), 20, 235).astype(np.uint8)
        self.kept = encoded(Image.fromarray(self._levels), "PNG")
        self.mozjpeg = [min(255, (int(step) * 50 + 50) // 100) for step in MOZJPEG.split()]

    def encode(self, moved: float, table: list[int] | None = None, photo: bytes | None = None, **options: Any) -> bytes:
        """Round each coefficient that is ``moved`` and more steps from zero down by up to as many.

        With ``photo``, those of another grey photo.
        """
        levels = self._levels if photo is None else np.asarray(Image.open(io.BytesIO(photo)))
        steps = np.array(table or [12] * 64, np.float32).reshape(8, 8)
        made = np.empty(levels.shape, np.float32)
        for top in range(0, made.shape[0], 8):
            for left in range(0, made.shape[1], 8):
                block = levels[top : top + 8, left : left + 8].astype(np.float32) - 128
                scaled = cv2.dct(block) / steps
                nearer = np.sign(scaled) * np.maximum(np.ceil(np.abs(scaled) - moved), 0)
                nearer[0, 0] = np.rint(scaled[0, 0])
                made[top : top + 8, left : left + 8] = cv2.idct(nearer * steps) + 128
        picture = Image.fromarray(np.clip(np.rint(made), 0, 255).astype(np.uint8))
        data = encoded(picture, "JPEG", qtables=[steps.ravel().astype(int).tolist()], **options)
        assert Image.open(io.BytesIO(data)).size == picture.size
        return data


@pytest.fixture(scope="session")
def trellis() -> Trellis:
    return Trellis()

"""A picture's input pixels as a JPEG file, which is smaller than the photo and leaves nothing to resize."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from PIL import Image

from preprocess_ensemble.imaging.transform import preprocess

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.transform import PreprocessConfig


def reduced_jpeg(picture: Image.Image, config: PreprocessConfig, *, quality: int, subsampling: int) -> bytes:
    """Return a JPEG of exactly the model's input size; quality and subsampling as for Pillow."""
    pixels = preprocess(picture, config)  # uint8 (H, W, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return buffer.getvalue()

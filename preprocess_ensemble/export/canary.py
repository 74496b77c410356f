"""The canary: one small picture, always the same, that every exported model embeds once."""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from PIL import Image

_HEIGHT: Final = 120
_WIDTH: Final = 160


def canary_image() -> bytes:
    """Return a PNG file of 160x120 RGB pixels, a few KB.

    It is PNG because every decoder gives the same pixels for it. It is no square, and it changes under a mirror, a
    rotation or swapped channels, so each of these mistakes shows in its vector.
    """
    rows, columns = np.mgrid[0:_HEIGHT, 0:_WIDTH]
    disc = (rows - 40) ** 2 + (columns - 50) ** 2 < 900
    stripes = (columns + rows // 2) // 10 % 2 == 0
    pixels = np.empty((_HEIGHT, _WIDTH, 3), np.uint8)
    pixels[..., 0] = np.where(disc, 230, 20 + columns)
    pixels[..., 1] = np.where(disc, 60, 255 - 2 * rows)
    pixels[..., 2] = np.where(stripes & (rows > 70), 210, 40)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()

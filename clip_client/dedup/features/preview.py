"""A small upright version of a photo, made only for photos that look like copies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.text import why_unreadable
from clip_client.dedup.types import FailedFile

if TYPE_CHECKING:
    from PIL import Image

_FLATNESS_SIDE: Final = 64
"""Pixels; what is flat at this size has no content that a model could tell apart."""

_FLAT_LEVELS: Final = 3.0
"""Standard deviation, of 255 levels, below which a picture counts as flat. Tried: sensor noise on an even ground 0.5, a
page with one line of text 6, the plainest of the sample photos 10, a clear evening sky 23."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Preview:
    """A small picture, and the size of the large one."""

    image: Image.Image
    """RGB, upright, no side longer than what was asked for."""
    width: int
    """Of the photo itself, upright."""
    height: int
    is_scaled: bool = False
    """It was decoded at a fraction of its size, as only a JPEG can be."""

    @property
    def is_flat(self) -> bool:
        """True for a picture of nearly one colour.

        A model's vector of such a picture says little but "nothing to see", so black frames, lens caps and blank pages
        of different occasions would be called copies of each other.
        """
        small = self.image.copy()
        small.thumbnail((_FLATNESS_SIDE, _FLATNESS_SIDE))
        deviation = np.asarray(small, dtype=np.float32).std(axis=(0, 1))  # (3,)
        return bool(deviation.max() < _FLAT_LEVELS)


def preview(path: str, max_side: int = _FLATNESS_SIDE) -> Preview | FailedFile:
    """Open a photo at about ``max_side`` pixels; one that fails comes back as a failure, never as an exception."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        return FailedFile(path=path, code="UNREADABLE", message=why_unreadable(error))
    if is_raw(path):
        # Not at the top: what looks at a RAW file looks at its preview with this very module.
        from clip_client.dedup.features.raw_preview import raw_preview

        data = raw_preview(data) or data
    return preview_of(data, path, max_side)


def preview_of(data: bytes, path: str, max_side: int) -> Preview | FailedFile:
    """Do the same with the bytes of a file; ``path`` only names it where it fails."""
    from preprocess_ensemble.imaging.decode import SCALE_INFO, DecodeError, decode

    try:
        image = decode(data, at_least=(2 * max_side, 2 * max_side))
    except DecodeError as error:
        return FailedFile(path=path, code=error.status.name, message=error.message)
    scaled = image.info.get(SCALE_INFO)
    width, height = image.size if scaled is None else scaled.size
    image.thumbnail((max_side, max_side))
    return Preview(image=image.convert("RGB"), width=width, height=height, is_scaled=scaled is not None)

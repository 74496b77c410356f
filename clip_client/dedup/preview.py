"""A small upright version of a photo, made only for photos that look like copies."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.file_kinds import is_raw
from clip_client.dedup.report import FailedFile, why_unreadable

if TYPE_CHECKING:
    from PIL import Image

_FLATNESS_SIDE: Final = 64
"""Pixels; what is flat at this size has no content that a model could tell apart."""

_FLAT_LEVELS: Final = 3.0
"""Standard deviation, of 255 levels, below which a picture counts as flat. Tried: sensor noise on an even ground 0.5, a
page with one line of text 6, the plainest of the sample photos 10, a clear evening sky 23."""

_JPEG_START: Final = b"\xff\xd8\xff"


@dataclass(frozen=True, kw_only=True, eq=False)
class Preview:
    """A small picture, and the size of the large one."""

    image: Image.Image
    """RGB, upright, no side longer than what was asked for."""
    width: int
    """Of the photo itself, upright."""
    height: int

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
        from clip_client.dedup.raw import raw_preview

        data = raw_preview(data) or data
    return preview_of(data, path, max_side)


def preview_of(data: bytes, path: str, max_side: int) -> Preview | FailedFile:
    """Do the same with the bytes of a file; ``path`` only names it where it fails."""
    from preprocess_ensemble.decode import DecodeError

    try:
        found = _scaled_jpeg(data, max_side) if data.startswith(_JPEG_START) else _decoded(data)
        found.image.thumbnail((max_side, max_side))
    except DecodeError as error:
        return FailedFile(path=path, code=error.status.name, message=error.message)
    except Exception as error:  # a damaged file makes decoders raise anything, and the other photos must not suffer
        return FailedFile(path=path, code="CORRUPT", message=f"It cannot be opened: {error}.")
    return found


def _scaled_jpeg(data: bytes, max_side: int) -> Preview:
    """Decode at an eighth to the whole of the size, several times faster than in full."""
    from PIL import ImageOps, JpegImagePlugin

    # Not Image.open: its warning about large pictures is for those that would be decoded in full.
    with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
        width, height = image.size
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
        image.draft("RGB", (2 * max_side, 2 * max_side))
        upright = ImageOps.exif_transpose(image).convert("RGB")
    return Preview(image=upright, width=height if turned else width, height=width if turned else height)


def _decoded(data: bytes) -> Preview:
    from preprocess_ensemble.decode import decode

    image = decode(data).convert("RGB")
    return Preview(image=image, width=image.width, height=image.height)

"""How images travel: as unchanged files, or reduced to what the model needs."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from PIL.Image import Image

    from preprocess_ensemble.imaging.transform import PreprocessConfig

TransferName = Literal["thumbnail", "thumbnail-small", "original"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageEncoding:
    """One way to send images."""

    id: str
    """Part of a vector's id."""
    unchanged_up_to: int
    """A file of at most this many bytes, the mean size of a reduced picture, is sent unchanged."""
    save_options: Mapping[str, Any] | None = None
    """How Pillow writes a reduced picture; None if files are never reduced."""

    def payload(self, picture: Image, config: PreprocessConfig, file: bytes | None) -> bytes:
        """Return what is sent of a decoded ``picture``: the model's input, encoded, or its ``file`` if that is not
        larger. It needs ``save_options``."""
        from PIL.Image import fromarray

        from preprocess_ensemble.imaging.transform import preprocess

        assert self.save_options is not None
        reduced = io.BytesIO()
        fromarray(preprocess(picture, config)).save(reduced, **self.save_options)
        return reduced.getvalue() if file is None or reduced.tell() < len(file) else file


class EncodedImage(bytes):
    """An image in the form in which it is sent; a client does not reduce it again."""

    file_bytes: int
    """Size of the file that it was made from; ``max_image_bytes`` limits it."""

    @classmethod
    def of(cls, payload: bytes, file: bytes) -> EncodedImage:
        """Make one of what is sent, and the file that it stands for."""
        encoded = cls(payload)
        encoded.file_bytes = len(file)
        return encoded


IMAGE_ENCODINGS: Final[Mapping[TransferName, ImageEncoding]] = {
    "thumbnail": ImageEncoding(
        id="thumb-jpeg-q90-444",
        unchanged_up_to=16 * 1024,
        save_options={"format": "JPEG", "quality": 90, "subsampling": 0},
    ),
    "thumbnail-small": ImageEncoding(
        id="thumb-webp-q80-m2",
        unchanged_up_to=8 * 1024,
        save_options={"format": "WEBP", "quality": 80, "method": 2},
    ),
    "original": ImageEncoding(id="original", unchanged_up_to=sys.maxsize),
}
"""Chosen from the table that ``python -m benchmarks transfer`` prints; ``docs/client.md`` says how."""

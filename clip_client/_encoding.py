"""The forms in which images are sent: as unchanged files, or reduced to the pixels that the model needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

TransferName = Literal["thumbnail", "thumbnail-small", "original"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageEncoding:
    id: str  # part of a vector's id
    unchanged_up_to: int  # a file of so many bytes, the mean size of a reduced picture, is sent unchanged
    save_options: Mapping[str, Any] | None = None  # how Pillow writes a reduced picture; None: files are never reduced


class EncodedImage(bytes):
    """An image in the form in which it is sent; a client does not reduce it again."""

    file_bytes: int  # of the file that the image was made from; ``max_image_bytes`` limits it

    @classmethod
    def of(cls, payload: bytes, file: bytes) -> EncodedImage:
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
        id="thumb-webp-q80-m2", unchanged_up_to=8 * 1024, save_options={"format": "WEBP", "quality": 80, "method": 2}
    ),
    "original": ImageEncoding(id="original", unchanged_up_to=sys.maxsize),
}
"""Forms chosen from the table that ``python -m benchmarks transfer`` prints; ``docs/client.md`` says how."""

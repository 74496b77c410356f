"""How images travel: as unchanged files, or reduced to what the model needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

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
    quality: int | None = None
    """Of Pillow's JPEG encoder; None if files are never reduced."""
    subsampling: int = 0
    """0 is 4:4:4, which keeps the colour's full resolution; 2 is 4:2:0."""

    def payload(self, picture: Image, config: PreprocessConfig, file: bytes | None) -> bytes:
        """Return what is sent of a decoded ``picture``: the model's input as a JPEG, or its ``file`` if that is not
        larger. It needs a ``quality``."""
        from preprocess_ensemble.imaging.transform import reduced_jpeg

        assert self.quality is not None
        reduced = reduced_jpeg(picture, config, quality=self.quality, subsampling=self.subsampling)
        return reduced if file is None or len(reduced) < len(file) else file


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
    "thumbnail": ImageEncoding(id="thumb-jpeg-q90-444", unchanged_up_to=16 * 1024, quality=90),
    "thumbnail-small": ImageEncoding(id="thumb-jpeg-q80-420", unchanged_up_to=10 * 1024, quality=80, subsampling=2),
    "original": ImageEncoding(id="original", unchanged_up_to=sys.maxsize),
}
"""Chosen from the table that ``python -m benchmarks transfer`` prints; ``docs/client.md`` says how. WebP is smaller at
equal error, but takes ten times as long to encode; lossless formats are three times as large."""

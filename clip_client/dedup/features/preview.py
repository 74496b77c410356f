"""A small copy of a photo, and the picture inside a RAW file.

That picture is a JPEG that the camera made from its sensor data; LibRaw reads it, through rawpy. Without rawpy, or in
a file without such a picture, only the bytes can be compared.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.files.reading import read_file
from clip_client.dedup.types import FailedFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image

    OnDecoded = Callable[[bytes, Image.Image, tuple[int, int]], None]
    """Called with an image file, its picture, and the least size (height, width) that was asked of the decoder."""

NEEDS_RAWPY: Final = "Previews in RAW files are read by rawpy: pip install 'clip-triton[raw]'."

_FLATNESS_SIDE: Final = 64
"""Pixels. A picture that is flat at this size has no content for a model to compare."""

_FLAT_LEVELS: Final = 3.0
"""Standard deviation, of 255 levels, below which a picture counts as flat. Measured: sensor noise on an even ground
0.5, a page with one line of text 6, the plainest of the sample photos 10, a clear evening sky 23."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Preview:
    """A small picture, and the size of the photo that it was made from."""

    image: Image.Image
    """RGB, after the EXIF orientation, no side longer than the caller asked for."""
    width: int
    """Of the photo, in pixels, after the EXIF orientation."""
    height: int
    is_scaled: bool = False
    """It was decoded at a fraction of its size, which only a JPEG can be."""

    @property
    def is_flat(self) -> bool:
        """True for a picture of nearly one colour.

        The vectors of such pictures are all alike, so two black frames or blank pages would count as copies.
        """
        small = self.image.copy()
        small.thumbnail((_FLATNESS_SIDE, _FLATNESS_SIDE))
        deviation = np.asarray(small, dtype=np.float32).std(axis=(0, 1))  # (3,)
        return bool(deviation.max() < _FLAT_LEVELS)


def preview(path: str, max_side: int = _FLATNESS_SIDE) -> Preview | FailedFile:
    """Decode a photo at about ``max_side`` pixels; of a RAW file its preview. A failure is returned, not raised."""
    read = read_file(path)
    if isinstance(read, FailedFile):
        return read
    _, data = read
    return preview_of((is_raw(path) and raw_preview(data)) or data, path, max_side)


def thumbnail(path: str, max_side: int) -> bytes | None:
    """Return the photo as a small JPEG, or None if it cannot be opened."""
    seen = preview(path, max_side)
    if isinstance(seen, FailedFile):
        return None
    jpeg = io.BytesIO()
    seen.image.save(jpeg, "JPEG", quality=80)
    return jpeg.getvalue()


def preview_of(
    data: bytes,
    path: str,
    max_side: int,
    on_decoded: OnDecoded = lambda data, picture, at_least: None,
    *,
    least_side: int = 0,
) -> Preview | FailedFile:
    """Decode the bytes of an image file as :func:`preview` does; ``path`` only names it in a failure.

    ``on_decoded`` gets the picture before it is made smaller. A side of it has ``least_side`` pixels, if the photo has.
    """
    from preprocess_ensemble.imaging.decode import SCALE_INFO, DecodeError, decode

    side = max(2 * max_side, least_side)
    try:
        image = decode(data, at_least=(side, side))
    except DecodeError as error:
        return FailedFile(path=path, code=error.status.name, message=error.message)
    on_decoded(data, image, (side, side))
    scaled = image.info.get(SCALE_INFO)
    width, height = image.size if scaled is None else scaled.size
    image.thumbnail((max_side, max_side))
    return Preview(image=image.convert("RGB"), width=width, height=height, is_scaled=scaled is not None)


@dataclass(frozen=True, kw_only=True)
class RawPreview:
    """The preview in a RAW file, and the size of the photo."""

    data: bytes
    """An image file, turned as the camera was held, or with an EXIF orientation that says how."""
    width: int
    """Of the photo, in pixels, after the EXIF orientation."""
    height: int


def can_read_raw() -> bool:
    """Tell whether rawpy is installed, without importing it."""
    return find_spec("rawpy") is not None


def raw_preview(data: bytes) -> bytes | None:
    """Return the picture inside a RAW file as the bytes of an image file; None if there is none."""
    found = read_raw(data)
    return None if found is None else found.data


def read_raw(data: bytes) -> RawPreview | None:
    """Read the preview and the size of the photo; None if there is no preview, or no rawpy."""
    if not can_read_raw():
        return None
    import rawpy

    try:
        with rawpy.imread(io.BytesIO(data)) as raw:
            thumbnail = raw.extract_thumb()
            sizes = raw.sizes
    except Exception:  # rawpy has an exception for each of LibRaw's errors, and damaged files raise others
        return None
    is_jpeg = thumbnail.format == rawpy.ThumbFormat.JPEG
    width, height = (sizes.height, sizes.width) if sizes.flip in (5, 6) else (sizes.width, sizes.height)
    # LibRaw writes the orientation into a JPEG that does not have one.
    return RawPreview(data=bytes(thumbnail.data) if is_jpeg else _as_png(thumbnail.data), width=width, height=height)


def _as_png(pixels: Any) -> bytes:
    """Encode pixels, uint8 (H, W, 3), which LibRaw has turned already."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()

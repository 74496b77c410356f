"""The decoded picture of a photo, small copies of it, and the picture inside a RAW file.

That picture is a JPEG that the camera made from its sensor data; LibRaw reads it, through rawpy. Without rawpy, or in
a file without such a picture, only the bytes can be compared.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from clip_client._files import FailedFile
from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.files.reading import read_file

if TYPE_CHECKING:
    from PIL import Image

NEEDS_RAWPY: Final = "Previews in RAW files are read by rawpy: pip install 'clip-triton[raw]'."

_ORIENTATIONS: Final = (1, 2, 4, 3, 5, 8, 6, 7)
"""EXIF's orientation by LibRaw's ``flip``: 1 mirrors left to right, 2 top to bottom, and 4 swaps rows and columns."""


class DecodedPhoto(NamedTuple):
    """An image file and its picture, at least as large as was asked of the decoder; read by all that need a picture."""

    data: bytes
    picture: Image.Image
    at_least: tuple[int, int]
    """(height, width)"""


class RawPreview(NamedTuple):
    """The preview in a RAW file, and the size of the photo."""

    data: bytes
    """An image file, turned as the camera was held, or with an EXIF orientation that says how."""
    width: int
    """Of the photo, in pixels, after the EXIF orientation."""
    height: int


def thumbnail(path: str, max_side: int) -> bytes | None:
    """Return the photo as a small JPEG, or None if it cannot be opened."""
    read = read_file(path)
    return None if isinstance(read, FailedFile) else small_jpeg(path, read[1], max_side, quality=80)


def small_jpeg(path: str, data: bytes, max_side: int, **options: Any) -> bytes | None:
    """Return a photo, of a RAW file its preview, as an upright JPEG with no side longer than ``max_side``.

    ``data`` is what the file at ``path`` holds, and ``options`` are those of Pillow. None if it cannot be decoded.
    """
    from preprocess_ensemble.imaging.decode import DecodeError, decode

    try:
        picture = decode(picture_file(path, data), at_least=(2 * max_side, 2 * max_side))
    except DecodeError:
        return None
    picture.thumbnail((max_side, max_side))
    jpeg = io.BytesIO()
    picture.convert("RGB").save(jpeg, "JPEG", **options)
    return jpeg.getvalue()


def can_read_raw() -> bool:
    """Tell whether rawpy is installed, without importing it."""
    return find_spec("rawpy") is not None


def picture_file(path: str, data: bytes) -> bytes:
    """Return the image file with the picture of what the file at ``path`` holds: of a RAW file its preview, if any."""
    preview = raw_preview(data) if is_raw(path) else None
    return data if preview is None else preview.data


def raw_preview(data: bytes) -> RawPreview | None:
    """Read the preview in a RAW file, and the size of the photo; None without a preview or without rawpy."""
    if not can_read_raw():
        return None
    import rawpy
    from PIL import ExifTags, Image

    try:
        with rawpy.imread(io.BytesIO(data)) as raw:
            preview, sizes = raw.extract_thumb(), raw.sizes
    except Exception:  # rawpy has an exception for each of LibRaw's errors, and damaged files raise others
        return None
    width, height = (sizes.height, sizes.width) if sizes.flip & 4 else (sizes.width, sizes.height)
    if preview.format == rawpy.ThumbFormat.JPEG:  # LibRaw writes the orientation into one that does not have it
        return RawPreview(bytes(preview.data), width, height)
    file, pixels = io.BytesIO(), np.asarray(preview.data)  # uint8 (H, W, 3), as the sensor lies
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = _ORIENTATIONS[sizes.flip & 7]
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    return RawPreview(file.getvalue(), width, height)

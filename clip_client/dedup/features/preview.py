"""The decoded picture of a photo, and the preview in a RAW file, which LibRaw reads through rawpy."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from clip_client._files import FailedFile
from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.files.reading import read_file
from preprocess_ensemble.errors import pip_install

if TYPE_CHECKING:
    from PIL import Image

NEEDS_RAWPY: Final = f"Previews in RAW files are read by rawpy: {pip_install('raw')}."
_ORIENTATIONS: Final = (1, 2, 4, 3, 5, 8, 6, 7)
"""EXIF's orientation by LibRaw's ``flip``: bit 1 mirrors left to right, 2 top to bottom, 4 swaps rows and columns."""


class DecodedPhoto(NamedTuple):
    data: bytes
    picture: Image.Image
    at_least: tuple[int, int]
    """(height, width) in pixels that the decoder was asked for."""


class RawPreview(NamedTuple):
    """The preview in a RAW file, and the size of the photo in pixels, after the EXIF orientation."""

    data: bytes
    width: int
    height: int


def thumbnail(path: str, max_side: int) -> bytes | None:
    read = read_file(path)
    return None if isinstance(read, FailedFile) else small_jpeg(path, read[1], max_side, quality=80)


def small_jpeg(path: str, data: bytes, max_side: int, **options: Any) -> bytes | None:
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
    return find_spec("rawpy") is not None


def picture_file(path: str, data: bytes) -> bytes:
    """Return the image file to decode for the file at ``path``: for a RAW file its preview, if any, else ``data``."""
    preview = raw_preview(data) if is_raw(path) else None
    return data if preview is None else preview.data


def raw_preview(data: bytes) -> RawPreview | None:
    if not can_read_raw():
        return None
    import rawpy
    from PIL import ExifTags, Image

    try:
        with rawpy.imread(io.BytesIO(data)) as raw:
            preview, sizes = raw.extract_thumb(), raw.sizes
    except Exception:  # rawpy has an exception for each of LibRaw's errors, and damaged files raise further ones
        return None
    width, height = (sizes.height, sizes.width) if sizes.flip & 4 else (sizes.width, sizes.height)
    if preview.format == rawpy.ThumbFormat.JPEG:  # LibRaw adds a missing orientation
        return RawPreview(bytes(preview.data), width, height)
    file, pixels = io.BytesIO(), np.asarray(preview.data)  # uint8 (H, W, 3), as the sensor lies
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = _ORIENTATIONS[sizes.flip & 7]
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    return RawPreview(file.getvalue(), width, height)

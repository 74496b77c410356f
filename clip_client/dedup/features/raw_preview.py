"""The picture inside a RAW file: a JPEG that the camera made of what its sensor saw, read by LibRaw through rawpy.

Without rawpy, or in a file without such a picture, there is nothing but bytes to compare.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

NEEDS_RAWPY: Final = "Previews in RAW files are read by rawpy: pip install 'clip-triton[raw]'."


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

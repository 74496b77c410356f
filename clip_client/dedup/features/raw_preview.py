"""RAW files: what a sensor saw, with a JPEG inside that the camera made of it. Only that JPEG is looked at.

LibRaw, through rawpy, finds it; without rawpy, and where there is none, such a file is compared by its bytes only.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Final

from clip_client.dedup.features.capture_time import read_capture_time
from clip_client.dedup.features.embedded_parts import RAW_DATA
from clip_client.dedup.features.image_features import BYTES_ONLY, ImageFeatures, extract_features
from clip_client.dedup.files.file_types import RAW
from clip_client.dedup.files.metadata import read_metadata

NEEDS_RAWPY: Final = "Previews in RAW files are read by rawpy: pip install 'clip-triton[raw]'."


def can_read_raw() -> bool:
    """Tell whether rawpy is installed; it is not imported."""
    return find_spec("rawpy") is not None


def bytes_only() -> ImageFeatures:
    """Return the facts about a content that no picture could be read from."""
    message = "No preview could be read from this RAW file." if can_read_raw() else NEEDS_RAWPY
    return ImageFeatures(is_flat=True, code=BYTES_ONLY, message=message)


def raw_preview(data: bytes) -> bytes | None:
    """Return the picture inside a RAW file as the bytes of an image file; None where there is none.

    LibRaw writes the orientation into a JPEG that does not say its own.
    """
    return None if (found := _open(data)) is None else found[0]


def extract_raw_features(data: bytes) -> ImageFeatures:
    """Note the facts about a RAW file: its looks by the preview, its size by the sensor. Never raises."""
    found = _open(data)
    if found is None:
        return bytes_only()
    preview, (width, height) = found
    features = extract_features(preview)
    if features.code:
        return bytes_only()
    # Most are TIFF files to Pillow, at least as far as their EXIF goes; for the others the preview has a copy of it.
    capture_time, metadata = read_capture_time(data), read_metadata(data)
    if capture_time.taken_ms is None:
        capture_time, metadata = features.capture_time, features.metadata
    # The sizes in its EXIF may be those of the sensor, of the preview, or of a crop.
    metadata = replace(metadata, is_resized=False)
    return replace(
        features,
        width=width,
        height=height,
        format=RAW,
        embedded=RAW_DATA,
        embedded_digest=hashlib.sha256(data).hexdigest(),
        capture_time=capture_time,
        metadata=metadata,
    )


def _open(data: bytes) -> tuple[bytes, tuple[int, int]] | None:
    """Return the preview and the size of the upright photo, in pixels."""
    if not can_read_raw():
        return None
    import rawpy

    try:
        with rawpy.imread(io.BytesIO(data)) as raw:
            thumbnail = raw.extract_thumb()
            sizes = raw.sizes
    except Exception:  # rawpy has an exception for each of LibRaw's errors, and damaged files raise others
        return None
    upright = (sizes.height, sizes.width) if sizes.flip in (5, 6) else (sizes.width, sizes.height)
    if thumbnail.format == rawpy.ThumbFormat.JPEG:
        return bytes(thumbnail.data), upright
    return _as_png(thumbnail.data), upright


def _as_png(pixels: Any) -> bytes:
    """``pixels``: uint8 (H, W, 3); LibRaw has turned these upright itself."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()

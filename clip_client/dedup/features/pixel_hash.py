"""The hash of a picture's pixels at full size, which tells whether two files show exactly the same."""

from __future__ import annotations

import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.reading import read_file
from clip_client.dedup.store.sqlite import StoreError
from clip_client.dedup.types import FailedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL import Image

    from clip_client.dedup.store.store import Store

PIXELS: Final = "pixels-3"
"""Version of :func:`pixel_hash`, and its folder in a store: change it with anything that changes a hash."""

_ADOBE_RGB: Final = "R03"
"""DCF 2.0: the interoperability index of a camera that was set to Adobe RGB, which embeds no profile."""
_SRGB_GAMMA: Final = 0.45455
_SRGB_CHROMATICITY: Final = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
"""What PNG, third edition, section 11.3.2.5 tells encoders to write into gAMA and cHRM for sRGB."""


def pixel_hashes(paths: Mapping[str, str], store: Store) -> tuple[dict[str, str], int]:
    """Return content -> pixel hash, and the number of files that had to be decoded for it.

    ``paths`` maps the SHA-256 of each content to a file that holds it. The hash is empty if the pixels cannot be
    decoded, if the file holds more than they show, or if the file has changed meanwhile.
    """
    import pyarrow as pa

    cache = store.table(Path("pixels", PIXELS), {"pixels": pa.string()}, {"algorithm": PIXELS})
    hashes: dict[str, str] = {}
    for _, table in cache.find([bytes.fromhex(sha256) for sha256 in paths]):
        keys = (key.hex() for key in table.column("sha256").to_pylist())
        hashes.update(zip(keys, table.column("pixels").to_pylist(), strict=True))
    new = [sha256 for sha256 in paths if sha256 not in hashes]
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="clip_client pixels") as pool:
        for sha256, pixels in zip(new, pool.map(pixel_hash_of, [paths[sha256] for sha256 in new], new), strict=True):
            hashes[sha256] = pixels or ""
            if pixels is not None:
                cache.add({"sha256": bytes.fromhex(sha256), "pixels": pixels})
    cache.flush()
    with suppress(StoreError):  # the disk may have no room for the copy, which only makes later searches faster
        cache.compact()
    return hashes, len(new)


def pixel_hash_of(path: str, sha256: str) -> str | None:
    """Return the pixel hash of a file; None if the file no longer has the content of this SHA-256."""
    read = read_file(path)
    if isinstance(read, FailedFile):
        return None
    _, data = read
    return pixel_hash(data) if hashlib.sha256(data).hexdigest() == sha256 else None


def pixel_hash(data: bytes) -> str:
    """Return the SHA-256 (hexadecimal) of the pixels at full size, after the EXIF orientation, and their colour space.

    Copies with equal pixels move without asking, so equal numbers are not enough: another ICC profile makes them other
    colours. Profiles must be equal byte for byte, and a file without one equals only files without one.

    The hash is empty if the pixels cannot be decoded. It is also empty for animated, multi-page, transparent and 16-bit
    files, which their first frame in 8 bits does not show in full. This decodes at full size, so call it only for files
    that may have a copy.
    """
    from preprocess_ensemble.imaging.decode import DecodeError, decode

    try:
        image = decode(data)
    except DecodeError:
        return ""
    colour_space = _colour_space(data)
    if colour_space is None:
        return ""
    pixels = image if image.mode == "CMYK" else image.convert("RGB")
    digest = hashlib.sha256(f"{pixels.mode} {pixels.width}x{pixels.height} {len(colour_space)} ".encode())
    digest.update(colour_space)
    digest.update(pixels.tobytes())
    return digest.hexdigest()


def _colour_space(data: bytes) -> bytes | None:
    """Return the colour space of a file: a profile or a name, empty for sRGB by default, None if pixels are not all."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if _holds_more(image):
                return None
            profile: bytes = image.info.get("icc_profile") or _space_without_profile(image)
            return profile
    except Exception:  # what Pillow cannot read, such as the number of frames of a damaged file, may be more
        return None


def _holds_more(image: Image.Image) -> bool:
    """Tell whether an image file has further frames or pages, something transparent, or more than 8 bits a channel."""
    is_deep = image.mode.startswith(("I", "F")) or any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    is_deep = is_deep or image.info.get("bit_depth", 8) > 8
    # Further pictures in a JPEG are appended to it. A file with them never moves in favour of one without, but its
    # first picture may have copies.
    frames = 1 if image.format in ("JPEG", "MPO") else getattr(image, "n_frames", 1)
    return is_deep or frames > 1 or image.has_transparency_data


def _space_without_profile(image: Image.Image) -> bytes:
    """Return the colour space that PNG fields or a camera's EXIF name in place of a profile; empty for sRGB."""
    from PIL import ExifTags

    exif = image.getexif()
    if exif.get_ifd(ExifTags.IFD.Interop).get(ExifTags.Interop.InteropIndex) == _ADOBE_RGB:
        return b"Adobe RGB"
    info = image.info
    fields = (info.get("gamma", _SRGB_GAMMA), info.get("chromaticity", _SRGB_CHROMATICITY))
    if "srgb" in info or fields == (_SRGB_GAMMA, _SRGB_CHROMATICITY):
        return b""
    return repr(fields).encode()

"""Two hashes of a picture: 64 bits that a smaller or coarser copy nearly shares, and one of all its pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from clip_client._storage.sqlite import StoreError
from clip_client.dedup.files.reading import ReadFile, read_content, read_file
from clip_client.dedup.formats.encoding import read_pixels
from clip_client.dedup.store.store import Store

if TYPE_CHECKING:
    from PIL import Image

PIXELS: Final = "pixels-10"
"""Version of :func:`pixel_hash`, and its folder in a store: change it with any change of a hash."""
_SIDE: Final = 32
_FREQUENCIES: Final = 8
_COSINES: Final[NDArray[np.float64]] = np.cos(np.pi / _SIDE * np.outer(np.arange(_FREQUENCIES), np.arange(_SIDE) + 0.5))
"""DCT-II, (frequencies, pixels), not normalized: comparing coefficients does not need it."""
_PLAIN_LEVELS: Final = 12
"""Levels of 255 by which a line of a plain border may differ from the outermost line: encoders leave 6."""
_LEAST_INSIDE: Final = 0.4
"""Least share of a side inside a border; less is a spot on a plain ground."""
_DECIMALS: Final = 6
"""Rounds coefficients that are zero, as in a gradient: floating-point noise would decide their bits."""


def perceptual_hash(image: Image.Image) -> int:
    """Return the pHash of a picture, 64 bits: each says whether one of the lowest frequencies is above their median.

    Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions" (2010). The bits are those of the
    package ImageHash, which needs SciPy.
    """
    from PIL.Image import Resampling

    pixels = np.asarray(image.convert("L").resize((_SIDE, _SIDE), Resampling.LANCZOS), dtype=np.float64)
    coefficients = np.round(_COSINES @ pixels @ _COSINES.T, _DECIMALS)
    return int.from_bytes(np.packbits(coefficients > np.median(coefficients)).tobytes(), "big")


def inner_hash(image: Image.Image) -> int:
    levels = np.asarray(image.convert("L"), dtype=np.int16)
    top, bottom = _border(levels)
    left, right = _border(levels.T)
    inside = (right - left) / levels.shape[1], (bottom - top) / levels.shape[0]
    if (not top and not left) or min(inside) < _LEAST_INSIDE:
        return 0
    return perceptual_hash(image.crop((left, top, right, bottom)))


def _border(lines: NDArray[np.int16]) -> tuple[int, int]:
    """Return the first of (lines, pixels) inside the border and the one after the last; all if an end has no border."""
    starts = []
    for some in (lines, lines[::-1]):
        is_plain = (np.abs(some - np.median(some[0])) <= _PLAIN_LEVELS).all(axis=1)
        plain = len(some) if is_plain.all() else int(np.argmin(is_plain))
        # The line at the edge shows both the border and the picture, unless the border is a whole number of pixels.
        starts.append(plain + 1 if plain else 0)
    return (starts[0], len(lines) - starts[1]) if all(starts) else (0, len(lines))


def pixel_hashes(
    paths: Mapping[str, str], store: Store, read: ReadFile = read_file, threads: int = 1
) -> tuple[dict[str, str], int]:
    """Return (content -> pixel hash or empty, number of files that were decoded); ``paths`` maps contents to files."""
    import pyarrow as pa

    cache = store.table(Path("pixels", PIXELS), {"pixels": pa.string()}, {"algorithm": PIXELS})
    hashes: dict[str, str] = {}
    for _, table in cache.find([bytes.fromhex(sha256) for sha256 in paths]):
        keys = (key.hex() for key in table.column("sha256").to_pylist())
        hashes.update(zip(keys, table.column("pixels").to_pylist(), strict=True))
    new = [sha256 for sha256 in paths if sha256 not in hashes]

    def pixels_of(sha256: str) -> str | None:
        data = read_content(paths[sha256], sha256, read)
        return None if data is None else pixel_hash(data)

    with ThreadPoolExecutor(threads, thread_name_prefix="clip_client pixels") as pool:
        for sha256, pixels in zip(new, pool.map(pixels_of, new), strict=True):
            hashes[sha256] = pixels or ""
            if pixels is not None:
                cache.add({"sha256": bytes.fromhex(sha256), "pixels": pixels})
    cache.flush()
    with suppress(StoreError):  # the disk may have no room for the copy, which only makes later searches faster
        cache.compact()
    return hashes, len(new)


def pixel_hash(data: bytes) -> str:
    """Return the SHA-256 (hexadecimal) of the pixels at full size, after the EXIF orientation, and their colour space.

    ICC profiles must be equal byte for byte, because copies with equal pixels move without asking. The hash is empty if
    the pixels cannot be decoded, or if the file shows more than these, such as an animation.
    """
    encoding, pictures = read_pixels(data)
    if encoding is None or not pictures:
        return ""
    space = encoding.colour_space.key
    digest = hashlib.sha256()
    for picture in pictures:
        digest.update(f"{picture.mode} {picture.width}x{picture.height} {len(space)} ".encode())
        digest.update(space)
        digest.update(picture.tobytes())
    return digest.hexdigest()

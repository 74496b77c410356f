"""The hash of a picture's pixels at full size, equal for files that show exactly the same picture."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client._storage.sqlite import StoreError
from clip_client.dedup.files.reading import PLAIN_READER, PhotoReader, read_content
from clip_client.dedup.formats.encoding import read_pixels

if TYPE_CHECKING:
    from clip_client.dedup.store.store import Store

PIXELS: Final = "pixels-10"
"""Version of :func:`pixel_hash`, and its folder in a store: change it with any change of a hash."""


def pixel_hashes(
    paths: Mapping[str, str], store: Store, reader: PhotoReader = PLAIN_READER
) -> tuple[dict[str, str], int]:
    """Return (content -> pixel hash, number of files that had to be decoded).

    ``paths`` maps the SHA-256 of each content to a file that holds it. The hash is empty if the pixels cannot be
    decoded, if the file holds more than its pixels, or if the file has changed meanwhile.
    """
    import pyarrow as pa

    cache = store.table(Path("pixels", PIXELS), {"pixels": pa.string()}, {"algorithm": PIXELS})
    hashes: dict[str, str] = {}
    for _, table in cache.find([bytes.fromhex(sha256) for sha256 in paths]):
        keys = (key.hex() for key in table.column("sha256").to_pylist())
        hashes.update(zip(keys, table.column("pixels").to_pylist(), strict=True))
    new = [sha256 for sha256 in paths if sha256 not in hashes]

    def pixels_of(sha256: str) -> str | None:
        data = read_content(paths[sha256], sha256, reader.read)
        return None if data is None else pixel_hash(data)

    with ThreadPoolExecutor(reader.threads, thread_name_prefix="clip_client pixels") as pool:
        found = pool.map(pixels_of, new)
        for sha256, pixels in zip(new, found, strict=True):
            hashes[sha256] = pixels or ""
            if pixels is not None:
                cache.add({"sha256": bytes.fromhex(sha256), "pixels": pixels})
    cache.flush()
    with suppress(StoreError):  # the disk may have no room for the copy, which only makes later searches faster
        cache.compact()
    return hashes, len(new)


def pixel_hash(data: bytes) -> str:
    """Return the SHA-256 (hexadecimal) of the pixels at full size, after the EXIF orientation, and their colour space.

    Copies with equal pixels move without asking, so equal numbers are not enough: with another ICC profile they are
    other colours. Profiles must be equal byte for byte, and a file without a profile equals only files without one.
    Transparency and all bits of each channel belong to the pixels.

    The hash is empty if the pixels cannot be decoded, or if the file shows more than these pixels, such as an
    animation. This function decodes at full size, so call it only for files that may have a copy.
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

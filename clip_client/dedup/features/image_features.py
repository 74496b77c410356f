"""What a search knows about a picture without any model: size, perceptual hash, metadata, what else the file holds."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client.dedup.features.capture_time import read_capture_time
from clip_client.dedup.features.embedded_parts import RAW_DATA, embedded_parts
from clip_client.dedup.features.perceptual_hash import inner_hash, perceptual_hash
from clip_client.dedup.features.preview import NEEDS_RAWPY, can_read_raw, preview_of, read_raw
from clip_client.dedup.files.metadata import read_metadata
from clip_client.dedup.photo import FEATURE_PARTS, ImageFeatures
from clip_client.dedup.types import RAW, FailedFile

if TYPE_CHECKING:
    import pyarrow as pa

    from clip_client.dedup.features.preview import OnDecoded
    from clip_client.dedup.store.parquet_store import ParquetStore
    from clip_client.dedup.store.store import Store

ALGORITHM: Final = "look-3"
"""Version of :class:`ImageFeatures`, and its folder in a store: change it with anything that changes their values."""

BYTES_ONLY: Final = "BYTES_ONLY"
"""Code of a RAW file without a readable preview: it is compared by its bytes only, which is no failure."""

_HASHES: Final = ("perceptual_hash", "inner_hash")
_HASH_SIDE: Final = 128
"""Pixels; four times what the hash is made of, so that a JPEG's scaled decoding leaves no trace in it."""
_DECODED_SIDE: Final = 471
"""Pixels, the least side of a scaled decode: what a model of 224 pixels needs, so that one decode serves both. It was
256 in earlier programs, which made the same version: of 132 photos 27 have another hash, by at most 2 bits."""


def cached_features(store: Store) -> ParquetStore:
    """Open the features that a store holds."""
    return store.table(Path("looks", ALGORITHM), feature_columns(), {"algorithm": ALGORITHM})


def feature_columns() -> dict[str, pa.DataType]:
    """Return the type of each column of :meth:`ImageFeatures.to_row`: a column for each field."""
    import pyarrow as pa

    arrow_types = {
        "str": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int32(),
        "int | None": pa.int64(),
        "float | None": pa.float64(),
    }
    flat = [column for own in fields(ImageFeatures) for column in FEATURE_PARTS.get(own.name, (own,))]
    return {column.name: arrow_types[str(column.type)] for column in flat} | dict.fromkeys(_HASHES, pa.uint64())


def extract_features(
    data: bytes, *, is_raw: bool = False, on_decoded: OnDecoded = lambda data, picture, at_least: None
) -> ImageFeatures:
    """Extract the features of an image file from its bytes; of a RAW file with ``is_raw``. Never raises.

    ``on_decoded`` gets the picture before it is made smaller; of a RAW file, the preview and its picture.

    A file that cannot be decoded gives features with a ``code``; a RAW file without a preview gives
    :func:`bytes_only_features`.
    """
    return _extract_raw(data, on_decoded) if is_raw else _extract(data, on_decoded)


def bytes_only_features() -> ImageFeatures:
    """Return the features of a RAW file whose picture cannot be read."""
    message = "No preview could be read from this RAW file." if can_read_raw() else NEEDS_RAWPY
    return ImageFeatures(is_flat=True, code=BYTES_ONLY, message=message)


def _extract(data: bytes, on_decoded: OnDecoded) -> ImageFeatures:
    from preprocess_ensemble.imaging.formats import identify

    seen = preview_of(data, "", _HASH_SIDE, on_decoded, least_side=_DECODED_SIDE)
    if isinstance(seen, FailedFile):
        return ImageFeatures(code=seen.code, message=seen.message)
    parts = embedded_parts(data)
    image_format = identify(data)
    return ImageFeatures(
        width=seen.width,
        height=seen.height,
        format="" if image_format is None else image_format.name,
        is_scaled=seen.is_scaled,
        perceptual_hash=perceptual_hash(seen.image),
        inner_hash=inner_hash(seen.image),
        is_flat=seen.is_flat,
        embedded=", ".join(parts.kinds),
        embedded_digest=parts.digest,
        capture_time=read_capture_time(data),
        metadata=read_metadata(data),
    )


def _extract_raw(data: bytes, on_decoded: OnDecoded) -> ImageFeatures:
    """Take the picture from the preview, and the size from the sensor."""
    raw = read_raw(data)
    if raw is None or (features := _extract(raw.data, on_decoded)).code:
        return bytes_only_features()
    # Pillow reads the EXIF of most RAW files, which are TIFF files; for the others the preview has a copy of it.
    capture_time, metadata = read_capture_time(data), read_metadata(data)
    if capture_time.taken_ms is None:
        capture_time, metadata = features.capture_time, features.metadata
    return replace(
        features,
        width=raw.width,
        height=raw.height,
        format=RAW,
        embedded=RAW_DATA,
        embedded_digest=hashlib.sha256(data).hexdigest(),
        capture_time=capture_time,
        # EXIF may give the size of the sensor, of the preview or of a crop.
        metadata=replace(metadata, is_resized=False),
    )

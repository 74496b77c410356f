"""What a search knows about a picture without any model: size, perceptual hash, metadata, what else the file holds."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.features.capture_time import read_capture_time
from clip_client.dedup.features.embedded_parts import RAW_DATA, embedded_parts
from clip_client.dedup.features.perceptual_hash import inner_hash, perceptual_hash
from clip_client.dedup.features.preview import NEEDS_RAWPY, can_read_raw, preview_of, read_raw
from clip_client.dedup.files.file_types import RAW
from clip_client.dedup.files.metadata import read_metadata
from clip_client.dedup.types import CaptureTime, FailedFile, Metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from clip_client.dedup.features.preview import OnDecoded
    from clip_client.dedup.store.parquet_store import ParquetStore
    from clip_client.dedup.store.store import Store

ALGORITHM: Final = "look-3"
"""Version of :class:`ImageFeatures`, and its folder in a store: change it with anything that changes their values."""

_ADDED: Final = ("inner_hash", "exposure_s", "f_number", "iso", "exposure_bias")
"""Columns that files of this version may lack, because an earlier program wrote them."""

BYTES_ONLY: Final = "BYTES_ONLY"
"""Code of a RAW file without a readable preview: it is compared by its bytes only, which is no failure."""

_HASHES: Final = ("perceptual_hash", "inner_hash")
_HASH_SIDE: Final = 128
"""Pixels; four times what the hash is made of, so that a JPEG's scaled decoding leaves no trace in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFeatures:
    """The facts about one content; if it could not be decoded, ``code`` and ``message`` say why."""

    width: int = 0
    """Pixels, after the EXIF orientation."""
    height: int = 0
    format: str = ""
    """Name of the file format, such as ``"JPEG"``, whatever the file is called."""
    is_scaled: bool = False
    """The perceptual hash is that of a JPEG decoded at a fraction of its size: a few bits may differ from the hash of
    the same pixels in another format."""
    perceptual_hash: int = 0
    """pHash of 64 bits: the signs of the lowest 8 x 8 frequencies of the picture (Zauner 2010)."""
    inner_hash: int = 0
    """The same of what lies within a plain border; 0 if there is none."""
    is_flat: bool = False
    """A picture of nearly one colour, whose hash and vector tell nothing."""
    embedded: str = ""
    """What the file holds besides its picture, such as ``"film, gain map"``; see :mod:`.embedded_parts`."""
    embedded_digest: str = ""
    """Equal for files that hold the same besides their pictures."""
    capture_time: CaptureTime = field(default_factory=CaptureTime)
    metadata: Metadata = field(default_factory=Metadata)
    code: str = ""
    message: str = ""

    def to_row(self) -> dict[str, Any]:
        """Return the facts as columns of :func:`cached_features`."""
        row = {name: getattr(self, name) for name in _OWN_COLUMNS}
        return row | asdict(self.capture_time) | asdict(self.metadata)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ImageFeatures:
        """Make features of what :meth:`to_row` returned."""
        capture_time, metadata = ({one.name: row[one.name] for one in part} for part in _PARTS.values())
        own = {name: row[name] for name in _OWN_COLUMNS}
        return cls(capture_time=CaptureTime(**capture_time), metadata=Metadata(**metadata), **own)


# Computed once, because a search reads a row for every photo.
_PARTS: Final = {"capture_time": fields(CaptureTime), "metadata": fields(Metadata)}
_OWN_COLUMNS: Final = tuple(column.name for column in fields(ImageFeatures) if column.name not in _PARTS)


def cached_features(store: Store) -> ParquetStore:
    """Open the features that a store holds."""
    about = {"algorithm": ALGORITHM}
    return store.table(Path("looks", ALGORITHM), feature_columns(), about, added=_ADDED)


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
    flat = [column for own in fields(ImageFeatures) for column in _PARTS.get(own.name, (own,))]
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

    seen = preview_of(data, "", _HASH_SIDE, on_decoded)
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

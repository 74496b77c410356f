"""Decode a photo once for its features, which need no model, and for the image that is sent to a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from clip_client._encoding import IMAGE_ENCODINGS, EncodedImage, ImageEncoding
from clip_client._model import ModelInfo
from clip_client._storage.parquet_store import ParquetStore
from clip_client._storage.sqlite import StoreError
from clip_client.dedup.features.hashes import inner_hash, perceptual_hash
from clip_client.dedup.features.preview import NEEDS_RAWPY, DecodedPhoto, RawPreview, can_read_raw, raw_preview
from clip_client.dedup.formats.embedded_parts import RAW_DATA, embedded_parts
from clip_client.dedup.metadata.summary import read_metadata
from clip_client.dedup.photo import ImageFeatures
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import RAW, Metadata

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image

    from preprocess_ensemble.imaging.transform import PreprocessConfig

ALGORITHM: Final = "look-9"
"""Version of :class:`ImageFeatures`, and its folder in a store: change it with any change of their values."""
BYTES_ONLY: Final = "BYTES_ONLY"
"""Code of a RAW file without a readable preview. It is compared by its bytes only, and is not reported as failed."""
_FLATNESS_SIDE: Final = 64
"""Longest side in pixels at which flatness is measured. What is flat at this size gives a model nothing to compare."""
_FLAT_LEVELS: Final = 3.0
"""Standard deviation, of 255 levels, below which a picture counts as flat. Measured: sensor noise on an even ground
0.5, a page with one line of text 6, the plainest of the sample photos 10, a clear evening sky 23."""
_HASHES: Final = ("perceptual_hash", "inner_hash")
_HASH_SIDE: Final = 128
"""Side in pixels of the picture for the hash: four times the hash's, which hides that a JPEG was decoded scaled."""
_DECODED_SIDE: Final = 471
"""Least side of a scaled decode, in pixels. A model of 224 pixels needs as much, so one decode serves hash and model.
Earlier versions decoded to 256 pixels under the same version of the features: 27 of 132 photos have another hash
there, by at most 2 bits."""


def cached_features(store: Store) -> ParquetStore:
    return store.table(Path("looks", ALGORITHM), feature_columns(), {"algorithm": ALGORITHM})


def feature_columns() -> dict[str, pa.DataType]:
    import pyarrow as pa

    arrow_types = {
        "str": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int32(),
        "int | None": pa.int64(),
        "float | None": pa.float64(),
    }
    flat = [
        column for own in fields(ImageFeatures) for column in (fields(Metadata) if own.name == "metadata" else (own,))
    ]
    return {column.name: arrow_types[str(column.type)] for column in flat} | dict.fromkeys(_HASHES, pa.uint64())


class FeatureTable:
    """:class:`ImageFeatures` by content, in columns. As Python objects, a million of them would take gigabytes."""

    def __init__(self, contents: Sequence[str], table: pa.Table) -> None:
        self._rows = {content: row for row, content in enumerate(contents)}
        self._table = table.select(list(feature_columns()))

    @classmethod
    def read(cls, store: ParquetStore, contents: Sequence[str]) -> Self:
        import pyarrow as pa

        found: list[str] = []
        tables = [store.schema.empty_table()]
        for positions, rows in store.find([bytes.fromhex(content) for content in contents]):
            found += [contents[position] for position in positions.tolist()]
            tables.append(rows)
        if len(found) < len(contents):
            raise StoreError(f"a file in {store.folder} is damaged; remove this folder, and search again")
        return cls(found, pa.concat_tables(tables))

    def __getitem__(self, sha256: str) -> ImageFeatures:
        (values,) = self._table.slice(self._rows[sha256], 1).to_pylist()
        return ImageFeatures.from_row(values)

    def column(self, name: str, contents: Sequence[str]) -> NDArray[Any]:
        rows = np.fromiter((self._rows[sha256] for sha256 in contents), dtype=np.int64, count=len(contents))
        return cast("NDArray[Any]", self._table.column(name).take(rows).to_numpy())


def extract_features(
    data: bytes,
    model_input: ModelInput | None = None,
    keep: Callable[[DecodedPhoto], None] | None = None,
    *,
    is_raw: bool = False,
) -> tuple[ImageFeatures, EncodedImage | None]:
    """Decode a photo, or the preview in a RAW file, once. Never raises: the features may have a ``code``."""
    from preprocess_ensemble.imaging.decode import DecodeError, decode

    raw = raw_preview(data) if is_raw else None
    if is_raw and raw is None:
        return bytes_only_features(), None
    file, at_least = data if raw is None else raw.data, (_DECODED_SIDE, _DECODED_SIDE)
    try:
        decoded = DecodedPhoto(file, decode(file, at_least=at_least), at_least)
    except DecodeError as error:
        refused = ImageFeatures(code=error.status.name, message=error.message)
        return refused if raw is None else bytes_only_features(), None
    image = None if model_input is None else model_input.encode(decoded)
    if keep is not None:
        keep(decoded)
    features = _features_of(decoded)
    return features if raw is None else _of_raw_file(data, raw, features), image


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    config: PreprocessConfig
    encoding: ImageEncoding

    @classmethod
    def of(cls, model: ModelInfo) -> Self | None:
        """Return the reduction for a model; None if the client sends whole files, or if it reports unknown settings."""
        from preprocess_ensemble.imaging.transform import PreprocessConfig

        encoding = next((one for one in IMAGE_ENCODINGS.values() if one.id == model.transfer), None)
        if encoding is None or encoding.save_options is None:
            return None
        try:
            config = PreprocessConfig.from_mapping(model.preprocess)
        except (ValueError, TypeError, KeyError):
            return None
        return cls(config=config, encoding=encoding)

    def encode(self, decoded: DecodedPhoto) -> EncodedImage | None:
        """Return the image to send. A large model needs a larger decode; None if the file cannot be decoded again."""
        from preprocess_ensemble.imaging.decode import DecodeError, decode, suffices_for
        from preprocess_ensemble.imaging.transform import encoded_input

        data, picture, at_least = decoded
        if len(data) <= self.encoding.unchanged_up_to:
            return EncodedImage.of(data, data)
        needed = self.config.decode_at_least
        if not suffices_for(picture, at_least, needed):
            try:
                picture = decode(data, at_least=needed)
            except DecodeError:
                return None
        assert self.encoding.save_options is not None
        reduced = encoded_input(picture, self.config, self.encoding.save_options)
        return EncodedImage.of(min(data, reduced, key=len), data)


def bytes_only_features() -> ImageFeatures:
    message = "No preview could be read from this RAW file." if can_read_raw() else NEEDS_RAWPY
    return ImageFeatures(is_flat=True, code=BYTES_ONLY, message=message)


def _features_of(decoded: DecodedPhoto) -> ImageFeatures:
    """Return the features of a picture, which is made smaller in place."""
    from preprocess_ensemble.imaging.decode import SCALE_INFO
    from preprocess_ensemble.imaging.formats import identify

    data, picture, _ = decoded
    scaled = picture.info.get(SCALE_INFO)
    width, height = picture.size if scaled is None else scaled.size
    picture.thumbnail((_HASH_SIDE, _HASH_SIDE))
    picture = picture.convert("RGB")
    parts, image_format = embedded_parts(data), identify(data)
    return ImageFeatures(
        width=width,
        height=height,
        format="" if image_format is None else image_format.name,
        is_scaled=scaled is not None,
        perceptual_hash=perceptual_hash(picture),
        inner_hash=inner_hash(picture),
        is_flat=_is_flat(picture),
        embedded=", ".join(parts.kinds),
        embedded_digest=parts.digest,
        metadata=read_metadata(data),
    )


def _is_flat(picture: Image.Image) -> bool:
    # The vectors of such pictures are all alike: two black frames or blank pages would count as copies.
    small = picture.copy()
    small.thumbnail((_FLATNESS_SIDE, _FLATNESS_SIDE))
    return bool(np.asarray(small, dtype=np.float32).std(axis=(0, 1)).max() < _FLAT_LEVELS)


def _of_raw_file(data: bytes, raw: RawPreview, features: ImageFeatures) -> ImageFeatures:
    # Pillow reads the EXIF of most RAW files, which are TIFF files. For other files the preview has a copy of it.
    metadata = read_metadata(data)
    if metadata.taken_ms is None:
        metadata = features.metadata
    return replace(
        features,
        width=raw.width,
        height=raw.height,
        format=RAW,
        embedded=RAW_DATA,
        embedded_digest=hashlib.sha256(data).hexdigest(),
        # EXIF may give the size of the sensor, of the preview or of a crop.
        metadata=replace(metadata, is_resized=False),
    )

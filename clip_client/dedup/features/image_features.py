"""What a picture itself says, without any model: its size, its perceptual hash, whether there is anything on it."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.features.capture_time import CaptureTime, read_capture_time
from clip_client.dedup.features.embedded_parts import embedded_parts
from clip_client.dedup.features.preview import preview_of
from clip_client.dedup.files.metadata import read_metadata
from clip_client.dedup.types import FailedFile, Metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL import Image

ALGORITHM: Final = "look-3"
"""Names how a :class:`Look` is made: what changes any of its numbers must change this, too."""

PIXELS: Final = "pixels-3"
"""Names how :func:`pixel_hash` is made, likewise."""

BYTES_ONLY: Final = "BYTES_ONLY"
"""Code of a :class:`Look` at a file that is compared although nothing but its bytes can be."""

_HASH_SIDE: Final = 128
"""Pixels; four times what the hash is made of, so that a JPEG's scaled decoding leaves no trace in it."""

_ADOBE_RGB: Final = "R03"
"""DCF 2.0: the interoperability index of a camera that was set to Adobe RGB, which embeds no profile."""
_SRGB_GAMMA: Final = 0.45455
_SRGB_CHROMATICITY: Final = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
"""What PNG, third edition, section 11.3.2.5 tells encoders to write into gAMA and cHRM for sRGB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFeatures:
    """The facts about one content; ``code`` and ``message`` say why there are none."""

    width: int = 0
    """Pixels, upright."""
    height: int = 0
    format: str = ""
    """Name of the file format, such as ``"JPEG"``, whatever the file is called."""
    is_scaled: bool = False
    """The perceptual hash is that of a JPEG decoded at a fraction of its size: a few bits may differ from the hash of
    the same pixels in another format."""
    perceptual_hash: int = 0
    """pHash of 64 bits: the signs of the lowest 8 x 8 frequencies of the picture (Zauner 2010)."""
    is_flat: bool = False
    """A picture of nearly one colour: its hash and its vector say nothing."""
    embedded: str = ""
    """Kinds of what the file holds beyond its picture, such as ``"film, gain map"``; see :mod:`.embedded_parts`."""
    embedded_digest: str = ""
    """Equal for files that hold the same beyond their pictures."""
    capture_time: CaptureTime = field(default_factory=CaptureTime)
    metadata: Metadata = field(default_factory=Metadata)
    code: str = ""
    message: str = ""

    def to_row(self) -> dict[str, Any]:
        """Return the facts as a shelf holds them."""
        row = {name: getattr(self, name) for name in _FEATURE_COLUMNS}
        return row | asdict(self.capture_time) | asdict(self.metadata)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ImageFeatures:
        """Read what :meth:`to_row` gave."""
        capture_time = CaptureTime(**{name: row[name] for name in _TIME_COLUMNS})
        metadata = Metadata(**{name: row[name] for name in _METADATA_COLUMNS})
        return cls(capture_time=capture_time, metadata=metadata, **{name: row[name] for name in _FEATURE_COLUMNS})


# Asked once: a search reads a row for every photo in the store.
_TIME_COLUMNS: Final = tuple(column.name for column in fields(CaptureTime))
_METADATA_COLUMNS: Final = tuple(column.name for column in fields(Metadata))
_FEATURE_COLUMNS: Final = tuple(
    column.name for column in fields(ImageFeatures) if column.name not in ("capture_time", "metadata")
)


def extract_features(data: bytes) -> ImageFeatures:
    """Decode an image file as small as possible and note the facts; one that fails gives a Look with a ``code``."""
    seen = preview_of(data, "", _HASH_SIDE)
    if isinstance(seen, FailedFile):
        return ImageFeatures(code=seen.code, message=seen.message)
    parts = embedded_parts(data)
    return ImageFeatures(
        width=seen.width,
        height=seen.height,
        format=_format_of(data),
        is_scaled=seen.is_scaled,
        perceptual_hash=perceptual_hash(seen.image),
        is_flat=seen.is_flat,
        embedded=", ".join(parts.kinds),
        embedded_digest=parts.digest,
        capture_time=read_capture_time(data),
        metadata=read_metadata(data),
    )


def _format_of(data: bytes) -> str:
    from preprocess_ensemble.imaging.decode import identify

    image_format = identify(data)
    return "" if image_format is None else image_format.name


def perceptual_hash(image: Image.Image) -> int:
    """Return the pHash of a picture as a number of 64 bits."""
    import imagehash

    return int(str(imagehash.phash(image)), 16)


def pixel_hash(data: bytes) -> str:
    """Return the SHA-256 (hexadecimal) of the upright pixels at full size and of their colour space.

    Equal pixels move a copy without a question, so equal numbers are not enough: under another ICC profile they are
    other colours. A profile must be the same byte for byte, and a file without one equals only files without one.

    Empty if the pixels cannot be decoded, and if the file holds more than they show: a film is no copy of its first
    frame. This decodes in full; call it only for files that may have a copy.
    """
    import hashlib

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
    """Return what says which colours a file's numbers stand for: empty for sRGB by default, None if it holds more."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if _holds_more(image):
                return None
            profile: bytes = image.info.get("icc_profile") or _space_without_profile(image)
            return profile
    except Exception:  # what Pillow cannot tell, such as the number of frames of a damaged file, may be more
        return None


def _holds_more(image: Image.Image) -> bool:
    """Tell whether an image file has further frames or pages, something transparent, or more than 8 bits a channel."""
    is_deep = image.mode.startswith(("I", "F")) or any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    is_deep = is_deep or image.info.get("bit_depth", 8) > 8
    # The further pictures of a JPEG are appended to it: a file that holds them is not moved in favour of one that does
    # not, but its own first picture may have copies.
    frames = 1 if image.format in ("JPEG", "MPO") else getattr(image, "n_frames", 1)
    return is_deep or frames > 1 or image.has_transparency_data


def _space_without_profile(image: Image.Image) -> bytes:
    """Return the colour space that PNG's own fields or a camera's EXIF name instead of a profile; empty for sRGB."""
    from PIL import ExifTags

    exif = image.getexif()
    if exif.get_ifd(ExifTags.IFD.Interop).get(ExifTags.Interop.InteropIndex) == _ADOBE_RGB:
        return b"Adobe RGB"
    info = image.info
    fields = (info.get("gamma", _SRGB_GAMMA), info.get("chromaticity", _SRGB_CHROMATICITY))
    if "srgb" in info or fields == (_SRGB_GAMMA, _SRGB_CHROMATICITY):
        return b""
    return repr(fields).encode()

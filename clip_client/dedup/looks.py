"""What a picture itself says, without any model: its size, its perceptual hash, whether there is anything on it."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.moments import Moment, read_moment
from clip_client.dedup.preview import preview_of
from clip_client.dedup.report import FailedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL import Image

ALGORITHM: Final = "look-1"
"""Names how a :class:`Look` is made: what changes any of its numbers must change this, too."""

PIXELS: Final = "pixels-2"
"""Names how :func:`pixel_hash` is made, likewise."""

BYTES_ONLY: Final = "BYTES_ONLY"
"""Code of a :class:`Look` at a file that is compared although nothing but its bytes can be."""

_HASH_SIDE: Final = 128
"""Pixels; four times what the hash is made of, so that a JPEG's scaled decoding leaves no trace in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The facts about one content; ``code`` and ``message`` say why there are none."""

    width: int = 0
    """Pixels, upright."""
    height: int = 0
    perceptual_hash: int = 0
    """pHash of 64 bits: the signs of the lowest 8 x 8 frequencies of the picture (Zauner 2010)."""
    is_flat: bool = False
    """A picture of nearly one colour: its hash and its vector say nothing."""
    moment: Moment = field(default_factory=Moment)
    code: str = ""
    message: str = ""

    def to_row(self) -> dict[str, Any]:
        """Return the facts as a shelf holds them."""
        row = {name: getattr(self, name) for name in _LOOK_COLUMNS}
        return row | asdict(self.moment)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Look:
        """Read what :meth:`to_row` gave."""
        moment = Moment(**{name: row[name] for name in _MOMENT_COLUMNS})
        return cls(moment=moment, **{name: row[name] for name in _LOOK_COLUMNS})


# Asked once: a search reads a row for every photo in the store.
_LOOK_COLUMNS: Final = tuple(column.name for column in fields(Look) if column.name != "moment")
_MOMENT_COLUMNS: Final = tuple(column.name for column in fields(Moment))


def look_at(data: bytes) -> Look:
    """Decode an image file as small as possible and note the facts; one that fails gives a Look with a ``code``."""
    seen = preview_of(data, "", _HASH_SIDE)
    if isinstance(seen, FailedFile):
        return Look(code=seen.code, message=seen.message)
    return Look(
        width=seen.width,
        height=seen.height,
        perceptual_hash=perceptual_hash(seen.image),
        is_flat=seen.is_flat,
        moment=read_moment(data),
    )


def perceptual_hash(image: Image.Image) -> int:
    """Return the pHash of a picture as a number of 64 bits."""
    import imagehash

    return int(str(imagehash.phash(image)), 16)


def pixel_hash(data: bytes) -> str:
    """Return the SHA-256 (hexadecimal) of the upright RGB pixels at full size; empty where they are not the picture.

    That is, where they cannot be decoded, and where the file holds more than they show: equal pixels are what moves a
    copy without a question, and a film is no copy of its first frame. Meant for files that have size and perceptual
    hash in common: it decodes in full.
    """
    import hashlib

    from preprocess_ensemble.decode import DecodeError, decode

    try:
        image = decode(data)
    except DecodeError:
        return ""
    if _holds_more(data):
        return ""
    digest = hashlib.sha256(f"{image.width}x{image.height}".encode())
    digest.update(image.convert("RGB").tobytes())
    return digest.hexdigest()


def _holds_more(data: bytes) -> bool:
    """Tell whether an image file has further frames or pages, something transparent, or more than 8 bits a channel."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            is_deep = image.mode.startswith(("I", "F")) or any(";16" in str(tile[3]) for tile in image.tile)
            is_deep = is_deep or image.info.get("bit_depth", 8) > 8
            return is_deep or getattr(image, "n_frames", 1) > 1 or image.has_transparency_data
    except Exception:  # what Pillow cannot tell, such as the number of frames of a damaged file, may be more
        return True

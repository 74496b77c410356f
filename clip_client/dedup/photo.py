"""A photo in a search: its file, its content, its features, its metadata and its companions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Final

from clip_client._files import LATEST_NS
from clip_client.dedup.text import date_and_time
from clip_client.dedup.types import RAW, Companion, LibraryPhoto, Metadata

_CAMERA_FORMATS: Final = frozenset({"JPEG", "HEIC", RAW})
"""Formats that cameras write. A PNG or TIFF file with the metadata of a camera was converted from such a file."""
_EDITORS: Final = re.compile(
    r"""\b(?:
      acdsee | adobe | affinity | aftershot | aperture | canva | capture\ one | capture\ nx | corel | darktable
    | digikam | digital\ photo\ professional | dxo | facebook | faststone | ffmpeg | gimp | google | graphicsmagick
    | imagemagick | imaging\ edge | inkscape | instagram | iphoto | irfanview | krita | lavc | lightroom | luminar
    | meitu | microsoft | nx\ studio | olympus\ workspace | on1 | paint | paintshop | photo\ booth | photomatix
    | photopea | photos | photoscape | photoshop | picasa | pixelmator | pixlr | polarr | preview | raw\ ?therapee
    | shotwell | silkypix | skylum | snapseed | topaz | viewnx | vsco | whatsapp | windows\ photo | xnview
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""Names of programs that edit pictures. Cameras and phones write their own software into the same field."""
_DAY_NS: Final = 86_400 * 10**9
_UNSET_DAYS: Final = frozenset({-134_774, 0, 3_652})
"""Days since 1970 on which the clocks of Windows, Unix and FAT begin: 1 January of 1601, 1970 and 1980."""
_FIRST_NS: Final = 3_652 * _DAY_NS + 36 * 3_600 * 10**9
"""The end of 1 January 1980 in the last time zone. Earlier times of files are not real: FAT begins on that day."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFeatures:
    """Features of one content. If it could not be decoded, ``code`` and ``message`` say why."""

    width: int = 0
    """Pixels, after the EXIF orientation."""
    height: int = 0
    format: str = ""
    is_scaled: bool = False
    """True if a JPEG was decoded at reduced size for its hash, which may differ by a few bits in another format."""
    perceptual_hash: int = 0
    inner_hash: int = 0
    """Perceptual hash of the picture without its plain border; 0 for a picture without such a border."""
    is_flat: bool = False
    """True for a picture of nearly one colour, whose hash and vector tell nothing."""
    embedded: str = ""
    """Parts of the file besides its picture, such as ``"film, gain map"``."""
    embedded_digest: str = ""
    metadata: Metadata = field(default_factory=Metadata)
    code: str = ""
    message: str = ""

    def to_row(self) -> dict[str, Any]:
        row = asdict(self)
        return {**row.pop("metadata"), **row}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ImageFeatures:
        metadata = {name: row[name] for name in _OF_METADATA}
        own = {name: value for name, value in row.items() if name not in _OF_METADATA}
        return cls(metadata=Metadata(**metadata), **own)


_OF_METADATA: Final = frozenset(one.name for one in fields(Metadata))


@dataclass(frozen=True, kw_only=True)
class Photo:
    path: str
    """Names that are not UTF-8 are kept with ``surrogateescape``, as :func:`os.fsdecode` does."""
    sha256: str
    size_bytes: int
    mtime_ns: int = 0
    features: ImageFeatures = field(default_factory=ImageFeatures)
    files: int = 1
    is_reference: bool = False
    is_by_link: bool = False
    not_kept: str = ""
    """Place that may not last, such as ``"a recycle bin"``, for which other photos must not move; else empty."""
    companions: tuple[Companion, ...] = ()
    in_library: LibraryPhoto | None = None
    """Entry in a library of Apple Photos, from which photos never move; None for other photos."""

    @property
    def width(self) -> int:
        """Pixels, after the EXIF orientation; 0 if the file could not be decoded."""
        return self.features.width

    @property
    def height(self) -> int:
        return self.features.height

    @property
    def metadata(self) -> Metadata:
        return self.features.metadata

    @property
    def camera(self) -> str:
        return self.metadata.camera

    @property
    def spare_bytes(self) -> int:
        """Bytes that its move frees: 0 in a library of Apple Photos, where it stays on the disk."""
        return 0 if self.in_library is not None else self.size_bytes

    @property
    def name(self) -> str:
        """Name of the file; in a library of Apple Photos, its name at the import."""
        return self.in_library.name if self.in_library else os.path.basename(self.path)

    @property
    def label(self) -> str:
        """The path; in a library of Apple Photos, which renames its files, the name at the import."""
        if self.in_library is None:
            return self.path
        return os.path.join(os.path.basename(self.in_library.library.rstrip(os.sep)), self.in_library.name)

    @property
    def origin(self) -> str:
        return ", ".join(filter(None, (date_and_time(self.metadata.taken), self.camera)))

    @cached_property
    def is_original(self) -> bool:
        """Whether the file has metadata as a camera writes it, and no trace of an editor; ``docs/keep.md`` explains."""
        metadata = self.metadata
        return (
            self.features.format in _CAMERA_FORMATS
            and bool(self.camera and metadata.taken)
            and bool(metadata.has_exposure or metadata.has_maker_note or metadata.lens or metadata.latitude is not None)
            and not metadata.is_resized
            and not _EDITORS.search(metadata.software)
        )

    @property
    def dated_ns(self) -> int | None:
        """Time of capture by Photos or EXIF, nanoseconds since 1970; None if unknown or if the clock was not set."""
        taken_ms = self.metadata.taken_ms
        dated_ns = None if taken_ms is None else taken_ms * 1_000_000
        if self.in_library is not None and self.in_library.taken_ns is not None:
            dated_ns = self.in_library.taken_ns
        return None if dated_ns is None or dated_ns // _DAY_NS in _UNSET_DAYS else dated_ns

    @property
    def written_ns(self) -> int | None:
        """Time of the file's last change, nanoseconds since 1970; None for a time that no camera's file has."""
        return self.mtime_ns if _FIRST_NS <= self.mtime_ns < LATEST_NS else None

    @property
    def taken_ns(self) -> int | None:
        """Time of capture, else of the last change, nanoseconds since 1970; None if neither is known."""
        return self.written_ns if self.dated_ns is None else self.dated_ns

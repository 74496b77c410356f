"""Reads the metadata of a photo from EXIF, XMP and IPTC.

Some of it must not be lost with a copy (date, place, rating, words); some of it distinguishes a camera's original from
an export.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.files.xmp import XmpError, read_xmp
from clip_client.dedup.types import Metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL import ImageFile

_LONGEST_TEXT: Final = 100_000
"""Characters; longer text is not one that a person wrote."""
_TRIMMED_PIXELS: Final = 16
"""A lossless rotation trims a JPEG to whole blocks of at most this size; the result does not count as resized."""

_DATE: Final = re.compile(r"(\d{4})[-:]?(\d\d)[-:]?(\d\d)(?:[T ]?(\d\d):?(\d\d)(?::?(\d\d))?)?")
_PLACE: Final = re.compile(r"(\d+(?:\.\d+)?),(?:(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?)?([NSEW])")
"""XMP: "48,12.5N" or "48,12,30N"."""


class _Exif:
    """Numbers of EXIF fields: EXIF 2.32, and those of Microsoft."""

    DESCRIPTION = 0x010E
    SOFTWARE = (0x0131, 0x000B)
    RATING = 0x4746
    TITLE, KEYWORDS, COMMENT = 0x9C9B, 0x9C9E, 0x9C9C
    SIZES = ((0x0100, 0x0101), (0xA002, 0xA003))
    DETAILS, GPS = 0x8769, 0x8825
    TAKEN, DIGITIZED = 0x9003, 0x9004
    LENS = (0xA434, 0xA433)
    EXPOSURE = (0x829A, 0x829D, 0x8827, 0x920A)
    MAKER_NOTE = 0x927C


def read_metadata(data: bytes) -> Metadata:
    """Read the metadata of an image file. Never raises; damaged metadata is marked as incomplete."""
    from preprocess_ensemble.imaging.formats import open_image

    try:
        with open_image(data) as image:
            return _read(image)
    except Exception:  # Pillow may raise anything for damaged metadata
        return Metadata(is_incomplete=True)


def read_sidecar(packet: bytes) -> Metadata:
    """Read an XMP sidecar. Never raises; a damaged one is marked as incomplete."""
    try:
        return _Fields(xmp=read_xmp(packet)).metadata()
    except XmpError:
        return Metadata(is_incomplete=True)


def _read(image: ImageFile.ImageFile) -> Metadata:
    from PIL import IptcImagePlugin

    exif = image.getexif()
    packet = image.info.get("xmp", b"")
    xmp: dict[str, tuple[str, ...]] = {}
    is_incomplete = "compressed_metadata" in image.info
    if packet:
        try:
            xmp = read_xmp(packet.encode() if isinstance(packet, str) else packet)
        except XmpError:
            is_incomplete = True
    return _Fields(
        exif=exif,
        details=exif.get_ifd(_Exif.DETAILS),
        gps=exif.get_ifd(_Exif.GPS),
        xmp=xmp,
        iptc=IptcImagePlugin.getiptcinfo(image) or {},
        texts={str(name): text for name, text in image.info.items() if isinstance(text, str)},
        size=image.size,
        is_incomplete=is_incomplete,
    ).metadata()


@dataclass(frozen=True, kw_only=True)
class _Fields:
    """The fields of one file, by their source."""

    exif: Mapping[int, Any] = field(default_factory=dict)
    details: Mapping[int, Any] = field(default_factory=dict)
    """The Exif sub-directory of EXIF."""
    gps: Mapping[int, Any] = field(default_factory=dict)
    xmp: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    iptc: Mapping[tuple[int, int], Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """Text chunks of a PNG."""
    size: tuple[int, int] | None = None
    is_incomplete: bool = False

    def metadata(self) -> Metadata:
        latitude, longitude = self._place()
        title = _first(self._of_xmp("dc:title"), *self._of_iptc(5), self._of_windows(_Exif.TITLE), self._png("Title"))
        caption = _first(
            self._of_xmp("dc:description"),
            *self._of_iptc(120),
            clean_text(self.exif.get(_Exif.DESCRIPTION)),
            self._of_windows(_Exif.COMMENT),
            self._png("Description"),
        )
        keywords = "\n".join(self._keywords())
        programs = (
            *(clean_text(self.exif.get(tag)) for tag in _Exif.SOFTWARE),
            self._of_xmp("xmp:CreatorTool"),
            self._png("Software"),
        )
        return Metadata(
            taken=self._taken(),
            latitude=latitude,
            longitude=longitude,
            rating=self._rating(),
            keywords=keywords[:_LONGEST_TEXT],
            title=title[:_LONGEST_TEXT],
            caption=caption[:_LONGEST_TEXT],
            lens=_first(*(clean_text(self.details.get(tag)) for tag in _Exif.LENS))[:200],
            software="; ".join(dict.fromkeys(filter(None, programs)))[:200],
            has_maker_note=bool(self.details.get(_Exif.MAKER_NOTE)),
            has_exposure=any(tag in self.details for tag in _Exif.EXPOSURE),
            is_resized=self._is_resized(),
            is_incomplete=self.is_incomplete or max(map(len, (keywords, title, caption))) > _LONGEST_TEXT,
        )

    def _taken(self) -> str:
        texts = (
            clean_text(self.details.get(_Exif.TAKEN)),
            self._of_xmp("exif:DateTimeOriginal"),
            self._of_xmp("photoshop:DateCreated"),
            "".join((*self._of_iptc(55), *self._of_iptc(60))),
            clean_text(self.details.get(_Exif.DIGITIZED)),
            self._of_xmp("xmp:CreateDate"),
        )
        return _first(*map(iso_date, texts))

    def _place(self) -> tuple[float, float] | tuple[None, None]:
        places = (
            (_degrees(self.gps.get(2), self.gps.get(1)), _degrees(self.gps.get(4), self.gps.get(3))),
            (_xmp_degrees(self._of_xmp("exif:GPSLatitude")), _xmp_degrees(self._of_xmp("exif:GPSLongitude"))),
        )
        for latitude, longitude in places:
            # Receivers without a position write zeros.
            if latitude is not None and longitude is not None and (latitude or longitude):
                return latitude, longitude
        return None, None

    def _rating(self) -> int:
        for value in (self._of_xmp("xmp:Rating"), self.exif.get(_Exif.RATING)):
            try:
                rating = round(float(str(value)))
            except (ValueError, OverflowError):
                continue
            if -1 <= rating <= 5 and rating:
                return rating
        return 0

    def _keywords(self) -> list[str]:
        windows = self._of_windows(_Exif.KEYWORDS).split(";")
        texts = (*self.xmp.get("dc:subject", ()), *self._of_iptc(25), *windows)
        return sorted({word for text in texts if (word := " ".join(clean_text(text).split()))})

    def _is_resized(self) -> bool:
        if self.size is None:
            return False
        # Sorted, because programs that rotate a picture do not always swap its sides in EXIF.
        actual = sorted(self.size)
        for tags in _Exif.SIZES:
            said = sorted(value for tag in tags if isinstance(value := self.details.get(tag, self.exif.get(tag)), int))
            if len(said) == 2 and said[0] > 0:
                if max(abs(said[0] - actual[0]), abs(said[1] - actual[1])) > _TRIMMED_PIXELS:
                    return True
        return False

    def _of_windows(self, tag: int) -> str:
        value = self.exif.get(tag, b"")
        return clean_text(bytes(value).decode("utf-16-le", "replace")) if isinstance(value, bytes | tuple) else ""

    def _of_xmp(self, name: str) -> str:
        return clean_text("\n".join(self.xmp.get(name, ())[:1]))

    def _of_iptc(self, number: int) -> list[str]:
        values = self.iptc.get((2, number), [])
        return [clean_text(value) for value in (values if isinstance(values, list) else [values])]

    def _png(self, name: str) -> str:
        return clean_text(self.texts.get(name))


def _first(*texts: str) -> str:
    return next(filter(None, texts), "")


def clean_text(value: object) -> str:
    """Return a text without characters that XML forbids, with line ends of one kind; empty for any other type."""
    if not isinstance(value, str | bytes):
        return ""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    with suppress(UnicodeError):  # Pillow decodes EXIF as Latin-1, but most programs write UTF-8
        text = text.encode("latin-1").decode("utf-8")
    text = text.partition("\0")[0].replace("\r\n", "\n").replace("\r", "\n")
    return "".join(char for char in text if char.isprintable() or char in "\n\t").strip()


def iso_date(text: str) -> str:
    """Return ``"2019-05-03T10:11:12"``, or its first part, for a date as in EXIF, XMP or IPTC; empty for other text."""
    if not (match := _DATE.match(text)):
        return ""
    parts = [int(part) for part in match.groups() if part]
    try:
        date = datetime(*parts)  # type: ignore[arg-type]  # three, five or six numbers
    except ValueError:
        return ""
    if len(parts) == 3:
        return date.date().isoformat()
    return date.isoformat(timespec="minutes" if len(parts) == 5 else "seconds")


def _degrees(values: Any, direction: object) -> float | None:
    try:
        degrees, minutes, seconds = (float(value) for value in values)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return _signed(degrees + minutes / 60 + seconds / 3600, clean_text(direction))


def _xmp_degrees(text: str) -> float | None:
    if not (match := _PLACE.fullmatch(text)):
        return None
    degrees, minutes, seconds, direction = match.groups()
    return _signed(float(degrees) + float(minutes or 0) / 60 + float(seconds or 0) / 3600, direction)


def _signed(degrees: float, direction: str) -> float | None:
    if not math.isfinite(degrees) or degrees > (90 if direction in ("N", "S") else 180):
        return None
    return -degrees if direction in ("S", "W") else degrees

"""Reads the metadata of a photo, and when and how it was taken, from EXIF, XMP and IPTC.

Some of it must not be lost with a copy (date, place, rating, words); some of it distinguishes a camera's original from
an export.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.files.field_names import NAMES
from clip_client.dedup.files.xmp import Item, XmpError, read_xmp, texts_of
from clip_client.dedup.types import CaptureTime, Metadata

if TYPE_CHECKING:
    from PIL import Image, ImageFile

_LONGEST_TEXT: Final = 100_000
"""Characters; longer text is not one that a person wrote."""
_TRIMMED_PIXELS: Final = 16
"""A lossless rotation trims a JPEG to whole blocks of at most this size; the result does not count as resized."""

_DATE: Final = re.compile(r"(\d{4})[-:]?(\d\d)[-:]?(\d\d)(?:[T ]?(\d\d):?(\d\d)(?::?(\d\d))?)?")
_PLACE: Final = re.compile(r"(\d+(?:\.\d+)?),(?:(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?)?([NSEW])")
"""XMP: "48,12.5N" or "48,12,30N"."""
_SIZES: Final = (("ImageWidth", "ImageLength"), ("ExifImageWidth", "ExifImageHeight"))
_EXPOSURE: Final = ("ExposureTime", "FNumber", "ISOSpeedRatings", "FocalLength")


def read_metadata(data: bytes) -> tuple[CaptureTime, Metadata]:
    """Read the metadata of an image file. Never raises.

    A time of capture that cannot be read is empty, and damaged metadata is marked as incomplete.
    """
    from preprocess_ensemble.imaging.formats import open_image

    capture_time = CaptureTime()
    try:
        with open_image(data) as image:
            blocks = _Blocks(image.getexif())
            capture_time = blocks.capture_time()
            return capture_time, blocks.metadata_of(image)
    except Exception:  # Pillow may raise anything for damaged metadata
        return capture_time, Metadata(is_incomplete=True)


def read_sidecar(packet: bytes) -> Metadata:
    """Read an XMP sidecar. Never raises; a damaged one is marked as incomplete."""
    blocks = _Blocks()
    blocks.add_xmp(packet)
    return blocks.metadata()


class _Directory:
    """A directory of EXIF by the names that Pillow gives its fields, each of which is read when it is asked for."""

    def __init__(self, fields: Mapping[int, Any], names: type[IntEnum]) -> None:
        self.fields = fields
        self._names = names

    def get(self, name: str, default: object = None) -> Any:
        return self.fields.get(self._names[name], default)

    def __contains__(self, name: str) -> bool:
        return self._names[name] in self.fields


class _Blocks:
    """What one file says, as its blocks of metadata have it."""

    def __init__(self, exif: Image.Exif | None = None) -> None:
        from PIL.ExifTags import GPS, IFD, Base

        directories = ({}, {}, {}) if exif is None else (exif, exif.get_ifd(IFD.Exif), exif.get_ifd(IFD.GPSInfo))
        self.exif, self.details, self.gps = map(_Directory, directories, (Base, Base, GPS))
        self.xmp: Mapping[str, list[Item]] = {}
        self.iptc: Mapping[int, list[str]] = {}
        self.info: Mapping[Any, Any] = {}
        """Text chunks of a PNG, among others."""
        self.is_resized = False
        self.is_incomplete = False

    def add_xmp(self, packet: bytes) -> None:
        try:
            self.xmp = read_xmp(packet)
        except XmpError:
            self.is_incomplete = True

    def capture_time(self) -> CaptureTime:
        taken_ms, has_sub_second = _time(self.details)
        number = self.details.get("ImageNumber", self.exif.get("ImageNumber"))
        make, model = (str(self.exif.get(tag, "")).strip("\0 ") for tag in ("Make", "Model"))
        return CaptureTime(
            taken_ms=taken_ms,
            has_sub_second=has_sub_second,
            sequence=number if isinstance(number, int) else None,
            camera=model if model.split()[:1] == make.split()[:1] else f"{make} {model}".strip(),
            fields=sum(len(one.fields) for one in (self.exif, self.details, self.gps)),
            exposure_s=_number(self.details.get("ExposureTime")),
            f_number=_number(self.details.get("FNumber")),
            iso=_number(self.details.get("ISOSpeedRatings")),
            exposure_bias=_number(self.details.get("ExposureBiasValue")),
        )

    def metadata_of(self, image: ImageFile.ImageFile) -> Metadata:
        from PIL import IptcImagePlugin

        self.is_incomplete = "compressed_metadata" in image.info
        if packet := xmp_of(image):
            self.add_xmp(packet)
        self.iptc = iptc_texts(IptcImagePlugin.getiptcinfo(image) or {})
        self.info = image.info
        self.is_resized = self._is_other_size(image.size)
        return self.metadata()

    def metadata(self) -> Metadata:
        latitude, longitude = self._place()
        title, caption = (self._first(*NAMES[name]) for name in ("title", "caption"))
        keywords = "\n".join(self._keywords())
        programs = self._texts("Software", "ProcessingSoftware", "xmp:CreatorTool", "png:Software")
        lens = clean_text(self.details.get("LensModel")) or clean_text(self.details.get("LensMake"))
        return Metadata(
            taken=self._taken(),
            latitude=latitude,
            longitude=longitude,
            rating=self._rating(),
            keywords=keywords[:_LONGEST_TEXT],
            title=title[:_LONGEST_TEXT],
            caption=caption[:_LONGEST_TEXT],
            lens=lens[:200],
            software="; ".join(dict.fromkeys(filter(None, programs)))[:200],
            has_maker_note=bool(self.details.get("MakerNote")),
            has_exposure=any(name in self.details for name in _EXPOSURE),
            is_resized=self.is_resized,
            is_incomplete=self.is_incomplete or max(map(len, (keywords, title, caption))) > _LONGEST_TEXT,
        )

    def _taken(self) -> str:
        texts = (
            clean_text(self.details.get("DateTimeOriginal")),
            *self._texts("exif:DateTimeOriginal", "photoshop:DateCreated"),
            "".join(self._texts("iptc:55", "iptc:60")),
            clean_text(self.details.get("DateTimeDigitized")),
            *self._texts("xmp:CreateDate"),
        )
        return next(filter(None, map(iso_date, texts)), "")

    def _place(self) -> tuple[float, float] | tuple[None, None]:
        north, east = ("GPSLatitude", "GPSLatitudeRef"), ("GPSLongitude", "GPSLongitudeRef")
        places = (
            (_degrees(*map(self.gps.get, north)), _degrees(*map(self.gps.get, east))),
            (_xmp_degrees(self._first("exif:GPSLatitude")), _xmp_degrees(self._first("exif:GPSLongitude"))),
        )
        for latitude, longitude in places:
            # Receivers without a position write zeros.
            if latitude is not None and longitude is not None and (latitude or longitude):
                return latitude, longitude
        return None, None

    def _rating(self) -> int:
        for value in (self._first("xmp:Rating"), self.exif.get("Rating")):
            try:
                rating = round(float(str(value)))
            except (ValueError, OverflowError):
                continue
            if -1 <= rating <= 5 and rating:
                return rating
        return 0

    def _keywords(self) -> list[str]:
        *fields, windows = NAMES["keywords"]
        texts = (*self._texts(*fields), *self._first(windows).split(";"))
        return sorted({word for text in texts if (word := " ".join(text.split()))})

    def _is_other_size(self, size: tuple[int, int]) -> bool:
        """Tell whether EXIF gives another size than that of the picture."""
        # Sorted, because programs that rotate a picture do not always swap its sides in EXIF.
        actual = sorted(size)
        for names in _SIZES:
            values = (self.details.get(name, self.exif.get(name)) for name in names)
            said = sorted(value for value in values if isinstance(value, int))
            if len(said) == 2 and said[0] > 0:
                if max(abs(said[0] - actual[0]), abs(said[1] - actual[1])) > _TRIMMED_PIXELS:
                    return True
        return False

    def _first(self, *fields: str) -> str:
        return next(filter(None, self._texts(*fields)), "")

    def _texts(self, *fields: str) -> list[str]:
        """Return the texts of fields with names as in :data:`NAMES`; those of EXIF are in its main directory."""
        found: list[object] = []
        for field in fields:
            prefix, _, name = field.rpartition(":")
            if prefix == "iptc":
                found += self.iptc.get(int(name), [])
            elif prefix == "png":
                found += [text for text in [self.info.get(name)] if isinstance(text, str)]
            elif prefix:
                found += texts_of(self.xmp.get(field, ()))
            elif name.startswith("XP"):
                value = self.exif.get(name)
                found += [bytes(value).decode("utf-16-le", "replace")] if isinstance(value, bytes | tuple) else []
            else:
                found.append(self.exif.get(name))
        return list(map(clean_text, found))


def xmp_of(image: ImageFile.ImageFile) -> bytes:
    """Return the XMP packet of an opened file; empty if it has none."""
    packet = image.info.get("xmp", b"")
    return packet.encode() if isinstance(packet, str) else packet


def iptc_texts(datasets: Mapping[tuple[int, int], Any]) -> dict[int, list[str]]:
    """Return the texts of IPTC: the number of a dataset in record 2 -> its texts."""
    return {
        number: [clean_text(value) for value in (values if isinstance(values, list) else [values])]
        for (record, number), values in datasets.items()
        if record == 2
    }


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


def _number(value: Any) -> float | None:
    """Return the first number of an EXIF value; None if it is not a number."""
    try:
        number = float(value[0] if isinstance(value, tuple) else value)
    except (TypeError, ValueError, ArithmeticError, IndexError):
        return None
    return number if math.isfinite(number) else None


def _time(details: _Directory) -> tuple[int | None, bool]:
    """Return milliseconds since 1970 by the camera's clock, and whether EXIF says more than the second."""
    text = str(details.get("DateTimeOriginal")).strip("\0 ")
    try:
        second = datetime.strptime(text[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None, False
    digits = re.match(r"\d+", str(details.get("SubsecTimeOriginal")).strip("\0 "))
    fraction_ms = round(float(f"0.{digits[0]}") * 1000) if digits else 0
    return round(second.timestamp()) * 1000 + fraction_ms, digits is not None

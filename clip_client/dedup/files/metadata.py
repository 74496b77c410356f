"""Reads the metadata of a photo, and when and how it was taken, from EXIF, XMP and IPTC.

Some of it must not be lost with a copy (date, place, rating, words); some of it distinguishes a camera's original from
an export.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.files.xmp import XmpError, read_xmp
from clip_client.dedup.types import CaptureTime, Metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL import Image, ImageFile

_LONGEST_TEXT: Final = 100_000
"""Characters; longer text is not one that a person wrote."""
_TRIMMED_PIXELS: Final = 16
"""A lossless rotation trims a JPEG to whole blocks of at most this size; the result does not count as resized."""

_DATE: Final = re.compile(r"(\d{4})[-:]?(\d\d)[-:]?(\d\d)(?:[T ]?(\d\d):?(\d\d)(?::?(\d\d))?)?")
_PLACE: Final = re.compile(r"(\d+(?:\.\d+)?),(?:(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?)?([NSEW])")
"""XMP: "48,12.5N" or "48,12,30N"."""


_DETAILS, _GPS = 0x8769, 0x8825
"""Directories of EXIF."""
_SIZES: Final = ((0x0100, 0x0101), (0xA002, 0xA003))
_SOFTWARE: Final = (0x0131, 0x000B)
_LENS: Final = (0xA434, 0xA433)
_CAMERA: Final = (0x010F, 0x0110)
_EXPOSURE_TIME, _F_NUMBER, _ISO, _BIAS, _FOCAL_LENGTH = 0x829A, 0x829D, 0x8827, 0x9204, 0x920A
_TAKEN, _SUB_SECOND, _DIGITIZED, _IMAGE_NUMBER = 0x9003, 0x9291, 0x9004, 0x9211
"""EXIF 2.32; ImageNumber, a count of shutter releases, is of TIFF/EP."""
_DESCRIPTION, _MAKER_NOTE = 0x010E, 0x927C
_RATING, _TITLE, _COMMENT, _KEYWORDS = 0x4746, 0x9C9B, 0x9C9C, 0x9C9E
"""Fields of Microsoft."""


def read_metadata(data: bytes) -> tuple[CaptureTime, Metadata]:
    """Read the metadata of an image file. Never raises.

    A time of capture that cannot be read is empty, and damaged metadata is marked as incomplete.
    """
    from preprocess_ensemble.imaging.formats import open_image

    capture_time = CaptureTime()
    try:
        with open_image(data) as image:
            fields = _Fields(image.getexif())
            capture_time = fields.capture_time()
            return capture_time, fields.metadata_of(image)
    except Exception:  # Pillow may raise anything for damaged metadata
        return capture_time, Metadata(is_incomplete=True)


def read_sidecar(packet: bytes) -> Metadata:
    """Read an XMP sidecar. Never raises; a damaged one is marked as incomplete."""
    fields = _Fields()
    fields.add_xmp(packet)
    return fields.metadata()


class _Fields:
    """The fields of one file, by their source."""

    def __init__(self, exif: Image.Exif | None = None) -> None:
        self.exif: Mapping[int, Any] = {} if exif is None else exif
        self.details: Mapping[int, Any] = {} if exif is None else exif.get_ifd(_DETAILS)
        """The Exif sub-directory of EXIF."""
        self.gps: Mapping[int, Any] = {} if exif is None else exif.get_ifd(_GPS)
        self.xmp: Mapping[str, tuple[str, ...]] = {}
        self.iptc: Mapping[tuple[int, int], Any] = {}
        self.texts: Mapping[Any, Any] = {}
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
        number = self.details.get(_IMAGE_NUMBER, self.exif.get(_IMAGE_NUMBER))
        make, model = (str(self.exif.get(tag, "")).strip("\0 ") for tag in _CAMERA)
        return CaptureTime(
            taken_ms=taken_ms,
            has_sub_second=has_sub_second,
            sequence=number if isinstance(number, int) else None,
            camera=model if model.split()[:1] == make.split()[:1] else f"{make} {model}".strip(),
            fields=len(self.exif) + len(self.details) + len(self.gps),
            exposure_s=_number(self.details.get(_EXPOSURE_TIME)),
            f_number=_number(self.details.get(_F_NUMBER)),
            iso=_number(self.details.get(_ISO)),
            exposure_bias=_number(self.details.get(_BIAS)),
        )

    def metadata_of(self, image: ImageFile.ImageFile) -> Metadata:
        from PIL import IptcImagePlugin

        self.is_incomplete = "compressed_metadata" in image.info
        if packet := image.info.get("xmp", b""):
            self.add_xmp(packet.encode() if isinstance(packet, str) else packet)
        self.iptc = IptcImagePlugin.getiptcinfo(image) or {}
        self.texts = image.info
        self.is_resized = self._is_other_size(image.size)
        return self.metadata()

    def metadata(self) -> Metadata:
        latitude, longitude = self._place()
        title = _first(self._of_xmp("dc:title"), *self._of_iptc(5), self._of_windows(_TITLE), self._png("Title"))
        caption = _first(
            self._of_xmp("dc:description"),
            *self._of_iptc(120),
            clean_text(self.exif.get(_DESCRIPTION)),
            self._of_windows(_COMMENT),
            self._png("Description"),
        )
        keywords = "\n".join(self._keywords())
        programs = (
            *(clean_text(self.exif.get(tag)) for tag in _SOFTWARE),
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
            lens=_first(*(clean_text(self.details.get(tag)) for tag in _LENS))[:200],
            software="; ".join(dict.fromkeys(filter(None, programs)))[:200],
            has_maker_note=bool(self.details.get(_MAKER_NOTE)),
            has_exposure=not self.details.keys().isdisjoint((_EXPOSURE_TIME, _F_NUMBER, _ISO, _FOCAL_LENGTH)),
            is_resized=self.is_resized,
            is_incomplete=self.is_incomplete or max(map(len, (keywords, title, caption))) > _LONGEST_TEXT,
        )

    def _taken(self) -> str:
        texts = (
            clean_text(self.details.get(_TAKEN)),
            self._of_xmp("exif:DateTimeOriginal"),
            self._of_xmp("photoshop:DateCreated"),
            "".join((*self._of_iptc(55), *self._of_iptc(60))),
            clean_text(self.details.get(_DIGITIZED)),
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
        for value in (self._of_xmp("xmp:Rating"), self.exif.get(_RATING)):
            try:
                rating = round(float(str(value)))
            except (ValueError, OverflowError):
                continue
            if -1 <= rating <= 5 and rating:
                return rating
        return 0

    def _keywords(self) -> list[str]:
        windows = self._of_windows(_KEYWORDS).split(";")
        texts = (*self.xmp.get("dc:subject", ()), *self._of_iptc(25), *windows)
        return sorted({word for text in texts if (word := " ".join(clean_text(text).split()))})

    def _is_other_size(self, size: tuple[int, int]) -> bool:
        """Tell whether EXIF gives another size than that of the picture."""
        # Sorted, because programs that rotate a picture do not always swap its sides in EXIF.
        actual = sorted(size)
        for tags in _SIZES:
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
        return clean_text(text) if isinstance(text := self.texts.get(name), str) else ""


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


def _number(value: Any) -> float | None:
    """Return the first number of an EXIF value; None if it is not a number."""
    try:
        number = float(value[0] if isinstance(value, tuple) else value)
    except (TypeError, ValueError, ArithmeticError, IndexError):
        return None
    return number if math.isfinite(number) else None


def _time(details: Mapping[int, Any]) -> tuple[int | None, bool]:
    """Return milliseconds since 1970 by the camera's clock, and whether EXIF says more than the second."""
    text = str(details.get(_TAKEN)).strip("\0 ")
    try:
        second = datetime.strptime(text[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None, False
    digits = re.match(r"\d+", str(details.get(_SUB_SECOND)).strip("\0 "))
    fraction_ms = round(float(f"0.{digits[0]}") * 1000) if digits else 0
    return round(second.timestamp()) * 1000 + fraction_ms, digits is not None

"""The metadata that a search needs: when, where and how a photo was taken, and whether it is a camera's original."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from clip_client.dedup.metadata.fields import Fields, read_fields
from clip_client.dedup.metadata.xmp import texts_of
from clip_client.dedup.types import Metadata

_TRIMMED_PIXELS: Final = 16
"""A lossless rotation trims a JPEG to whole blocks of at most this size; the result does not count as resized."""
_DATE: Final = re.compile(r"(\d{4})[-:]?(\d\d)[-:]?(\d\d)(?:[T ]?(\d\d):?(\d\d)(?::?(\d\d))?)?")
_PLACE: Final = re.compile(r"(\d+(?:\.\d+)?),(?:(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?)?([NSEW])")
"""XMP: "48,12.5N" or "48,12,30N"."""
_FORBIDDEN: Final = re.compile("[^\t\n -~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow (Char in its specification) or discourages."""
_SIZES: Final = (("ImageWidth", "ImageLength"), ("ExifImageWidth", "ExifImageHeight"))


def read_metadata(data: bytes) -> Metadata:
    """Read the metadata of an image file. Never raises; what cannot be read is empty."""
    fields = read_fields(data)
    first_of, values = fields.first, fields.values
    taken_ms, has_sub_second = _time(first_of("DateTimeOriginal"), first_of("SubsecTimeOriginal"))
    number = _number(values.get("ImageNumber", [None])[-1])  # the directory of details comes later
    make, model = (clean_text(first_of(tag)) for tag in ("Make", "Model"))
    latitude, longitude = next(places(fields), (None, None))
    programs = _texts(fields, "Software", "ProcessingSoftware", "xmp:CreatorTool", "png:Software")
    return Metadata(
        taken_ms=taken_ms,
        has_sub_second=has_sub_second,
        sequence=None if number is None else int(number),
        camera=model if model.split()[:1] == make.split()[:1] else f"{make} {model}".strip(),
        fields=fields.exif_fields,
        exposure_s=_number(first_of("ExposureTime")),
        f_number=_number(first_of("FNumber")),
        iso=_number(first_of("ISOSpeedRatings")),
        exposure_bias=_number(first_of("ExposureBiasValue")),
        taken=taken(fields),
        latitude=latitude,
        longitude=longitude,
        lens=_text(fields, "LensModel", "LensMake")[:200],
        software="; ".join(dict.fromkeys(filter(None, programs)))[:200],
        has_maker_note="MakerNote" in values,
        has_exposure=any(name in values for name in ("ExposureTime", "FNumber", "ISOSpeedRatings", "FocalLength")),
        is_resized=_is_other_size(fields),
    )


def taken(fields: Fields) -> str:
    texts = (
        *_texts(fields, "DateTimeOriginal", "exif:DateTimeOriginal", "photoshop:DateCreated"),
        "".join(_texts(fields, "iptc:55", "iptc:60")),
        *_texts(fields, "DateTimeDigitized", "xmp:CreateDate"),
    )
    return next(filter(None, map(iso_date, texts)), "")


def places(fields: Fields) -> Iterator[tuple[float, float]]:
    names = "GPSLatitude", "GPSLongitude"
    in_exif = (_degrees(fields.first(name), fields.first(f"{name}Ref")) for name in names)
    in_xmp = (_xmp_degrees(_text(fields, f"exif:{name}")) for name in names)
    for latitude, longitude in (in_exif, in_xmp):
        # Receivers without a position write zeros.
        if latitude is not None and longitude is not None and (latitude or longitude):
            yield latitude, longitude


def _is_other_size(fields: Fields) -> bool:
    # Sorted, because programs that rotate a picture do not always swap its sides in EXIF.
    actual = sorted(fields.size)
    for names in _SIZES if actual[0] else ():
        said = sorted(int(value) for name in names if (value := _number(fields.first(name))) is not None)
        if len(said) == 2 and said[0] > 0:
            if max(abs(said[0] - actual[0]), abs(said[1] - actual[1])) > _TRIMMED_PIXELS:
                return True
    return False


def _text(fields: Fields, *names: str) -> str:
    return next(filter(None, _texts(fields, *names)), "")


def _texts(fields: Fields, *names: str) -> list[str]:
    values = (value for name in names for value in (*texts_of(fields.items(name)), *fields.values.get(name, ())))
    return list(map(clean_text, values))


def clean_text(value: object) -> str:
    """Return a text without control characters, with line ends of one kind; empty for any other type."""
    if not isinstance(value, str | bytes):
        return ""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    with suppress(UnicodeError):  # Pillow decodes EXIF as Latin-1, but most programs write UTF-8
        text = text.encode("latin-1").decode("utf-8")
    # A value after a zero counts, too.
    text = text.replace("\0", " ").replace("\r\n", "\n").replace("\r", "\n")
    return _FORBIDDEN.sub("", text).strip()


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
    try:
        number = float(value[0] if isinstance(value, tuple) else value)
    except (TypeError, ValueError, ArithmeticError, IndexError):
        return None
    return number if math.isfinite(number) else None


def _time(date: object, fraction: object) -> tuple[int | None, bool]:
    second = iso_date(clean_text(date))
    if len(second) < len("2019-05-03T10:11:12"):
        return None, False
    digits = re.match(r"\d+", clean_text(fraction))
    fraction_ms = round(float(f"0.{digits[0]}") * 1000) if digits else 0
    return round(datetime.fromisoformat(f"{second}Z").timestamp()) * 1000 + fraction_ms, digits is not None

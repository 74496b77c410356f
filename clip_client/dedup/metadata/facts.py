"""Facts about a photo that its file says and that can be compared: EXIF, IPTC, XMP, texts, comments and attributes."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import plistlib
import re
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias

from clip_client.dedup.metadata.fields import Fields, read_fields
from clip_client.dedup.metadata.names import DEVELOPERS, UNNAMED, is_housekeeping, name_of
from clip_client.dedup.metadata.summary import clean_text, iso_date, places, taken
from clip_client.dedup.metadata.xmp import Item, texts_of

Value: TypeAlias = "str | tuple[float, ...] | None"
"""A text, numbers, or None for what can only be there or not, such as the notes of a camera's maker."""

_ROUNDING: Final = 0.05
"""Relative: ExifTool writes some numbers with two digits into XMP, such as 1.3 for an aperture value of 1.25."""
_SAME_PLACE_DEGREES: Final = 0.0002
"""About 20 m: programs round positions when they copy them."""
_LEAST_CUT_TEXT: Final = 32
"""Characters: IPTC cuts off most texts at 32 or 64 bytes, and a text of that length may be the start of another."""

_DATES: Final = frozenset(
    {"DateTimeOriginal", "DateTimeDigitized", "photoshop:DateCreated", "xmp:CreateDate", "iptc:55", "iptc:62"}
)
_ONLY_PRESENT: Final = frozenset({"MakerNote", "GPSLatitude", "GPSTimeStamp", "GPSDateStamp", "acdsee:categories"})
"""Fields of which only the presence counts: programs rewrite them, and a position is compared as a whole."""
_DEPTHS: Final = frozenset({b"\1", b"\3", "1", "3"})
"""References of an altitude that is below the ellipsoid or the sea: EXIF 3.0, GPSAltitudeRef."""
_CHARSET: Final = 8
"""Bytes before the text of a UserComment: EXIF 2.32, section 4.6.5."""
_OF_PROGRAMS: Final = re.compile(
    r"CREATOR: gd-jpeg|Created with GIMP|Created by OpenJPEG|Kakadu-v|Creator: JasPer|Lavc\d|LEAD Technologies"
    r"|File (?:written by Adobe|source: https?://)|FBMD|Handmade Software|JPEG Encoder Copyright|Intel\(R\) JPEG"
    r"|(?:Optimized|Compressed|Processed) (?:by|with|using) (?:\S*(?:JPEG|PNG|Image)|eBay)",
    re.IGNORECASE,
)
"""Beginnings of texts that programs sign with, and of the code that Facebook puts into each file."""
_NO_TEXT: Final = re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f]")  # zeros separate the items of some lists
_FINDER_COLOUR: Final = (9, 0x0E)
"""Byte and bits of the colour in com.apple.FinderInfo: Finder.h, kColor."""


class Position(NamedTuple):
    """Degrees; north and east are positive."""

    latitude: float
    longitude: float


@dataclass
class Facts:
    said: dict[str, set[Value]] = field(default_factory=lambda: defaultdict(set))
    implied: dict[str, set[Value]] = field(default_factory=lambda: defaultdict(set))
    """Facts that the file says in another form, such as the time zone in a date of XMP. They are never lost."""
    of_maker: dict[str, set[Value]] = field(default_factory=lambda: defaultdict(set))
    """Facts that programs take from the maker's notes, such as the lens: a file with these notes has them."""
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    """Name, and what is compared, with single spaces -> the text with its line breaks; in the order of the file."""
    is_unreadable: bool = False

    def lost_in(self, others: Sequence[Facts]) -> dict[str, set[Value]]:
        known: defaultdict[str, set[Value]] = defaultdict(set)
        for part in (part for other in others for part in (other.said, other.implied, other.of_maker)):
            for name, values in part.items():
                known[name] |= values
        has_notes = any("maker notes" in other.said for other in others)
        lost: defaultdict[str, set[Value]] = defaultdict(set)
        for name, values in (*self.said.items(), *(() if has_notes else self.of_maker.items())):
            # No program rounds the numbers of a private field: a map's position has seven digits.
            lost[name] |= not_held(values, known[name], is_exact=name.startswith(UNNAMED))
        return {name: values for name, values in lost.items() if values}

    @classmethod
    def of(cls, fields: Fields) -> Facts:
        facts = cls(is_unreadable=fields.is_incomplete)
        is_of_facebook = any(map(_OF_PROGRAMS.match, map(clean_text, fields.values.get("iptc:40", ()))))
        for name, values in fields.values.items():
            if isinstance(values[0], dict):
                facts._add_xmp(name, fields.items(name))
            elif name != "iptc:103" or not is_of_facebook:  # the other half of its code
                # The time of IPTC is in a dataset of its own, whose number is that of the date and 5 or 1.
                time = fields.first({"iptc:55": "iptc:60", "iptc:62": "iptc:63"}.get(name, ""), b"")
                is_text = name.startswith(("iptc:", "file:"))
                for value in values:
                    facts._add(name, clean_text(value + time) if is_text else value)
        if found := set[Value](Position(*place) for place in places(fields)):
            facts.said["GPS position"] = found
        references = (*fields.values.get("GPSAltitudeRef", ()), *texts_of(fields.items("exif:GPSAltitudeRef")))
        if "altitude" in facts.said and not _DEPTHS.isdisjoint(references):
            altitudes = facts.said["altitude"]
            facts.said["altitude"] = {tuple(-one for one in value) for value in altitudes if isinstance(value, tuple)}
        if (day := taken(fields)) and "date" not in facts.said:  # the only date is that of the photo
            facts.said["date"].add(day)
            if facts.said.get("date of digitisation") == {day}:
                del facts.said["date of digitisation"]
        return facts

    def _add_xmp(self, name: str, items: Sequence[Item]) -> None:
        prefix, _, local = name.rpartition(":")
        if prefix not in ("tiff", "exif", "exifEX"):
            self._add_property(name, items)
        elif not is_housekeeping(local):
            texts = texts_of(items)
            self._add(local, _numbers_in(*texts) or "\n".join(texts) or None)

    def add_attribute(self, name: str, data: bytes) -> None:
        if name == "com.apple.FinderInfo":
            byte, bits = _FINDER_COLOUR
            if data[byte : byte + 1] and data[byte] & bits:
                self.said["Finder label"].add(str(data[byte] & bits))
            return
        is_plist = data.startswith(b"bplist")
        content: Any = data.hex() if is_plist or _NO_TEXT.search(data) else data.decode("utf-8", "backslashreplace")
        if is_plist:
            with suppress(Exception):  # plistlib raises many types for damaged data
                content = plistlib.loads(data)
        for one in content.split(",") if name == "xdg.tags" else content if isinstance(content, list) else [content]:
            self._add(f"attribute:{name}", str(one))

    def _add(self, field: str, value: Any) -> None:
        if field.startswith("XP") and isinstance(value, bytes):
            value = value.decode("utf-16-le", "replace")
        if field in _DATES or (field == "png:Creation_Time" and iso_date(value)):
            self._add_date(field, clean_text(value))
        elif field == "XPKeywords" and isinstance(value, str):
            for word in value.split(";"):
                self._add("dc:subject", word)
        elif field == "GPSLatitude" and not re.search("[1-9]", str(value)):
            pass  # receivers without a position write zeros
        elif not is_housekeeping(field):
            read = None if field in _ONLY_PRESENT and value else _value(field, value)
            is_signature = isinstance(read, str) and _OF_PROGRAMS.match(read)
            name = name_of(field)
            if name == "rating":  # a number in EXIF, a text in XMP, and 0 for none
                read = _numbers_in(str(value)) or read
                read = "" if read == (0.0,) else read
            if read not in ("", ()) and not is_signature:
                self.said[name].add(read)
                if isinstance(read, str):
                    self.texts.setdefault((name, read), clean_text(value))
                if name == "comment":  # which ImageMagick writes into the description of a TIFF
                    self.implied["caption"].add(read)

    def _add_date(self, field: str, text: str) -> None:
        if date := iso_date(text):
            self.implied["date of digitisation"].add(date)
            if not is_housekeeping(field):
                self.said[name_of(field)].add(date)
        if match := re.search(r"\d:\d\d(?:\.(\d+))?([+-]\d\d:\d\d|Z)?$", text):
            for name, part in zip(("fraction of a second", "time zone"), match.groups(), strict=True):
                if part:
                    self.implied[name].add(_value("SubsecTimeOriginal" if name != "time zone" else "", part))

    def _add_property(self, field: str, items: Sequence[Item]) -> None:
        if is_housekeeping(field):
            if field in _DATES:
                self._add_date(field, "".join(items[0].get("", ())))
            return
        name, prefix = name_of(field), field.rpartition(":")[0]
        into = self.of_maker if prefix == "aux" else self.said
        for item in items:
            if name == "face regions":
                # Only the names: the positions are shares of a picture, which a crop or another program changes.
                # A face without a name counts as an empty name, which is the beginning of every name.
                people = [item[path] for path in item if path.rpartition("/")[2] in ("Name", "PersonDisplayName")]
                into[name] |= set(filter(None, map(_plain, itertools.chain(*people)))) or {""}
            elif list(item) != [""]:
                into[name].add("; ".join(f"{path}={','.join(texts)}" for path, texts in sorted(item.items())))
            elif prefix in DEVELOPERS:
                into[name].add(f"{field}={','.join(item[''])}")
            elif prefix == "aux":
                numbers = _numbers_in(*item[""]) if name == "lens data" else ()
                into[name] |= {numbers or "\n".join(item[""])}
            else:
                texts = [text.replace("/", "|") if name == "hierarchical keywords" else text for text in item[""]]
                for text in texts:
                    if text != "0" or not name.endswith("label"):  # digiKam writes 0 for no label
                        self._add(field, text)
                for implied in ("hierarchical keywords", "file tags") if field == "dc:subject" else ():
                    self.implied[implied].update(map(_plain, texts))


def read_facts(data: bytes) -> Facts:
    return Facts.of(read_fields(data))


def read_sidecar_facts(packet: bytes) -> Facts:
    fields = Fields()
    fields.add_xmp(packet)
    return Facts.of(fields)


def read_attributes(path: str) -> Facts:
    facts = Facts()
    with suppress(OSError, ImportError):
        if sys.platform == "darwin":
            import xattr

            names, read = xattr.listxattr(path), xattr.getxattr
        elif sys.platform == "linux":
            names, read = os.listxattr(path), os.getxattr
        else:
            return facts
        for name in names:
            facts.add_attribute(name.removeprefix("user."), read(path, name))
    return facts


def _value(field: str, value: Any) -> Value:
    if isinstance(value, bytes):
        if field == "UserComment":
            return _user_comment(value)
        if len(value) == 1:
            return (float(value[0]),)
        content = value.strip(b"\0 ")
        return hashlib.sha256(content).hexdigest() if content else ""
    if isinstance(value, str):
        text = _plain(value)
        return text.rstrip("0") or "0" if field == "SubsecTimeOriginal" else text
    return None if value is None else tuple(0.0 if math.isnan(one) else float(one) for one in value)


def _user_comment(value: bytes) -> Value:
    charset, text = value[:_CHARSET], value[_CHARSET:]
    if charset.startswith(b"UNICODE"):
        # The byte order is that of EXIF, which not all programs keep to; most characters are below 256.
        is_little = text[1:2] == b"\0" or text.startswith(b"\xff\xfe")
        return _plain(text.decode("utf-16-le" if is_little else "utf-16-be", "replace"))
    return _plain(clean_text(text if charset.strip(b"\0") in (b"", b"ASCII", b"JIS") else value))


def _plain(text: str) -> str:
    return " ".join(clean_text(text.replace("\ufeff", "")).split())


def _numbers_in(*texts: str) -> tuple[float, ...]:
    with suppress(ValueError, ArithmeticError):
        return tuple(float(Fraction(text.strip())) for part in texts for text in part.split())
    return ()


def not_held(values: set[Value], by: set[Value], *, is_exact: bool = False) -> set[Value]:
    """Return the ``values`` that equal none in ``by`` in any form; numbers are rounded unless ``is_exact``."""
    texts = sorted(other for other in by if isinstance(other, str))
    mangled = {_as_ascii(text) for text in texts}
    numbers = [other for other in by if isinstance(other, tuple)]

    def is_held(value: Value) -> bool:
        if isinstance(value, tuple):
            is_near = not is_exact and any(_are_near(value, other) for other in numbers)
            return is_near or value in map(_numbers_in, texts)
        if isinstance(value, str):
            # Pillow writes question marks into EXIF in place of characters beyond ASCII, one for each of their bytes.
            is_mangled = "?" in value and _as_ascii(value) in mangled
            return _numbers_in(value) in numbers or is_mangled or _is_beginning(value, texts)
        return bool(by)

    return {value for value in values - by if not is_held(value)}


def _is_beginning(text: str, of: list[str]) -> bool:
    place = bisect_left(of, text)  # a date may lack the time
    may_be_cut = len(text) >= _LEAST_CUT_TEXT or iso_date(text) == text
    return may_be_cut and place < len(of) and of[place].startswith(text)


def _as_ascii(text: str) -> str:
    return re.sub(r"[^ -~]+|\?+", "?", text)


def _are_near(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Compare numbers up to the length of the shorter list, as some cameras repeat a number; whole ones exactly."""
    pairs = list(zip(first, second, strict=False))
    if isinstance(first, Position):
        return all(abs(one - other) <= _SAME_PLACE_DEGREES for one, other in pairs)
    return all(
        one == other
        if one.is_integer() and other.is_integer()
        else math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=1e-6)
        for one, other in pairs
    )

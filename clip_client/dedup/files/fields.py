"""Reads every field that a photo's file has: EXIF, IPTC, XMP, PNG text, and the attributes that its folder keeps."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import os
import plistlib
import re
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from clip_client.dedup.files.field_names import (
    DATES,
    DEVELOPERS,
    is_housekeeping,
    is_housekeeping_tag,
    name_of,
)
from clip_client.dedup.files.metadata import clean_text, iptc_texts, iso_date, xmp_of
from clip_client.dedup.files.xmp import Item, XmpError, read_xmp, texts_of

if TYPE_CHECKING:
    from PIL import ImageFile

Value: TypeAlias = "str | tuple[float, ...] | None"
"""A text, numbers, or None for what can only be there or not, such as the notes of a camera's maker."""

_ROUNDING: Final = 0.05
"""Relative: ExifTool writes some numbers with two digits into XMP, such as 1.3 for an aperture value of 1.25."""
_LEAST_CUT_TEXT: Final = 32
"""Characters: IPTC cuts off most texts at 32 or 64 bytes, and a text of that length may be the start of another."""

_DATES: Final = frozenset({"DateTimeOriginal", "DateTimeDigitized", "photoshop:DateCreated", "xmp:CreateDate"})
_ONLY_PRESENT: Final = frozenset({"MakerNote", "GPSLatitude", "GPSTimeStamp", "GPSDateStamp", "acdsee:categories"})
"""Fields that programs rewrite, with other offsets, or as a date in place of a time; positions are in Metadata."""
_XMP: Final = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_EXTENSION: Final = b"http://ns.adobe.com/xmp/extension/\0"
_XMP_EXTENSION_HEADER: Final = len(_XMP_EXTENSION) + 40
"""Followed by a digest of 32 characters, total length and offset: XMP specification, part 3, section 1.1.3.1."""
_END_OF_XMP: Final = b"\x01\xff\xfe"
_XMP_OF_GIF: Final = re.compile(rb"\x21\xff\x0bXMP DataXMP(.+?)" + _END_OF_XMP, re.DOTALL)
"""A packet that is not in blocks, and the bytes that lead over it: XMP specification, part 3, section 1.1.2."""
_CHARSET: Final = 8
"""Bytes before the text of a UserComment: EXIF 2.32, section 4.6.5."""
_SIGNATURE, _CHECKSUM = 8, 4
"""Bytes of a PNG before its chunks, and behind each of them."""
_RAW_PROFILE: Final = re.compile(r"Raw profile type (xmp|iptc|8bim)$")
"""Blocks as hexadecimal text in a PNG, by ImageMagick and ExifTool; Pillow reads that of EXIF."""
_OF_PROGRAMS: Final = re.compile(
    r"CREATOR: gd-jpeg|Created with GIMP|Lavc\d|LEAD Technologies|File (?:written|source)|Optimized|Compressed by"
    r"|Processed By|FBMD|Handmade Software|JPEG Encoder Copyright|Intel\(R\) JPEG"
)
"""Texts that programs sign with, and the code that Facebook puts into each file."""
_FINDER_COLOUR: Final = (9, 0x0E)
"""Byte and bits of the colour in com.apple.FinderInfo: Finder.h, kColor."""


@dataclass
class Fields:
    """What a file says, by the names that people know; fields that say nothing about the photo are left out."""

    said: dict[str, set[Value]] = field(default_factory=lambda: defaultdict(set))
    implied: dict[str, set[Value]] = field(default_factory=lambda: defaultdict(set))
    """What the file says in another form, such as the time zone in a date of XMP: another file loses nothing by it."""
    of_maker: dict[str, set[Value]] = field(default_factory=lambda: defaultdict(set))
    """What programs take from the maker's notes, such as the lens: a file with these notes has it."""
    is_unreadable: bool = False

    def lost_in(self, others: Sequence[Fields]) -> dict[str, set[Value]]:
        """Return what none of ``others``, a photo and its sidecars, says: name -> values."""
        known: defaultdict[str, set[Value]] = defaultdict(set)
        for name, values in itertools.chain.from_iterable(
            part.items() for other in others for part in (other.said, other.implied, other.of_maker)
        ):
            known[name] |= values
        has_notes = any("maker notes" in other.said for other in others)
        ours = itertools.chain(self.said.items(), () if has_notes else self.of_maker.items())
        lost: defaultdict[str, set[Value]] = defaultdict(set)
        for name, values in ours:
            lost[name] |= _not_held(values, known[name])
        return {name: values for name, values in lost.items() if values}

    def add_image(self, image: ImageFile.ImageFile, data: bytes) -> None:
        """Add all fields of an opened file, which holds ``data``. Raises what Pillow raises for damaged metadata."""
        from PIL import ExifTags, IptcImagePlugin

        exif = image.getexif()
        for tag, value in exif.items():
            if not is_housekeeping_tag(tag):
                self._add(ExifTags.TAGS.get(tag, f"EXIF field 0x{tag:04x}"), value)
        for directory, names in ((ExifTags.IFD.Exif, ExifTags.TAGS), (ExifTags.IFD.GPSInfo, ExifTags.GPSTAGS)):
            for tag, value in exif.get_ifd(directory).items():
                self._add(names.get(tag, f"EXIF field 0x{tag:04x}"), value)
        self._add_iptc(IptcImagePlugin.getiptcinfo(image) or {})
        if packet := xmp_of(image):
            with suppress(XmpError):  # the six fields of Metadata say so, and keep such a file
                self.add_xmp(packet)
        segments: list[tuple[str, bytes]] = getattr(image, "applist", [])
        for further in _further_xmp(segments, data if image.format == "GIF" else b""):
            if further != packet:
                try:
                    self.add_xmp(further)
                except XmpError:
                    self.said["further XMP"].add(hashlib.sha256(further).hexdigest())
        for name, text in _png_texts(data) if image.format == "PNG" else ():
            self._add_png_text(name, text)
        for comment in (image.info.get("comment"), *(text for kind, text in segments if kind == "COM")):
            self._add("file:comment", clean_text(comment))

    def _add_png_text(self, name: str, text: str) -> None:
        if (match := _RAW_PROFILE.match(name)) is None:
            self._add(f"png:{name.replace(' ', '_')}", text)
            return
        with suppress(ValueError, XmpError):
            block = bytes.fromhex("".join(text.split()[2:]))  # after its name and its length
            if match[1] == "xmp":
                self.add_xmp(block)
            else:
                self._add_iptc(_datasets(block))

    def add_xmp(self, packet: bytes) -> None:
        """Add the properties of a packet. Raises XmpError for one that cannot be read."""
        for name, items in read_xmp(packet).items():
            prefix, _, local = name.rpartition(":")
            if prefix not in ("tiff", "exif", "exifEX"):
                self._add_property(name, items)
            elif not _is_housekeeping_exif(local):
                texts = texts_of(items)
                self._add(local, _numbers_in(texts) or "\n".join(texts) or None)

    def add_attribute(self, name: str, data: bytes) -> None:
        """Add an extended attribute."""
        if name == "com.apple.FinderInfo":
            byte, bits = _FINDER_COLOUR
            if data[byte : byte + 1] and data[byte] & bits:
                self.said["Finder label"].add(str(data[byte] & bits))
            return
        content: Any = data.decode("utf-8", "backslashreplace")
        if data.startswith(b"bplist"):
            try:
                content = plistlib.loads(data)
            except Exception:  # plistlib raises many types for damaged data
                content = data.hex()
        for one in content.split(",") if name == "xdg.tags" else content if isinstance(content, list) else [content]:
            self._add(f"attribute:{name}", str(one))

    def _add(self, field: str, value: Any) -> None:
        """Add one value, as EXIF or a text has it."""
        if field in _DATES or field in ("iptc:55", "iptc:62"):
            self._add_date(field, clean_text(value))
        elif field == "XPKeywords" and isinstance(value, bytes):
            for word in value.decode("utf-16-le", "replace").split(";"):
                self._add("dc:subject", word)
        elif field == "GPSLatitude" and not re.search("[1-9]", str(value)):
            pass  # receivers without a position write zeros
        elif not is_housekeeping(field):
            read = None if field in _ONLY_PRESENT and value else _value(field, value)
            is_signature = isinstance(read, str) and _OF_PROGRAMS.match(read)
            name = name_of(field)
            if name == "rating":  # a number in EXIF, a text in XMP, and 0 for none
                read = _numbers_in([str(value)]) or read
                read = "" if read == (0.0,) else read
            if read not in ("", ()) and not is_signature:
                self.said[name].add(read)
                if name == "comment":  # which ImageMagick writes into the description of a TIFF
                    self.implied["caption"].add(read)

    def _add_date(self, field: str, text: str) -> None:
        if date := iso_date(text):
            for name in DATES:
                self.implied[name].add(date)
            if not is_housekeeping(field):
                self.said[name_of(field)].add(date)
        if match := re.search(r"\d:\d\d(?:\.(\d+))?([+-]\d\d:\d\d|Z)?$", text):
            for name, part in zip(("fraction of a second", "time zone"), match.groups(), strict=True):
                if part:
                    self.implied[name].add(_value("SubsecTimeOriginal" if name != "time zone" else "", part))

    def _add_property(self, field: str, items: Sequence[Item]) -> None:
        """Add a property of XMP: a text, a list, or structures, whose order does not matter."""
        if is_housekeeping(field):
            if field in _DATES:
                self._add_date(field, "".join(items[0].get("", ())))
            return
        name, prefix = name_of(field), field.rpartition(":")[0]
        into = self.of_maker if prefix == "aux" else self.said
        for item in items:
            if name == "face regions":
                # Only the names: the positions are shares of a picture, which a crop or another program changes.
                # A face without a name is an empty one, with which every name begins.
                into[name] |= set(_people_in(item)) or {""}
            elif list(item) != [""]:
                into[name].add("; ".join(f"{path}={','.join(texts)}" for path, texts in sorted(item.items())))
            elif prefix in DEVELOPERS:
                into[name].add(f"{field}={','.join(item[''])}")
            elif prefix == "aux":
                into[name] |= {_numbers_in(item[""]) or "\n".join(item[""])}
            else:
                for text in item[""]:
                    self._add_plain(field, name, text)

    def _add_plain(self, field: str, name: str, text: str) -> None:
        if name == "hierarchical keywords":
            text = text.replace("/", "|")
        if text != "0" or not name.endswith("label"):  # digiKam's labels that nothing was marked with
            self._add(field, text)
        if field == "dc:subject":
            for implied in ("hierarchical keywords", "file tags"):
                self.implied[implied].add(_plain(text))

    def _add_iptc(self, datasets: Mapping[tuple[int, int], Any]) -> None:
        texts = iptc_texts(datasets)
        if any(map(_OF_PROGRAMS.match, texts.get(40, ()))):
            texts.pop(103, None)  # the other half of Facebook's code
        for number, values in texts.items():
            for value in values:
                # The time is in a dataset of its own, whose number is that of the date and 5 or 1.
                time = texts.get({55: 60, 62: 63}.get(number, 0), [""])[0]
                self._add(f"iptc:{number}", value + time)


def read_fields(data: bytes) -> Fields:
    """Read the fields of an image file, without its attributes. Never raises; another file has none."""
    from preprocess_ensemble.imaging.decode import quiet_libraries
    from preprocess_ensemble.imaging.formats import identify, open_image

    fields = Fields()
    try:
        with quiet_libraries(), open_image(data) as image:
            if image.format in ("PNG", "JXL"):
                image.load()  # text may follow the pixels, and a restored JPEG has its own fields
            fields.add_image(image, data)
    except Exception:  # Pillow may raise anything for damaged metadata
        image_format = identify(data)
        return Fields(is_unreadable=image_format is not None and image_format.readable)
    return fields


def read_sidecar_fields(packet: bytes) -> Fields:
    """Read the fields of an XMP sidecar. Never raises; a damaged one has none."""
    fields = Fields()
    with suppress(XmpError):
        fields.add_xmp(packet)
    return fields


def read_attributes(path: str) -> Fields:
    """Read the extended attributes of a file, such as tags of the Finder. Never raises; most files have none."""
    fields = Fields()
    with suppress(OSError, ImportError):
        for name, data in _attributes(path):
            fields.add_attribute(name.removeprefix("user."), data)
    return fields


def _attributes(path: str) -> Iterator[tuple[str, bytes]]:
    if sys.platform == "darwin":
        import xattr

        yield from ((name, xattr.getxattr(path, name)) for name in xattr.listxattr(path))
    elif sys.platform == "linux":
        yield from ((name, os.getxattr(path, name)) for name in os.listxattr(path))


def _is_housekeeping_exif(name: str) -> bool:
    """Tell whether a field of EXIF, which stands somewhere else, says nothing about the photo."""
    from PIL import ExifTags

    tag = next((tag for tag, known in ExifTags.TAGS.items() if known == name), None)
    return is_housekeeping(name) or (tag is not None and is_housekeeping_tag(tag))


def _datasets(block: bytes) -> dict[tuple[int, int], list[bytes]]:
    """Read the datasets of IPTC, wherever they begin in a block: IIM 4.2, section 1.6."""
    found: dict[tuple[int, int], list[bytes]] = {}
    position = block.find(b"\x1c\x02")
    while block[position : position + 1] == b"\x1c":
        start = position + 5
        position = start + int.from_bytes(block[start - 2 : start], "big")
        found.setdefault((block[start - 4], block[start - 3]), []).append(block[start:position])
    return found


def _further_xmp(segments: Iterable[tuple[str, bytes]], gif: bytes) -> Iterator[bytes]:
    """Yield the packets of a JPEG, of which Pillow gives the last, and those of a GIF, of which it gives none."""
    # Up to the last end of a packet, so that no beginning is looked for an end in vain.
    yield from _XMP_OF_GIF.findall(gif, 0, gif.rfind(_END_OF_XMP) + len(_END_OF_XMP))
    blocks = [data for kind, data in segments if kind == "APP1"]
    yield from (data.removeprefix(_XMP) for data in blocks if data.startswith(_XMP))
    # A segment holds 64 KiB, so the rest of a longer packet is in several others.
    parts = (data[_XMP_EXTENSION_HEADER - 4 :] for data in blocks if data.startswith(_XMP_EXTENSION))
    if extension := b"".join(part[4:] for part in sorted(parts, key=lambda part: part[:4])):
        yield extension


def _png_texts(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield all texts of a PNG; of those with one name Pillow keeps the last."""
    from PIL import PngImagePlugin

    file = io.BytesIO(data)
    file.seek(_SIGNATURE)
    stream, kind = PngImagePlugin.PngStream(file), b""
    while kind != b"IEND" and file.tell() < len(data):
        kind, start, length = stream.read()
        if kind in (b"tEXt", b"zTXt", b"iTXt"):
            stream.call(kind, start, length)
            yield from ((str(name), str(text)) for name, text in stream.im_text.items())
            stream.im_text.clear()
        file.seek(start + length + _CHECKSUM)


def _people_in(item: Item) -> Iterator[str]:
    for path, texts in item.items():
        if path.rpartition("/")[2] in ("Name", "PersonDisplayName"):
            yield from filter(None, map(_plain, texts))


def _value(field: str, value: Any) -> Value:
    if isinstance(value, bytes):
        if field.startswith("XP"):
            return _plain(value.decode("utf-16-le", "replace"))
        if field == "UserComment":
            return _user_comment(value)
        return None if value.strip(b"\0 ") else ""
    if isinstance(value, str):
        text = _plain(value)
        return text.rstrip("0") or "0" if field == "SubsecTimeOriginal" else text
    try:
        numbers = tuple(float(one) for one in (value if isinstance(value, tuple) else (value,)))
    except (TypeError, ValueError, ArithmeticError):
        return None
    return tuple(0.0 if math.isnan(one) else one for one in numbers)


def _user_comment(value: bytes) -> Value:
    charset, text = value[:_CHARSET], value[_CHARSET:]
    if charset.startswith(b"UNICODE"):
        # The byte order is that of EXIF, which not all programs keep to; most characters are below 256.
        is_little = text[1:2] == b"\0" or text.startswith(b"\xff\xfe")
        return _plain(text.decode("utf-16-le" if is_little else "utf-16-be", "replace"))
    return _plain(clean_text(text if charset.strip(b"\0") in (b"", b"ASCII", b"JIS") else value))


def _plain(text: str) -> str:
    return " ".join(clean_text(text.replace("\ufeff", "")).split())


def _numbers_in(texts: Iterable[str]) -> tuple[float, ...]:
    """Return the numbers in XMP texts such as ``"1/60"``; empty if any text is not a number."""
    try:
        return tuple(float(Fraction(text.strip())) for part in texts for text in part.split())
    except (ValueError, ArithmeticError):
        return ()


def _not_held(values: set[Value], by: set[Value]) -> set[Value]:
    """Return those of ``values`` that none of the others of one field equals, as far as their forms can be compared."""
    texts = sorted(other for other in by if isinstance(other, str))
    mangled = {_as_ascii(text) for text in texts}
    numbers = [other for other in by if isinstance(other, tuple)]
    left = set()
    for value in values - by:
        if isinstance(value, tuple):
            is_held = len(numbers) < len(by) or any(_are_near(value, other) for other in numbers)
        elif isinstance(value, str):
            # Pillow writes question marks into EXIF in place of characters beyond ASCII, one for each of their bytes.
            is_mangled = "?" in value and _as_ascii(value) in mangled
            is_held = len(texts) < len(by) or is_mangled or _is_beginning(value, texts)
        else:
            is_held = bool(by)
        if not is_held:
            left.add(value)
    return left


def _is_beginning(text: str, of: list[str]) -> bool:
    """Tell whether a text that may be cut off, or a date without a time, is the beginning of one of sorted texts."""
    place = bisect_left(of, text)
    may_be_cut = len(text) >= _LEAST_CUT_TEXT or iso_date(text) == text
    return may_be_cut and place < len(of) and of[place].startswith(text)


def _as_ascii(text: str) -> str:
    return re.sub(r"[^ -~]+|\?+", "?", text)


def _are_near(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Compare numbers up to the length of the shorter list, as some cameras repeat a number."""
    pairs = zip(first, second, strict=False)
    return all(math.isclose(*pair, rel_tol=_ROUNDING, abs_tol=1e-6) for pair in pairs)

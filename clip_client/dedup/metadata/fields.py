"""Reads every field of a file, wherever a program has written it: EXIF, IPTC, XMP, text and comments, as they stand."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.metadata.names import UNNAMED, is_layout
from clip_client.dedup.metadata.xmp import Item, XmpError, read_xmp

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.containers.container import Container
    from preprocess_ensemble.imaging.containers.tiff import Directory, Tiff

_TEXT: Final = 2
"""Type of a field of EXIF."""
_COPYRIGHT: Final = 0x8298
_SIZE: Final = (256, 257)
"""Fields that say whether the picture was resized since."""
_RAW_PROFILE: Final = re.compile(r"raw profile type (exif|app1|xmp|iptc|8bim)$", re.IGNORECASE)
"""Blocks as hexadecimal text in a PNG, by ImageMagick and ExifTool: a line for people, the length, and the digits."""
_CLIPPING_PATHS: Final = range(2000, 2999)
_IPTC: Final = 0x0404
_IPTC_LENGTH: Final = 0x7FFF
"""Longest dataset of the usual form; beyond, these bits are how many bytes the length has: IIM 4.2, section 1.5."""


@dataclass
class Fields:
    """What one file says, by fields: those of EXIF have the names that Pillow gives them, those of ``iptc`` the number
    of a dataset in record 2, and those of XMP, ``png``, ``file`` and ``data`` a prefix."""

    values: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Bytes, texts or tuples of numbers; of XMP its items."""
    exif_fields: int = 0
    size: tuple[int, int] = (0, 0)
    """Width and height of the stored picture in pixels, as far as they are known."""
    is_incomplete: bool = False
    """Some of it could not be read."""

    def first(self, name: str, default: Any = None) -> Any:
        """Return the first value of a field."""
        return self.values[name][0] if self.values.get(name) else default

    def add_xmp(self, packet: bytes) -> None:
        """Add the properties of a packet."""
        try:
            for name, items in read_xmp(packet).items():
                self.values[name] += items
        except XmpError:
            self.is_incomplete = True

    def items(self, name: str) -> list[Item]:
        """Return the items of a property of XMP."""
        return [one for one in self.values.get(name, ()) if isinstance(one, dict)]

    def _add_exif(self, data: bytes) -> None:
        from PIL import ExifTags

        from preprocess_ensemble.imaging.containers import tiff as names
        from preprocess_ensemble.imaging.containers.tiff import Tiff

        tiff = Tiff(data)
        first = tiff.directory(tiff.first)
        if not first.entries:
            self.is_incomplete = self.is_incomplete or bool(data.strip(b"\0"))
            return
        self._add_directory(tiff, first, ExifTags.TAGS, is_first=True)
        for pointer, tags in ((names.EXIF_DIRECTORY, ExifTags.TAGS), (names.GPS_DIRECTORY, ExifTags.GPSTAGS)):
            for start in tiff.numbers(first, pointer)[:1]:
                self._add_directory(tiff, tiff.directory(start), tags)

    def _add_directory(
        self, tiff: Tiff, directory: Directory, names: Mapping[int, str], *, is_first: bool = False
    ) -> None:
        self.exif_fields += len(directory.entries)
        for tag, entry in directory.entries.items():
            if is_first and is_layout(tag) and tag not in _SIZE:
                continue
            value = tiff.values(entry)
            if entry.type == _TEXT and isinstance(value, bytes):
                parts = list(filter(bytes.strip, value.split(b"\0")))
                # Only the copyright has a second part, that of the editor.
                value = b"; ".join(parts if tag == _COPYRIGHT else parts[:1])
            if value:
                text = value.decode("latin-1") if entry.type == _TEXT and isinstance(value, bytes) else value
                self.values[names.get(tag, f"{UNNAMED}{tag:04x}")].append(text)

    def _add_resources(self, block: bytes) -> None:
        for number, content in _resources(block):
            if number == _IPTC:
                self._add_iptc(content)
            elif number in _CLIPPING_PATHS:
                self.values["data:clipping path"].append(content)

    def _add_iptc(self, block: bytes) -> None:
        """Add the datasets of IPTC, wherever they begin in a block: IIM 4.2, section 1.6."""
        position = block.find(b"\x1c\x02")
        while position >= 0 and block[position : position + 1] == b"\x1c":
            record, number = block[position + 1 : position + 3].ljust(2, b"\0")
            start = position + 5
            length = int.from_bytes(block[start - 2 : start], "big")
            if length > _IPTC_LENGTH:
                start += (wide := length & _IPTC_LENGTH)
                length = int.from_bytes(block[start - wide : start], "big")
            position = start + length
            if record == 2:
                self.values[f"iptc:{number}"].append(block[start:position])

    def _add_text(self, name: str, text: bytes) -> None:
        """Add a text of a PNG, which may be another block in hexadecimal form."""
        if (match := _RAW_PROFILE.match(name)) is None:
            self.values[f"png:{name.replace(' ', '_')}"].append(text.decode("utf-8", "replace"))
            return
        try:
            _, length, digits = text.decode("latin-1").strip().split("\n", 2)
            block = bytes.fromhex(digits)[: int(length)]
        except ValueError:
            self.is_incomplete = True
            return
        kind = match[1].lower()
        if kind in ("exif", "app1") and block.startswith((b"Exif\0\0", b"II", b"MM")):
            self._add_exif(block.removeprefix(b"Exif\0\0"))
        elif kind == "8bim" or (kind == "iptc" and block.startswith(b"8BIM")):
            self._add_resources(block)
        elif kind == "iptc":
            self._add_iptc(block)
        else:
            self.add_xmp(block[max(0, block.find(b"<")) :])

    def add_container(self, container: Container) -> None:
        """Add all blocks of a file."""
        from preprocess_ensemble.imaging.containers import container as kinds

        adders = {
            kinds.EXIF: self._add_exif,
            kinds.XMP: self.add_xmp,
            kinds.IPTC: self._add_iptc,
            kinds.RESOURCES: self._add_resources,
        }
        for block in container.blocks:
            if block.kind in adders:
                adders[block.kind](block.data)
            elif block.kind == kinds.TEXT:
                self._add_text(block.name, block.data)
            elif block.kind == kinds.COMMENT:
                self.values["file:comment"].append(block.data)
            elif block.kind == kinds.DATA:
                self.values[f"data:{block.name}"].append(block.data)


def read_fields(data: bytes) -> Fields:
    """Read the fields of an image file. Never raises; another file has none."""
    from preprocess_ensemble.imaging.containers.read import read
    from preprocess_ensemble.imaging.formats import identify
    from preprocess_ensemble.imaging.jpeg_xl import restored_jpeg

    fields = Fields()
    image_format = identify(data)
    if image_format is None or not image_format.readable:
        return fields if image_format is None else Fields(is_incomplete=image_format.name == "JPEG XL")
    container = read(data)
    if image_format.name == "JPEG XL":
        if b"jbrd" in container.kinds:
            try:
                container = read(restored_jpeg(data))
            except Exception:  # whatever its decoder raises
                return Fields(is_incomplete=True)
        # What is compressed is not read.
        fields.is_incomplete = b"brob" in container.kinds
    elif container.layout is None:
        fields.is_incomplete = not container.blocks
    if container.layout is not None:
        fields.size = container.layout.size
    fields.add_container(container)
    return fields


def _resources(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the resources of Photoshop: its file format, "image resource blocks"."""
    from preprocess_ensemble.imaging.containers.container import RESOURCE_BEGINS

    position = 0
    while block[position : position + 4] in RESOURCE_BEGINS:
        name = block[position + 6] if len(block) > position + 6 else 0
        start = position + 6 + (name + 2) // 2 * 2 + 4
        stop = start + int.from_bytes(block[start - 4 : start], "big")
        yield int.from_bytes(block[position + 4 : position + 6], "big"), block[start:stop]
        position = stop + (stop - start) % 2

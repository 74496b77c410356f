"""Reads every field of a file, wherever a program has written it: EXIF, IPTC, XMP, text and comments, unchanged."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

from clip_client.dedup.metadata.names import LAYOUT, UNNAMED
from clip_client.dedup.metadata.xmp import Item, XmpError, read_xmp
from preprocess_ensemble.imaging.containers import container as kinds
from preprocess_ensemble.imaging.containers.container import Block, number
from preprocess_ensemble.imaging.containers.tiff import EXIF_DIRECTORY, GPS_DIRECTORY, Directory, Tiff

_TEXT: Final = 2
_COPYRIGHT: Final = 0x8298
_SIZE: Final = frozenset({256, 257})
"""These say whether the picture was resized since."""
_RAW_PROFILE: Final = re.compile(r"raw profile type (exif|app1|xmp|iptc|8bim)$", re.IGNORECASE)
"""Blocks as hexadecimal text in a PNG, by ImageMagick and ExifTool: a line for people, the length, and the digits."""
_IPTC: Final = 0x0404
_RESOURCES: Final = dict.fromkeys(range(2000, 2999), "clipping path") | {
    1006: "alpha channel names",
    1008: "caption of Photoshop",
    1034: "copyright mark",
    1035: "web address",
    1045: "alpha channel names",
    1054: "web addresses",
}
"""Number of a resource of Photoshop -> name. The others lay out the picture or its printing, or repeat XMP."""
_DATASET: Final = re.compile(rb"\x1c[\x01-\x09]")
"""Beginning of a dataset of IPTC: a mark, and the number of a record: IIM 4.2, section 1.6."""
_IPTC_LENGTH: Final = 0x7FFF
"""Longest dataset of the usual form. Above it, the lower bits count the bytes of the length: IIM 4.2, section 1.5."""


@dataclass
class Fields:
    """The fields of one file, named as in :data:`~.names.NAMES`; ``file`` and ``data`` are further prefixes."""

    values: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Bytes, texts or tuples of numbers; for XMP its items."""
    exif_fields: int = 0
    size: tuple[int, int] = (0, 0)
    is_incomplete: bool = False

    def first(self, name: str, default: Any = None) -> Any:
        return self.values[name][0] if self.values.get(name) else default

    def add_xmp(self, packet: bytes) -> None:
        try:
            for name, items in read_xmp(packet).items():
                self.values[name] += items
        except XmpError:
            self.is_incomplete = True

    def items(self, name: str) -> list[Item]:
        return [one for one in self.values.get(name, ()) if isinstance(one, dict)]

    def _add_exif(self, data: bytes) -> None:
        from PIL import ExifTags

        tiff = Tiff(data)
        first = tiff.directory(tiff.first)
        if not first.entries:
            self.is_incomplete = self.is_incomplete or bool(data.strip(b"\0"))
            return
        self.exif_fields += self._add_directory(tiff, first, ExifTags.TAGS, LAYOUT - _SIZE)
        for pointer, tags in ((EXIF_DIRECTORY, ExifTags.TAGS), (GPS_DIRECTORY, ExifTags.GPSTAGS)):
            for below in tiff.below(first, pointer):
                self.exif_fields += self._add_directory(tiff, below, tags)
        for thumbnail in list(tiff.positions(2))[1:]:
            self._add_directory(tiff, tiff.directory(thumbnail), ExifTags.TAGS, LAYOUT)

    def _add_directory(
        self, tiff: Tiff, directory: Directory, names: Mapping[int, str], skipped: Set[int] = frozenset()
    ) -> int:
        for tag, entry in directory.entries.items():
            value = b"" if tag in skipped else tiff.values(entry)
            values: list[Any] = [value] if value else []
            if entry.type == _TEXT and isinstance(value, bytes):
                parts = list(filter(bytes.strip, value.split(b"\0")))
                # The second part of a copyright is that of the editor. Other fields should have one part.
                texts = [b"; ".join(parts)] if tag == _COPYRIGHT and parts else parts
                values = [text.decode("latin-1") for text in texts]
            if values:
                self.values[names.get(tag, f"{UNNAMED}{tag:04x}")] += values
        return len(directory.entries)

    def _add_resources(self, block: bytes) -> None:
        for resource, content in _resources(block):
            if resource == _IPTC:
                self._add_iptc(content)
            elif resource in _RESOURCES and content.strip(b"\0"):
                self.values[f"data:{_RESOURCES[resource]}"].append(content)

    def _add_iptc(self, block: bytes) -> None:
        first = _DATASET.search(block)
        position = first.start() if first else len(block)
        while block[position : position + 1] == b"\x1c":
            record, dataset = block[position + 1 : position + 3].ljust(2, b"\0")
            length, start = number(block, position + 3, 2), position + 5
            if length > _IPTC_LENGTH:
                wide = length & _IPTC_LENGTH
                length, start = number(block, start, wide), start + wide
            position = start + length
            name = f"iptc:{dataset}" if record == 2 else f"iptc:{record}:{dataset}"
            self.values[name].append(block[start:position])

    def _add_text(self, name: str, text: bytes) -> None:
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

    def add_blocks(self, blocks: Iterable[Block]) -> None:
        adders = {
            kinds.EXIF: self._add_exif,
            kinds.XMP: self.add_xmp,
            kinds.IPTC: self._add_iptc,
            kinds.RESOURCES: self._add_resources,
        }
        for kind, content, name in blocks:
            if kind in adders:
                adders[kind](content)
            elif kind == kinds.TEXT:
                self._add_text(name, content)
            else:
                self.values["file:comment" if kind == kinds.COMMENT else f"data:{name}"].append(content)


def read_fields(data: bytes) -> Fields:
    """Read the fields of an image file. Never raises; a file of another kind has no fields."""
    from preprocess_ensemble.imaging.containers.read import read
    from preprocess_ensemble.imaging.formats import identify
    from preprocess_ensemble.imaging.jpeg_xl import restored_jpeg

    image_format = identify(data)
    is_jxl = image_format is not None and image_format.name == "JPEG XL"
    if image_format is None or not image_format.readable:
        return Fields(is_incomplete=is_jxl)
    container = read(data)
    parts = [*container.unknown, *container.behind(data)]
    if is_jxl and b"jbrd" in container.kinds:
        try:
            data = restored_jpeg(data)
        except Exception:  # whatever its decoder raises
            return Fields(is_incomplete=True)
        container = read(data)
        parts += [*container.unknown, *container.behind(data)]
    # Compressed boxes of a JPEG XL are not read.
    is_incomplete = b"brob" in container.kinds if is_jxl else container.layout is None and not container.blocks
    fields = Fields(is_incomplete=is_incomplete, size=container.layout.size if container.layout else (0, 0))
    fields.add_blocks(container.blocks)
    for part in parts:
        if 0 < len(content := part.strip(b"\0\r\n ")) < kinds.SMALL_PART:
            fields.values["data:unknown data"].append(content)
    return fields


def _resources(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the resources of Photoshop: its file format, "image resource blocks"."""
    position = 0
    while block[position : position + 4] in kinds.RESOURCE_BEGINS:
        start = position + 6 + (number(block, position + 6, 1) + 2) // 2 * 2 + 4
        stop = start + number(block, start - 4, 4)
        yield number(block, position + 4, 2), block[start:stop]
        position = stop + (stop - start) % 2

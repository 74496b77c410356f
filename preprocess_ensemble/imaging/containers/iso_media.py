"""The boxes (14496-12) and items (23008-12) of HEIC, AVIF and JPEG XL files. Damaged parts are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from preprocess_ensemble.imaging.containers.container import ASPECT, DATA, EXIF, XMP, Container, Layout
from preprocess_ensemble.imaging.containers.container import number as _number
from preprocess_ensemble.imaging.limits import DecodeError, check_count

JXL_CONTAINER: Final = b"\0\0\0\x0cJXL \r\n\x87\n"  # start of a JPEG XL with boxes; all others are a bare codestream

_MOST_BOXES: Final = 10_000  # a photo of 48 megapixels has about 200: most are its tiles
_MOST_REFERENCES: Final = 100_000
"""References of items to items, properties and bytes. 128 megapixels in tiles of 64 x 64 have 31,250 to tiles."""
_KNOWN_BOXES: Final = frozenset(  # boxes of HEIC and AVIF, then of JPEG XL, that are recognised
    {
        *(b"ftyp", b"meta", b"mdat", b"idat", b"free", b"skip", b"moov", b"mpvd"),
        *(b"JXL ", b"jxlc", b"jxlp", b"jxll", b"jxli", b"Exif", b"xml ", b"brob", b"jbrd", b"jumb", b"jhgm"),
    }
)
XMP_UUID: Final = bytes.fromhex("be7acfcb97a942e89c71999491e3afac")
_CREDENTIALS: Final = bytes.fromhex("d8fec3d61b0e483c92975828877ec481")
"""Beginnings of a box ``uuid`` with XMP (XMP specification, part 3), and with credentials (C2PA 2.1, annex A)."""
_DATA: Final = {  # properties that are metadata -> name: 23008-12, section 6.5, and 14496-12, section 12.1.5
    b"udes": "description",
    b"altt": "alternative text",
    b"pasp": ASPECT,
    b"mdcv": "mastering display",
    b"clli": "content light level",
    b"cclv": "content colour volume",
    b"amve": "ambient viewing environment",
    b"crtt": "creation time",
}
_HIGH_BIT_DEPTH: Final = 0x40
_HALF_ACROSS, _HALF_DOWN = 0x08, 0x04
"""Bits of the third byte of ``av1C``, the last two for colours at half size: AV1-ISOBMFF, section 2.3.3."""
_COLOURS_OF_HEVC, _DEPTH_OF_HEVC = 16, 17
"""Bytes of ``hvcC`` with how colours are stored, and with the bits of luma beyond 8: 14496-15, section 8.3.3.1."""
_STEPS_OF_HEVC: Final = {1: (2, 2), 2: (2, 1)}  # 4:2:0 and 4:2:2

_NO_PICTURES: Final = frozenset({b"Exif", b"mime", b"uri ", b"tmap"})
"""Types of items that are not pictures; a tone map says how to combine two."""
_DEEPEST: Final = 8
"""Levels of pictures inside pictures. Cameras put one picture together from tiles; some then crop or turn it."""


class Box(NamedTuple):
    name: bytes
    start: int
    stop: int


class Reference(NamedTuple):
    """An item that refers to others: ``dimg`` to its parts, ``thmb`` and ``auxl`` to the picture that it belongs to."""

    kind: bytes
    item: int
    to: tuple[int, ...]
    at: slice  # place of ``to`` in the file


def boxes(data: bytes, start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes between two positions, up to the first that does not fit."""
    while start + 8 <= stop:
        size, header = _number(data, start, 4), 8
        if size == 1:  # 64 bits follow
            size, header = _number(data, start + 8, 8), 16
        elif size == 0:
            size = stop - start
        if size < header or start + size > stop:
            return
        yield Box(data[start + 4 : start + 8], start + header, start + size)
        start += size


def file_boxes(data: bytes) -> Iterator[Box]:
    """Yield the outermost boxes of a file, up to those of a second file after it, such as a film."""
    for number, box in enumerate(boxes(data, 0, len(data))):
        if box.name == b"ftyp" and number > 1:  # the second box of a JPEG XL is the first of this name
            return
        yield box


class IsoMedia:
    """The structure of a HEIC or AVIF file. Raises :class:`DecodeError` (LIMIT) for one with too many parts."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._boxes = self._references = 0
        self.top_level: list[Box] = []
        self.primary = 0  # the item that a viewer shows
        self.items: dict[int, bytes] = {}  # item -> its type, such as ``b"hvc1"`` or ``b"grid"``
        self.references: list[Reference] = []
        self.parts = defaultdict[int, list[int]](list)
        """Item -> the pictures that it is put together from, as often as it uses them."""
        self.properties: list[Box] = []  # properties of all items, such as ``ispe``, a picture's size
        self.associations: list[Box] = []  # boxes that say which item has which properties
        self._listed: dict[int, range] = {}  # item -> places of the numbers of its properties
        self.extents = defaultdict[int, list[tuple[int, int]]](list)  # item -> start and stop of its pieces
        self._data_start = 0  # start of the box in ``meta`` in which items may lie
        self.stored_bytes = 0  # bytes of all items that the file has; several may share bytes
        self.stored_end = 0
        for box in self._counted(file_boxes(data)):
            self.top_level.append(box)
            if box.name == b"meta":
                for child in self._children(box.start + 4, box.stop):
                    self._read_meta(child)

    def properties_of(self, item: int) -> list[Box]:
        """Return the properties of an item and of the pictures that it is put together from."""
        items = (item, *self.parts.get(item, ()))
        return list(dict.fromkeys(box for one in items for _, box in self.listed_properties(one)))

    def listed_properties(self, item: int) -> Iterator[tuple[slice, Box]]:
        """Yield the place of the number of each property of an item, and the property: 23008-12, section 9.3.2."""
        places = self._listed.get(item, range(0))
        for place in places:
            # The highest bit says whether a decoder must know the property. Numbers begin at 1.
            number = self._number(place, places.step) % (1 << (8 * places.step - 1))
            if 0 < number <= len(self.properties):
                yield slice(place, place + places.step), self.properties[number - 1]

    def content(self, item: int) -> bytes:
        return b"".join(self._data[start:stop] for start, stop in self.extents.get(item, ()))

    def is_unused(self, box: Box) -> bool:
        """Tell whether a box of data belongs neither to an item nor to a sequence."""
        if box.name != b"mdat" or any(one.name == b"moov" for one in self.top_level):
            return False
        return not any(box.start <= start < box.stop for pieces in self.extents.values() for start, _ in pieces)

    def crop(self, width: int, height: int) -> tuple[int, int, int, int] | None:
        """Return left, top, right, bottom of the part that is shown; None if all of it is: 14496-12, section 12.1.4."""
        for box in self.properties_of(self.primary):
            if box.name == b"clap":
                numbers = [self._number(box.start + place, 4) for place in range(0, 32, 4)]
                if not all(numbers[1::2]):
                    return None
                signed = [one - (one >> 31 << 32) for one in numbers]
                across, down, right, below = (signed[place] / signed[place + 1] for place in range(0, 8, 2))
                left, top = round((width - across) / 2 + right), round((height - down) / 2 + below)
                shown = max(0, left), max(0, top), min(width, left + round(across)), min(height, top + round(down))
                return shown if shown[0] < shown[2] and shown[1] < shown[3] else None
        return None

    def further_pictures(self) -> list[int]:
        """Return the pictures that are neither the primary one nor a part, thumbnail or auxiliary picture of one."""
        belonging = {one.item for one in self.references if one.kind in (b"thmb", b"auxl")}
        belonging |= set(chain.from_iterable(self.parts.values()))
        pictures = [item for item, kind in self.items.items() if kind not in _NO_PICTURES]
        primary = self.primary if self.primary in self.items else min(pictures, default=0)
        return [item for item in pictures if item != primary and item not in belonging]

    def auxiliary_pictures(self) -> list[int]:
        """Return the items that add transparency or depth to the primary picture, which some encoders call item 0."""
        return [one.item for one in self.references if one.kind == b"auxl" and {0, self.primary} & {*one.to}]

    def decoded_pixels(self, at_most: int) -> int:
        """Count the pixels to decode for the primary picture, parts and alpha; over ``at_most`` if nested too deep."""
        known: dict[int, int] = {}

        def pixels(item: int, depth: int = 0) -> int:
            if depth > _DEEPEST:
                return at_most + 1
            if item not in known:
                sizes = [box.start for _, box in self.listed_properties(item) if box.name == b"ispe"]
                if parts := self.parts.get(item):
                    known[item] = sum(pixels(part, depth + 1) for part in parts)
                else:
                    known[item] = self._number(sizes[0] + 4, 4) * self._number(sizes[0] + 8, 4) if sizes else 0
            return known[item]

        return sum(pixels(item) for item in [self.primary, *self.auxiliary_pictures()])

    def _read_meta(self, box: Box) -> None:
        version = self._number(box.start, 1)
        wide = 4 if version else 2
        match box.name:
            case b"pitm":
                self.primary = self._number(box.start + 4, wide)
            case b"iinf":
                for entry in self._children(box.start + 4 + wide, box.stop):
                    size = 4 if self._number(entry.start, 1) > 2 else 2
                    kind = entry.start + 6 + size
                    self.items[self._number(entry.start + 4, size)] = self._data[kind : kind + 4]
            case b"iref":
                for entry in self._children(box.start + 4, box.stop):
                    self._read_reference(entry, wide)
            case b"idat":
                self._data_start = box.start
            case b"iloc":
                self._read_locations(box, version)
            case b"iprp":
                for child in self._children(box.start, box.stop):
                    if child.name == b"ipco":
                        self.properties += self._children(child.start, child.stop)
                    elif child.name == b"ipma":
                        self.associations.append(child)
                        self._read_associations(child)

    def _read_reference(self, box: Box, wide: int) -> None:
        """Read one list of references: 14496-12, section 8.11.12."""
        first = box.start + wide + 2
        count = min(self._number(box.start + wide, 2), (box.stop - first) // wide)
        self._count_references(count)
        to = tuple(self._number(first + wide * number, wide) for number in range(count))
        item = self._number(box.start, wide)
        self.references.append(Reference(box.name, item, to, slice(first, first + wide * count)))
        if box.name == b"dimg":
            self.parts[item] += to

    def _read_locations(self, box: Box, version: int) -> None:
        """Record the pieces of all items, and add up their lengths: 14496-12, section 8.11.3."""
        sizes = self._number(box.start + 4, 2)
        offset, length, base, index = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
        wide = 4 if version > 1 else 2
        position = box.start + 6 + wide
        while position < box.stop:
            item = self._number(position, wide)
            is_in_meta = version > 0 and self._number(position + wide, 2) & 15 == 1
            position += wide + (2 if version else 0) + 2
            first = self._number(position, base) + (self._data_start if is_in_meta else 0)
            pieces = self._number(position + base, 2)
            self._count_references(1 + pieces)
            position += base + 2
            for _ in range(pieces):
                position += index if version else 0
                start = first + self._number(position, offset)
                position += offset
                there = max(0, len(self._data) - start)
                piece = self._number(position, length) or there  # without a length, up to the end of the file
                position += length
                self.extents[item].append((start, start + piece))
                self.stored_bytes += min(piece, there)
                self.stored_end = max(self.stored_end, start + piece)

    def _read_associations(self, box: Box) -> None:
        """Find where the properties of each item are listed: 23008-12, section 9.3.2."""
        wide = 4 if self._number(box.start, 1) else 2
        index = 2 if self._number(box.start + 3, 1) & 1 else 1
        position = box.start + 8
        while position < box.stop:
            item, count = self._number(position, wide), self._number(position + wide, 1)
            self._count_references(1 + count)
            position += wide + 1
            self._listed[item] = range(position, position + index * count, index)
            position += index * count

    def _children(self, start: int, stop: int) -> Iterator[Box]:
        return self._counted(boxes(self._data, start, stop))

    def _counted(self, found: Iterator[Box]) -> Iterator[Box]:
        for box in found:
            self._boxes += 1
            check_count(self._boxes, _MOST_BOXES, "image file", "boxes")
            yield box

    def _count_references(self, count: int) -> None:
        self._references += count
        check_count(self._references, _MOST_REFERENCES, "image file", "references")

    def _number(self, position: int, size: int) -> int:
        return _number(self._data, position, size)


def read(data: bytes) -> Container:
    """Read a HEIC, AVIF or JPEG XL, whose codestream says how its picture is stored."""
    is_jxl = data.startswith(JXL_CONTAINER)
    try:
        media = IsoMedia(data)
    except DecodeError:  # too many parts
        return Container(end=0)
    container = Container(end=media.top_level[-1].stop if media.top_level else 0)
    container.kinds = [box.name for box in media.top_level]
    if not is_jxl and b"mini" not in container.kinds:  # the short form of HEIF is not read here
        container.layout = _layout(data, media)
    for box in media.top_level:
        identity = data[box.start : box.start + 16] if box.name == b"uuid" else b""
        if identity == XMP_UUID:
            container.add(XMP, data[box.start + 16 : box.stop])
        elif (box.name not in _KNOWN_BOXES and identity != _CREDENTIALS) or media.is_unused(box):
            container.unknown.append(data[box.start : box.stop])
        elif is_jxl and box.name == b"Exif":
            _add_exif(container, data[box.start : box.stop])
        elif is_jxl and box.name == b"xml ":
            container.add(XMP, data[box.start : box.stop])
    _add_items(container, data, media)
    return container


def _add_items(container: Container, data: bytes, media: IsoMedia) -> None:
    for box in media.properties:
        content = data[box.start : box.stop]
        if box.name in _DATA and not (box.name == b"pasp" and content[:4] == content[4:]):
            container.add(DATA, content, _DATA[box.name])
    for item, kind in media.items.items():
        if kind == b"Exif":
            _add_exif(container, media.content(item))
        elif kind == b"mime" and b"<" in (packet := media.content(item))[:64]:
            container.add(XMP, packet)
        elif kind in (b"mime", b"uri "):
            container.unknown.append(media.content(item))


def _add_exif(container: Container, content: bytes) -> None:
    """Add a block of EXIF, which follows an offset: 23008-12, annex A.2.1. Some encoders leave it out."""
    offset = 0 if content.startswith((b"II*\0", b"MM\0*")) else 4 + _number(content, 0, 4)
    container.add(EXIF, content[offset:].removeprefix(b"Exif\0\0"))


def _layout(data: bytes, media: IsoMedia) -> Layout:
    has_sequence = any(box.name == b"moov" for box in media.top_level)
    layout = Layout(is_lossless=False, pages=1 + has_sequence + len(media.further_pictures()))
    codes = set()
    for box in media.properties_of(media.primary):
        content = data[box.start : min(box.stop, box.start + 64)]
        if box.name == b"ispe" and layout.size == (0, 0):  # that of the picture stands before those of its tiles
            layout.size = _number(content, 4, 4), _number(content, 8, 4)
        elif box.name == b"colr" and content.startswith(b"nclx"):
            codes.add(content[4:8])
        elif box.name == b"colr":
            layout.profile = data[box.start + 4 : box.stop]
        elif box.name == b"pixi":
            layout.depth = max(layout.depth, *content[5 : 5 + _number(content, 4, 1)], 0)
        elif box.name == b"av1C":
            flags = _number(content, 2, 1)
            layout.depth = max(layout.depth, 10 if flags & _HIGH_BIT_DEPTH else 8)
            layout.colour_step = 1 + bool(flags & _HALF_ACROSS), 1 + bool(flags & _HALF_DOWN)
        elif box.name == b"hvcC":
            layout.depth = max(layout.depth, 8 + (_number(content, _DEPTH_OF_HEVC, 1) & 7))
            layout.colour_step = _STEPS_OF_HEVC.get(_number(content, _COLOURS_OF_HEVC, 1) & 3, (1, 1))
    layout.codes = tuple(sorted(codes))
    for item in media.auxiliary_pictures():
        names = [data[box.start + 4 : box.stop] for box in media.properties_of(item) if box.name == b"auxC"]
        layout.has_alpha |= any(name.split(b"\0")[0].endswith((b"auxid:1", b":alpha")) for name in names)
    return layout

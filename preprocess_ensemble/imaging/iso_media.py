"""The boxes of HEIC and AVIF files, and what they say about the pictures in a file.

ISO/IEC 14496-12 defines the boxes, and 23008-12 (HEIF) the items: pictures, the tiles that a picture is put together
from, thumbnails, depth maps, EXIF. Nothing is decoded. Damaged parts are left out: the decoder refuses such a file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from preprocess_ensemble.imaging.limits import check_count

_MOST_BOXES: Final = 10_000
"""A photo of 48 megapixels has about 200: most are its tiles."""
_MOST_REFERENCES: Final = 100_000
"""From items to items, properties and bytes. 128 megapixels in tiles of 64 x 64 have 31,250 to tiles."""
_DEEPEST: Final = 8
"""Pictures that are parts of pictures. Cameras put one picture together from tiles, and some crop or turn it."""

_NO_PICTURES: Final = frozenset({b"Exif", b"mime", b"uri ", b"tmap"})
"""Types of items that are no pictures; a tone map says how to combine two."""


class Box(NamedTuple):
    """A box and where its content lies."""

    name: bytes
    start: int
    stop: int


class Reference(NamedTuple):
    """That an item refers to others: ``dimg`` to its parts, ``thmb`` and ``auxl`` to the picture that it belongs to."""

    kind: bytes
    item: int
    to: tuple[int, ...]


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
    """Yield the boxes of a file that are in no other, without those of a second file behind it, such as a film."""
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
        """The boxes that are in no other."""
        self.primary = 0
        """The item that a viewer shows."""
        self.items: dict[int, bytes] = {}
        """Item -> its type, such as ``b"hvc1"`` or ``b"grid"``."""
        self.references: list[Reference] = []
        self.properties: list[Box] = []
        """Of all items, such as ``ispe``, the size of a picture."""
        self._properties_of: dict[int, list[int]] = {}
        """Item -> positions in ``properties``."""
        self.stored_bytes = 0
        """Length of all items together, as far as the file has them. Several may share the same bytes."""
        self.stored_end = 0
        """Where the last item ends."""
        for box in self._counted(file_boxes(data)):
            self.top_level.append(box)
            if box.name == b"meta":
                for child in self._children(box.start + 4, box.stop):
                    self._read_meta(child)

    def further_pictures(self) -> list[int]:
        """Return the pictures that are neither the primary one nor a part, thumbnail or auxiliary picture of one."""
        belonging = {one.item for one in self.references if one.kind in (b"thmb", b"auxl")}
        belonging |= {part for one in self.references if one.kind == b"dimg" for part in one.to}
        pictures = [item for item, kind in self.items.items() if kind not in _NO_PICTURES]
        primary = self.primary if self.primary in self.items else min(pictures, default=0)
        return [item for item in pictures if item != primary and item not in belonging]

    def decoded_pixels(self, at_most: int) -> int:
        """Return how many pixels must be decoded for the primary picture, or a number above ``at_most``.

        They are those of its parts, as often as it uses them, and of the pictures that add transparency or depth.
        """
        parts: defaultdict[int, list[int]] = defaultdict(list)
        for kind, item, to in self.references:
            if kind == b"dimg":
                parts[item] += to
        known: dict[int, int] = {}

        def pixels(item: int, depth: int = 0) -> int:
            if depth > _DEEPEST:
                return at_most + 1
            if item not in known:
                known[item] = sum(pixels(part, depth + 1) for part in parts[item]) if parts[item] else self._size(item)
            return known[item]

        added = [one.item for one in self.references if one.kind == b"auxl" and self.primary in one.to]
        return sum(pixels(item) for item in [self.primary, *added])

    def _size(self, item: int) -> int:
        for position in self._properties_of.get(item, []):
            if 0 <= position < len(self.properties) and self.properties[position].name == b"ispe":
                start = self.properties[position].start + 4
                return self._number(start, 4) * self._number(start + 4, 4)
        return 0

    def _read_meta(self, box: Box) -> None:
        version = self._number(box.start, 1)
        match box.name:
            case b"pitm":
                self.primary = self._number(box.start + 4, 4 if version else 2)
            case b"iinf":
                for entry in self._children(box.start + (8 if version else 6), box.stop):
                    wide = 4 if self._number(entry.start, 1) > 2 else 2
                    kind = entry.start + 6 + wide
                    self.items[self._number(entry.start + 4, wide)] = self._data[kind : kind + 4]
            case b"iref":
                for entry in self._children(box.start + 4, box.stop):
                    self.references.append(self._reference(entry, 4 if version else 2))
            case b"iloc":
                self._read_locations(box, version)
            case b"iprp":
                for child in self._children(box.start, box.stop):
                    if child.name == b"ipco":
                        self.properties += self._children(child.start, child.stop)
                    elif child.name == b"ipma":
                        self._read_associations(child)

    def _reference(self, box: Box, wide: int) -> Reference:
        """Read one list of references: 14496-12, section 8.11.12."""
        first = box.start + wide + 2
        count = min(self._number(box.start + wide, 2), (box.stop - first) // wide)
        self._count_references(count)
        to = tuple(self._number(first + wide * number, wide) for number in range(count))
        return Reference(box.name, self._number(box.start, wide), to)

    def _read_locations(self, box: Box, version: int) -> None:
        """Add up the lengths of all pieces of all items: 14496-12, section 8.11.3."""
        sizes = self._number(box.start + 4, 2)
        offset, length, base, index = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
        wide = 4 if version > 1 else 2
        position = box.start + 6 + wide
        while position < box.stop:
            position += wide + (2 if version else 0) + 2
            first = self._number(position, base)
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
                self.stored_bytes += min(piece, there)
                self.stored_end = max(self.stored_end, start + piece)

    def _read_associations(self, box: Box) -> None:
        """Read which item has which properties: 23008-12, section 9.3.2."""
        wide = 4 if self._number(box.start, 1) else 2
        index = 2 if self._number(box.start + 3, 1) & 1 else 1
        position = box.start + 8
        while position < box.stop:
            item, count = self._number(position, wide), self._number(position + wide, 1)
            self._count_references(1 + count)
            position += wide + 1
            # The highest bit says whether a decoder must know the property. Numbers begin at 1.
            highest = 1 << (8 * index - 1)
            numbers = [self._number(position + index * number, index) % highest for number in range(count)]
            self._properties_of[item] = [number - 1 for number in numbers]
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


def _number(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "big")

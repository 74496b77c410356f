"""Directories of TIFF files: TIFF 6.0, section 2, and BigTIFF, which widens counts and offsets. EXIF is a TIFF, too."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from preprocess_ensemble.imaging.containers import container as kinds
from preprocess_ensemble.imaging.containers.container import Container, Layout

Value: TypeAlias = "bytes | tuple[int | float, ...]"

EXIF_DIRECTORY, GPS_DIRECTORY, INTEROP_DIRECTORY = 0x8769, 0x8825, 0xA005
SUB_DIRECTORIES: Final = 330
_CLASSIC: Final = {3: "H", 4: "I", 5: "2I", 8: "h", 9: "i", 10: "2i", 11: "f", 12: "d"}
_FORMATS: Final = _CLASSIC | {13: "I", 16: "Q", 17: "q", 18: "Q"}
"""Type -> format of a value for :mod:`struct`; a rational is a pair. All other types are bytes."""
_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _CHANNELS, _EXTRA = 256, 257, 258, 262, 277, 338
_PIECES: Final = ((273, 279), (324, 325), (513, 514))
"""Offsets and lengths of strips, tiles and a JPEG thumbnail."""
_METADATA: Final = {700: kinds.XMP, 33723: kinds.IPTC, 34377: kinds.RESOURCES}
_PROFILE, _WHITE, _PRIMARIES, _TRANSFER = 34675, 318, 319, 301
_PALETTE, _SAMPLE_FORMAT, _REFERENCE_BLACK_WHITE = 320, 339, 532
_ACROSS, _DOWN = 282, 283  # pixels per unit
_SIGNED: Final = 2
_YCBCR, _PALETTE_COLOURS = 6, 3
_FULL_RANGE: Final = (0, 255, 128, 255, 128, 255)
"""Black and white of YCbCr with 8 bits in files of JPEG; Pillow reads other values as if they were these."""
_MOST_DIRECTORIES: Final = 1_000
_SMALL: Final = 2**16  # bytes that may be read of any file, some of them several times
_ALPHA: Final = (1, 2)  # ExtraSamples: associated and unassociated alpha; 0 says nothing
_COLOURS: Final = {0: ("grey", 1), 1: ("grey", 1), 2: ("RGB", 3), 3: ("RGB", 1), 5: ("CMYK", 4), 6: ("RGB", 3)}
"""PhotometricInterpretation -> colours, and how many channels they take."""


class Entry(NamedTuple):
    type: int
    values: int
    start: int
    stop: int


class Directory(NamedTuple):
    entries: dict[int, Entry]
    start: int
    stop: int


class Tiff:
    """A TIFF file, of any byte order and width. It reads what is asked for, and raises nothing for damaged files.

    Many fields may name the same bytes. So values are read up to twice the length of the file, and are then empty.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.order = "<" if data[:1] == b"I" else ">"
        self._wide, self._short = (8, 8) if 43 in data[2:4] else (4, 2)  # bytes of an offset, and of a number of fields
        self._left = 2 * len(data) + _SMALL

    @property
    def first(self) -> int:
        """Position of the first directory; 0 if there is none."""
        return self._number(self._wide, self._wide)

    def directory(self, start: int, most: int = kinds.MOST_PARTS) -> Directory:
        """Read a directory as far as the file has it, at most its first ``most`` fields."""
        wide, first, stop = self._wide, start + self._short, self._stop(start)
        whole = 4 + 2 * wide
        entries: dict[int, Entry] = {}
        for position in range(first, min(stop, first + most * whole, len(self.data) - whole + 1), whole):
            tag, kind = self._number(position, 2), self._number(position + 2, 2)
            values, at = self._number(position + 4, wide), position + 4 + wide
            length = values * struct.calcsize("<" + _FORMATS.get(kind, "s"))
            if length > wide:
                at = self._number(at, wide)
            entries.setdefault(tag, Entry(kind, values, at, at + length))
        return Directory(entries, start, stop + wide)

    def positions(self, at_most: int) -> Iterator[int]:
        """Yield where the directories of the pictures lie, in order. A chain that loops ends at the limit."""
        position = self.first
        for _ in range(at_most):
            if not position:
                return
            yield position
            position = self._number(self._stop(position), self._wide)

    def _stop(self, start: int) -> int:
        return start + self._short + self._number(start, self._short) * (4 + 2 * self._wide)

    def values(self, entry: Entry | None) -> Value:
        """Return the values of a field: bytes, or numbers (a rational is one number); empty if the file ends early."""
        if entry is None or entry.stop > len(self.data):
            return ()
        self._left -= entry.stop - entry.start
        if self._left < 0:
            return ()
        code, block = _FORMATS.get(entry.type, "s"), self.data[entry.start : entry.stop]
        if code == "s":
            return block
        count = len(block) // struct.calcsize("<" + code[-1])
        numbers = struct.unpack(f"{self.order}{count}{code[-1]}", block)
        if code[:-1]:
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            return tuple(above / below if below else math.nan for above, below in pairs)
        return numbers

    def numbers(self, directory: Directory, tag: int) -> tuple[int, ...]:
        """Return the whole numbers of a field; bytes are numbers, too."""
        found = self.values(directory.entries.get(tag))
        return tuple(int(one) for one in found if math.isfinite(one))

    def below(self, directory: Directory, tag: int, most: int = 1) -> list[Directory]:
        return [self.directory(start) for start in self.numbers(directory, tag)[:most]]

    def pixels_end(self, directory: Directory) -> int:
        """Return where the last strip, tile or thumbnail of a directory ends; 0 if it has none."""
        ends = [0]
        for offsets, lengths in _PIECES:
            ends += map(sum, zip(self.numbers(directory, offsets), self.numbers(directory, lengths), strict=False))
        return max(ends)

    def _number(self, position: int, size: int) -> int:
        block = self.data[position : position + size] if 0 <= position <= len(self.data) - size else b""
        return int.from_bytes(block, "little" if self.order == "<" else "big")


def read(data: bytes) -> Container:
    """Read a TIFF file, with the directories below those of its pictures."""
    tiff = Tiff(data)
    pages = [tiff.directory(start) for start in tiff.positions(_MOST_DIRECTORIES) if start < len(data)]
    container = Container(end=8)
    if not pages:
        return container
    first = pages[0]
    container.layout = _layout(tiff, first, len(pages))
    container.add(kinds.EXIF, data)
    across, down = (tiff.numbers(first, tag) for tag in (_ACROSS, _DOWN))
    if across != down:
        container.add(kinds.DATA, repr((across, down)).encode(), kinds.ASPECT)
    for tag, kind in _METADATA.items():
        if (entry := first.entries.get(tag)) is not None:
            container.add(kind, data[entry.start : entry.stop])
    waiting, seen = pages, {page.start for page in pages}
    for _ in range(_MOST_DIRECTORIES):
        if not waiting:
            break
        directory = waiting.pop()
        # The last of what the directory refers to may lie after its pixels.
        stops = [entry.stop for entry in directory.entries.values() if entry.stop <= len(data)]
        container.end = max(container.end, directory.stop, tiff.pixels_end(directory), *stops)
        for tag in (SUB_DIRECTORIES, EXIF_DIRECTORY, GPS_DIRECTORY, INTEROP_DIRECTORY):
            below = [at for at in tiff.numbers(directory, tag) if 0 < at < len(data) and at not in seen]
            waiting += map(tiff.directory, below[:_MOST_DIRECTORIES])
            seen.update(below)
    return container


def _layout(tiff: Tiff, directory: Directory, pages: int) -> Layout | None:
    photometric = (tiff.numbers(directory, _PHOTOMETRIC) or (2,))[0]
    colours, needed = _COLOURS.get(photometric, ("", 1))
    channels = (tiff.numbers(directory, _CHANNELS) or (1,))[0]
    profile = tiff.values(directory.entries.get(_PROFILE))
    if not colours or (_TRANSFER in directory.entries and not profile):
        return None
    if _SIGNED in tiff.numbers(directory, _SAMPLE_FORMAT):
        return None
    if (tiff.numbers(directory, _REFERENCE_BLACK_WHITE) or _FULL_RANGE) != _FULL_RANGE and photometric == _YCBCR:
        return None
    purposes = tiff.numbers(directory, _EXTRA)
    extra = channels - needed
    alpha = sum(purpose in _ALPHA for purpose in purposes[:extra])
    measured = (*tiff.values(directory.entries.get(_WHITE)), *tiff.values(directory.entries.get(_PRIMARIES)))
    if len(measured) not in (0, 8) and not profile:
        return None
    depth = max(tiff.numbers(directory, _BITS), default=1)
    if photometric == _PALETTE_COLOURS and not _are_of_8_bits(tiff.numbers(directory, _PALETTE)):
        depth = 16
    (width, *_), (height, *_) = (tiff.numbers(directory, tag) or (0,) for tag in (_WIDTH, _HEIGHT))
    return Layout(
        size=(width, height),
        colours=colours,
        depth=depth,
        has_alpha=alpha > 0,
        further_channels=max(0, extra - min(alpha, 1)),
        pages=pages,
        profile=profile if isinstance(profile, bytes) else b"",
        chromaticities=tuple(map(float, measured)) if len(measured) == 8 else (),
    )


def _are_of_8_bits(palette: tuple[int, ...]) -> bool:
    """Tell whether the 16 bits of a palette were made from 8, in one of the three ways in which programs do that."""
    is_plain = all(level < 256 for level in palette)
    return is_plain or all(level % 257 == 0 for level in palette) or all(level % 256 == 0 for level in palette)

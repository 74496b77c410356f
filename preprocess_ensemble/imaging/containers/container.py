"""The parts of an image file, whatever its format is: how its picture is stored, metadata, and unknown data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

EXIF: Final = "EXIF"  # a TIFF file of its own
XMP: Final = "XMP"
RESOURCES: Final = "resources of Photoshop"  # a resource may hold IPTC
RESOURCE_BEGINS: Final = (b"8BIM", b"PHUT", b"DCSR", b"AgHg", b"MeSa")
"""Beginnings of a resource of Photoshop, PhotoDeluxe, Lightroom and ImageReady."""
IPTC: Final = "IPTC"
TEXT: Final = "text"
COMMENT: Final = "comment"
DATA: Final = "data"
"""A small block of a known place and an unknown purpose, such as a position that GeoJP2 holds."""
ASPECT: Final = "pixel aspect ratio"  # data that says that pixels are not square

SMALL_PART: Final = 1024
"""Bytes. Data of unknown kind counts as metadata below this size, and as a part of its own from it on, because pictures
and films are larger. Programs write smaller data: a camera's settings, or a time stamp of 100 bytes (Samsung)."""
MOST_PARTS: Final = 100_000
"""Chunks, blocks or boxes that are looked at in one file; what follows them counts as data after the picture."""


class Block(NamedTuple):
    kind: str
    data: bytes
    name: str = ""


@dataclass(kw_only=True)
class Layout:
    """The storage of a picture, as far as the headers of its file describe it."""

    size: tuple[int, int] = (0, 0)  # stored width and height in pixels; known for formats that cameras write
    colours: str = "RGB"
    """``"RGB"``, ``"grey"`` or ``"CMYK"``; a picture in YCbCr or with a palette is one in RGB."""
    depth: int = 8  # most bits of a channel
    has_alpha: bool = False
    further_channels: int = 0
    """Channels beside those of colour and transparency, or of a purpose that the file does not say."""
    pages: int = 1  # frames of an animation, or pictures of a file
    is_lossless: bool = True
    colour_step: tuple[int, int] = (1, 1)
    """Pixels across and down that have one colour: more than one where a file stores colours at a part of its size."""
    profile: bytes = b""  # ICC
    codes: tuple[bytes, ...] = ()  # colour spaces by ITU-T H.273, in two bytes each: primaries and transfer
    chromaticities: tuple[float, ...] = ()  # CIE x and y of white, red, green and blue
    gamma: float | None = None  # exponent of the curve from linear light to the stored numbers


@dataclass(kw_only=True)
class Container:
    layout: Layout | None = None
    """None if the header cannot be read, or if it says something about the colours that :class:`Layout` cannot hold."""
    end: int
    blocks: list[Block] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    """Parts, before the end, of kinds that the format does not define."""
    kinds: list[bytes] = field(default_factory=list)  # names of its boxes or chunks
    thumbnails: list[tuple[int, int]] = field(default_factory=list)
    """Start and stop of smaller versions of the picture after its end."""
    has_more_pictures: bool = False

    def all(self, kind: str) -> list[Block]:
        return [block for block in self.blocks if block.kind == kind]

    def add(self, kind: str, data: bytes, name: str = "") -> None:
        self.blocks.append(Block(kind, data, name))

    def behind(self, data: bytes) -> list[bytes]:
        """Return the data after the end of the picture in its file, without thumbnails and padding."""
        pieces, end = [], self.end
        for start, stop in sorted(self.thumbnails):
            pieces.append(data[end:start].strip(b"\0"))
            end = max(end, stop)
        return list(filter(None, [*pieces, data[end:].strip(b"\0")]))


def number(data: bytes, position: int, size: int, order: str = "big") -> int:
    """Return an unsigned number; 0 beyond the end of the file."""
    return int.from_bytes(data[position : position + size], "little" if order == "little" else "big")

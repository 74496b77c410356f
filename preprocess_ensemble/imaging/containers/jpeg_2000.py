"""Boxes and codestream of JPEG 2000 files: ITU-T T.800, annexes A and I."""

from __future__ import annotations

from itertools import islice
from typing import Final

from preprocess_ensemble.imaging.containers import container as kinds
from preprocess_ensemble.imaging.containers.container import Container, Layout, number
from preprocess_ensemble.imaging.containers.iso_media import XMP_UUID, Box, boxes, file_boxes

_START: Final = b"\xff\x4f\xff\x51"
_TILE, _COMMENT, _END = 0xFF90, 0xFF64, 0xFFD9
_LATIN: Final = 1  # registration of a comment that is a text: section A.9.2
_KNOWN: Final = frozenset({b"jP  ", b"ftyp", b"jp2h", b"jp2c", b"free", b"rreq"})
_METADATA: Final = {
    XMP_UUID: kinds.XMP,
    b"JpgTiffExif->JP2": kinds.EXIF,
    bytes.fromhex("33c7a4d2b81d4723a0baf1a3e097ad38"): kinds.IPTC,
}
_GEO: Final = bytes.fromhex("b14bf8bd083d4b43a5ae8cd7d5a6ce03")
_SPACES: Final = {12: "CMYK", 16: "RGB", 17: "grey", 18: "RGB"}
"""EnumCS of T.800, table I.10, and of T.801 for CMYK -> colours, which are those of sRGB."""


def read(data: bytes) -> Container:
    """Read a JPEG 2000: a file of boxes, or a codestream alone."""
    container = Container(end=0, layout=Layout())
    if data.startswith(_START):
        container.layout = _codestream_layout(data, 0, Layout())
        container.end = _codestream_end(container, data, 0, len(data))
        return container
    for box in islice(file_boxes(data), kinds.MOST_PARTS):
        container.kinds.append(box.name)
        content = data[box.start : box.stop] if box.name != b"jp2c" else b""
        container.end = box.stop
        if box.name == b"jp2h" and container.layout is not None:
            if not all(_read_header(container.layout, data, child) for child in boxes(data, box.start, box.stop)):
                container.layout = None
        elif box.name == b"jp2c":
            if container.kinds.count(box.name) > 1:
                container.unknown.append(data[box.start : box.stop])
            elif container.layout is not None:
                container.layout = _codestream_layout(data, box.start, container.layout)
                # The length of the last box may be left out.
                container.end = _codestream_end(container, data, box.start, box.stop)
        elif box.name == b"uuid" and (kind := _METADATA.get(content[:16])):
            container.add(kind, content[16:].removeprefix(b"Exif\0\0"))
        elif box.name not in _KNOWN:
            name = f"box {box.name.decode('latin-1').strip()}"
            container.add(kinds.DATA, content, "map position" if content[:16] == _GEO else name)
        if container.end != box.stop:
            break
    return container


def _read_header(layout: Layout, data: bytes, box: Box) -> bool:
    """Read the colours from a box; return False for a palette or an unknown colour space."""
    if box.name == b"cdef":
        kinds = [number(data, place, 2) for place in range(box.start + 4, box.stop, 6)]
        layout.has_alpha = 1 in kinds or 2 in kinds
        layout.further_channels = sum(kind > 2 for kind in kinds)
    elif box.name == b"colr" and not layout.profile:
        if number(data, box.start, 1) != 1:
            layout.profile = data[box.start + 3 : box.stop]
        elif (code := number(data, box.start + 3, 4)) not in _SPACES:
            return False
        else:
            layout.colours = _SPACES[code]
    return box.name != b"pclr"


def _codestream_layout(data: bytes, start: int, layout: Layout) -> Layout | None:
    """Read the number of components of the codestream, and their bits: section A.5.1."""
    if not data.startswith(_START, start):
        return None
    count = number(data, start + 40, 2)
    layout.depth = max(((depth & 0x7F) + 1 for depth in data[start + 42 : start + 42 + 3 * count : 3]), default=8)
    colours = 4 if layout.colours == "CMYK" else 3 if count >= 3 else 1
    layout.colours = layout.colours if layout.colours == "CMYK" else "RGB" if colours == 3 else "grey"
    # Without a definition the fourth component, or the second, is taken for transparency, as Pillow does.
    others = count - colours - layout.further_channels
    layout.further_channels += max(0, others - 1)
    layout.has_alpha |= others > 0
    return layout


def _codestream_end(container: Container, data: bytes, start: int, stop: int) -> int:
    """Add the comments of a codestream; return the end of its last tile part."""
    position = start + 2
    for _ in range(kinds.MOST_PARTS):
        marker = number(data, position, 2)
        if marker == _TILE:
            length = number(data, position + 6, 4)
            if not length:  # up to the end
                return stop
            position += length
        elif marker == _END:
            return position + 2
        elif position >= stop or marker < 0xFF00:
            return stop
        else:
            length = number(data, position + 2, 2)
            if marker == _COMMENT and number(data, position + 4, 2) == _LATIN:
                container.add(kinds.COMMENT, data[position + 6 : position + 2 + length])
            position += 2 + length
    return stop

"""Blocks of GIF files: GIF89a specification."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from preprocess_ensemble.imaging.containers.container import COMMENT, MOST_PARTS, XMP, Container, Layout, number

IMAGE, _TRAILER = 0x2C, 0x3B
_COMMENT, _CONTROL, _TEXT, _APPLICATION = 0xFE, 0xF9, 0x01, 0xFF
_XMP_TRAILER: Final = 258
"""Bytes behind a packet, which is not divided into blocks: XMP specification, part 3, section 1.1.2."""
_SILENT: Final = (b"NETSCAPE2.0", b"ANIMEXTS1.0", b"ImageMagick")
"""Applications that say how often an animation runs, and, the last, a gamma that no viewer reads."""


class GifBlock(NamedTuple):
    """An extension by its label, or an image; its sub-blocks begin at ``start``."""

    label: int
    start: int
    stop: int


def blocks(data: bytes) -> Iterator[GifBlock]:
    """Yield the blocks up to the trailer, or to the end of the file."""

    def table_bytes(flags: int) -> int:
        return 3 << ((flags & 7) + 1) if flags & 0x80 else 0

    position = 13 + table_bytes(number(data, 10, 1))
    while (kind := data[position : position + 1]) in (b"\x21", b"\x2c"):
        label = number(data, position + 1, 1) if kind == b"\x21" else IMAGE
        start = position + 2 if kind == b"\x21" else position + 11 + table_bytes(number(data, position + 9, 1))
        position = start
        while (length := number(data, position, 1)) and position < len(data):
            position += length + 1
        position += 1
        yield GifBlock(label, start, position)


def content(data: bytes, start: int) -> bytes:
    """Return what the sub-blocks that begin at ``start`` hold."""
    parts = []
    while length := number(data, start, 1):
        parts.append(data[start + 1 : start + 1 + length])
        start += length + 1
    return b"".join(parts)


def read(data: bytes) -> Container:
    """Read a GIF."""
    layout = Layout(pages=0)
    container = Container(end=13, layout=layout)
    for block in islice(blocks(data), MOST_PARTS):
        container.end = block.stop
        if block.label == IMAGE:
            layout.pages += 1
        elif block.label == _COMMENT:
            container.add(COMMENT, content(data, block.start))
        elif block.label == _CONTROL:
            layout.has_alpha |= bool(number(data, block.start + 1, 1) & 1)
        elif block.label == _TEXT:
            container.add(COMMENT, content(data, block.start + 13))
        elif block.label == _APPLICATION:
            _read_application(container, layout, data, block)
    container.end += data[container.end : container.end + 1] == bytes([_TRAILER])
    return container


def _read_application(container: Container, layout: Layout, data: bytes, block: GifBlock) -> None:
    name, start = data[block.start + 1 : block.start + 12], block.start + 12
    if name == b"XMP DataXMP":
        container.add(XMP, data[start : block.stop - _XMP_TRAILER])
    elif name == b"ICCRGBG1012":
        layout.profile = content(data, start)
    elif name not in _SILENT:
        container.unknown.append(data[block.start : block.stop])

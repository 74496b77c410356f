"""Blocks of GIF files: GIF89a specification."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from preprocess_ensemble.imaging.containers.container import COMMENT, MOST_PARTS, XMP, Container, Layout, number

IMAGE, _TRAILER = 0x2C, 0x3B
_COMMENT, _CONTROL, _TEXT, _APPLICATION = 0xFE, 0xF9, 0x01, 0xFF
_XMP_TRAILER: Final = 258
"""Bytes after a packet, which is not divided into blocks: XMP specification, part 3, section 1.1.2."""
_SILENT: Final = (b"NETSCAPE2.0", b"ANIMEXTS1.0", b"ImageMagick")
"""Application blocks with the number of repetitions; the last has a gamma that no viewer reads."""


def blocks(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the label of each extension or image, and start and stop of its sub-blocks, up to the trailer."""

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
        yield label, start, position


def content(data: bytes, start: int) -> bytes:
    parts = []
    while length := number(data, start, 1):
        parts.append(data[start + 1 : start + 1 + length])
        start += length + 1
    return b"".join(parts)


def read(data: bytes) -> Container:
    layout = Layout(pages=0)
    container = Container(end=13, layout=layout)
    for label, start, stop in islice(blocks(data), MOST_PARTS):
        container.end = stop
        name = data[start + 1 : start + 12] if label == _APPLICATION else b""
        if label == IMAGE:
            layout.pages += 1
        elif label == _COMMENT:
            container.add(COMMENT, content(data, start))
        elif label == _CONTROL:
            layout.has_alpha |= bool(number(data, start + 1, 1) & 1)
        elif label == _TEXT:
            container.add(COMMENT, content(data, start + 13))
        elif name == b"XMP DataXMP":
            container.add(XMP, data[start + 12 : stop - _XMP_TRAILER])
        elif name == b"ICCRGBG1012":
            layout.profile = content(data, start + 12)
        elif label == _APPLICATION and name not in _SILENT:
            container.unknown.append(data[start:stop])
    container.end += data[container.end : container.end + 1] == bytes([_TRAILER])
    return container

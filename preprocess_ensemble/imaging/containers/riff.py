"""Chunks of WebP files: RFC 9649."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from preprocess_ensemble.imaging.containers.container import EXIF, MOST_PARTS, XMP, Container, Layout, number

_XMP: Final = (b"XMP ", b"XMP\0")  # names by the standard, and by a mistake of some programs
_KNOWN: Final = frozenset({b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF", b"ICCP", b"EXIF", *_XMP, b"C2PA"})
_ALPHA_OF_LOSSLESS: Final = 0x10  # a bit of the fifth byte of ``VP8L``: section 3.4


def end(data: bytes) -> int:
    return 8 + number(data, 4, 4, "little")


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    position = 12
    while position + 8 <= min(end(data), len(data)):
        name, start = data[position : position + 4], position + 8
        stop = start + number(data, position + 4, 4, "little")
        yield name, start, stop
        position = stop + (stop - start) % 2


def read(data: bytes) -> Container:
    layout = Layout(is_lossless=False)
    container = Container(end=12, layout=layout)
    for name, start, stop in islice(chunks(data), MOST_PARTS):
        container.end = stop + (stop - start) % 2
        container.kinds.append(name)
        if name not in _KNOWN:
            container.unknown.append(data[start - 8 : stop])
        elif name == b"EXIF":
            container.add(EXIF, data[start:stop].removeprefix(b"Exif\0\0"))
        elif name in _XMP:
            container.add(XMP, data[start:stop])
        elif name == b"ICCP":
            layout.profile = data[start:stop]
        elif name == b"ANMF":
            layout.pages = container.kinds.count(name)
        elif name in (b"VP8 ", b"VP8L"):
            layout.is_lossless = name == b"VP8L"
            layout.colour_step = (1, 1) if layout.is_lossless else (2, 2)
            layout.has_alpha |= layout.is_lossless and bool(number(data, start + 4, 1) & _ALPHA_OF_LOSSLESS)
        layout.has_alpha |= name == b"ALPH"
    container.end = min(container.end, end(data)) if container.kinds else end(data)
    return container

"""Headers of BMP (Microsoft's BITMAPV5HEADER), PPM (Netpbm's manual) and QOI (its specification), before the pixels."""

from __future__ import annotations

import re
import struct
from typing import Final

from preprocess_ensemble.imaging.containers.container import COMMENT, Container, Layout, number

_LEAST_BMP: Final = 54
_OS2_HEADER, _V4_HEADER, _V5_HEADER = 12, 108, 124
BIT_FIELDS: Final = (3, 6)
_UNCOMPRESSED: Final = (0, *BIT_FIELDS)
_CALIBRATED, _EMBEDDED, _LINKED = 0, b"DEBM", b"KNIL"  # values of bV5CSType; "sRGB" and "Win " say sRGB

_PPM_SPACE: Final = rb"(?:\s|#[^\n\r]*[\n\r])+"
_PPM_HEADER: Final = re.compile(rb"P(?:[14]|([2356]))S(\d+)S(\d+)(?(1)(?:S(\d+))?)".replace(b"S", _PPM_SPACE))
"""Pictures of one bit, P1 and P4, have no highest level."""
_PPM_COMMENT: Final = re.compile(rb"#([^\n\r]*)")
_PPM_PLAIN: Final = re.compile(rb"(?:[\d\s]++|#[^\n\r]*+)*+")
"""Possessive quantifiers: for backtracking, Python would remember each number, in 120 times the bytes of the file."""

_QOI_HEADER: Final = 14
_QOI_END: Final = bytes(7) + b"\1"
"""No encoder writes it among the pixels: it must not name one entry of its table twice in a row."""


def read_bmp(data: bytes) -> Container:
    if len(data) < _LEAST_BMP:
        return Container(end=len(data))
    pixels, size = number(data, 10, 4, "little"), number(data, 14, 4, "little")
    if size == _OS2_HEADER:
        width, height, bits = (number(data, place, 2, "little") for place in (18, 20, 24))
        compression = stored = 0
    else:
        width, height = bmp_size(data)
        bits, compression = number(data, 28, 2, "little"), number(data, 30, 4, "little")
        stored = number(data, 34, 4, "little")
    row = (width * bits + 31) // 32 * 4
    container = Container(end=pixels + (row * height if compression in _UNCOMPRESSED else stored))
    layout = container.layout = Layout()
    masks = 12 if size == _LEAST_BMP - 14 and compression in BIT_FIELDS else 0
    palette = 4 * (number(data, 46, 4, "little") or (1 << bits if bits <= 8 else 0))
    container.unknown.append(data[14 + size + masks + palette : pixels])
    # The highest bits mean nothing without a mask, but some programs write transparency there.
    layout.has_alpha = bits in (16, 32) and compression in _UNCOMPRESSED
    if size >= _V4_HEADER:
        kind = data[70:74]
        if int.from_bytes(kind, "little") == _CALIBRATED:
            container.layout = None if any(data[74:122]) else layout
        elif size >= _V5_HEADER and kind in (_EMBEDDED, _LINKED):
            start, length = 14 + number(data, 126, 4, "little"), number(data, 130, 4, "little")
            layout.profile = data[start : start + length]
            container.layout = layout if kind == _EMBEDDED else None
            container.end = max(container.end, start + length)
    return container


def bmp_size(data: bytes) -> tuple[int, int]:
    """Return width and height of a BMP, whose rows may go down or up."""
    width, height = struct.unpack_from("<ii", data, 18)
    return abs(width), abs(height)


def read_ppm(data: bytes) -> Container:
    """Read the first picture of a PPM file, which may hold several."""
    header = _PPM_HEADER.match(data)
    if header is None:
        return Container(end=len(data))
    kind, width, height, most = (int(one or 1) for one in (data[1:2], *header.groups()[1:]))
    colours = "RGB" if kind in (3, 6) else "grey"
    start = header.end()
    depth = 8 if most < 256 else 16
    if kind <= 3:
        match = _PPM_PLAIN.match(data, start)
        end = match.end() if match else start
    else:
        bits = 1 if kind == 4 else depth * (3 if colours == "RGB" else 1)
        end = start + 1 + (width * bits + 7) // 8 * height
    pages = 2 if _PPM_HEADER.match(data[end:].lstrip()[:99]) else 1
    container = Container(end=end, layout=Layout(colours=colours, depth=depth, pages=pages))
    for comment in _PPM_COMMENT.finditer(data, 0, end if kind <= 3 else start):
        container.add(COMMENT, comment[1])
    return container


def read_qoi(data: bytes) -> Container:
    channels, space = number(data, 12, 1), number(data, 13, 1)
    end = data.find(_QOI_END, _QOI_HEADER)
    end = len(data) if end < 0 else end + len(_QOI_END)
    return Container(end=end, layout=Layout(has_alpha=channels == 4, gamma=1.0 if space else None))

"""Chunks of PNG files: PNG, third edition."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Final

from preprocess_ensemble.imaging.containers import container as kinds
from preprocess_ensemble.imaging.containers.container import Container, Layout, number

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_CHECKSUM: Final = 4
_MOST_TEXT: Final = 2**23  # bytes of all texts after they were inflated, and of a profile
_KNOWN: Final = frozenset(  # chunks of the standard, C2PA's, and Apple's, which divides the pixels for threads
    b"IHDR PLTE IDAT IEND tRNS cHRM gAMA iCCP sBIT sRGB cICP tEXt zTXt iTXt bKGD hIST pHYs sPLT eXIf tIME acTL fcTL "
    b"fdAT caBX iDOT".split()
)
_DATA: Final = {  # chunk -> name. Extensions to the PNG 1.2 Specification define the first two, in sections 4.2 and 4.3
    b"pCAL": "pixel calibration",
    b"sCAL": "physical scale",
    b"sBIT": "significant bits",
    b"mDCV": "mastering display",
    b"cLLI": "content light level",
}
_PLAIN_CODES: Final = b"\0\1"  # end of a colour space in codes: RGB without a matrix, in the full range
_SRGB: Final = b"\0\1\0\r" + _PLAIN_CODES  # the codes of sRGB, for which PNG also has a chunk
_COLOURS: Final = {0: ("grey", False), 2: ("RGB", False), 3: ("RGB", False), 4: ("grey", True), 6: ("RGB", True)}
"""Colour type -> colours, and whether there is an alpha channel."""
_WITH_PALETTE: Final = 3


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and stop of the content of each chunk, up to the end of the picture or of the file."""
    position = len(SIGNATURE)
    while position + 8 <= len(data):
        name, start = data[position + 4 : position + 8], position + 8
        stop = start + number(data, position, 4)
        yield name, start, stop
        position = stop + _CHECKSUM
        if name == b"IEND":
            return


def read(data: bytes) -> Container:
    layout = _layout(data)
    container = Container(end=len(SIGNATURE), layout=layout)
    is_srgb, left = False, _MOST_TEXT
    sample_bits = 8 if number(data, 25, 1) == _WITH_PALETTE else number(data, 24, 1)
    for name, start, stop in islice(chunks(data), kinds.MOST_PARTS):
        container.end = stop + _CHECKSUM
        container.kinds.append(name)
        content = data[start:stop] if name not in (b"IDAT", b"fdAT") else b""
        if name in _DATA and set(content) != {sample_bits}:
            container.add(kinds.DATA, content, _DATA[name])
        elif name == b"pHYs" and content[:4] != content[4:8]:
            container.add(kinds.DATA, content, kinds.ASPECT)
        elif name not in _KNOWN:
            container.unknown.append(data[start - 8 : stop + _CHECKSUM])
        elif name == b"eXIf":
            container.add(kinds.EXIF, content)
        elif name in (b"tEXt", b"zTXt", b"iTXt"):
            left -= _add_text(container, name, content, left)
        elif layout is not None:
            is_srgb |= name == b"sRGB"
            _read_colours(layout, name, content)
    if layout is not None and not _choose_colours(layout, is_srgb=is_srgb):
        container.layout = None
    return container


def _layout(data: bytes) -> Layout | None:
    """Read the header: section 11.2.1."""
    colours, has_alpha = _COLOURS.get(number(data, 25, 1), ("", False))
    if not colours or data[12:16] != b"IHDR":
        return None
    size = number(data, 16, 4), number(data, 20, 4)
    return Layout(size=size, colours=colours, depth=number(data, 24, 1), has_alpha=has_alpha)


def _read_colours(layout: Layout, name: bytes, content: bytes) -> None:
    """Read sections 11.3.2 and 11.3.1: the colour space, and a level that is transparent."""
    if name == b"iCCP":
        layout.profile = _inflated(content.partition(b"\0")[2][1:], _MOST_TEXT)
    elif name == b"cICP" and len(content) >= 2:
        layout.codes = (bytes((0, content[0], 0, content[1])) + content[2:4],)
    elif name == b"gAMA":
        layout.gamma = number(content, 0, 4) / 100_000
    elif name == b"cHRM":
        layout.chromaticities = tuple(number(content, place, 4) / 100_000 for place in range(0, 32, 4))
    elif name == b"tRNS":
        layout.has_alpha = True
    elif name == b"acTL":
        layout.pages = 2  # at least; the picture itself may be none of its frames


def _choose_colours(layout: Layout, *, is_srgb: bool) -> bool:
    """Keep the colour chunk with precedence: section 4.3. Return False for codes that a layout cannot hold."""
    if layout.codes:
        layout.profile = b""
    elif is_srgb:
        layout.codes = (_SRGB,)
    if layout.codes:
        layout.gamma, layout.chromaticities = None, ()
    is_plain = all(codes[4:] == _PLAIN_CODES for codes in layout.codes)
    layout.codes = tuple(codes[:4] for codes in layout.codes)
    return is_plain


def _add_text(container: Container, kind: bytes, content: bytes, most: int) -> int:
    """Add a text of up to ``most`` bytes; return its length: section 11.3.3. ``iTXt`` is UTF-8, all else Latin-1."""
    keyword, separator, rest = content.partition(b"\0")
    if not separator:
        keyword, text = b"text", content
    elif kind == b"tEXt":
        text = rest
    elif kind == b"zTXt":
        text = _inflated(rest[1:], most) or rest[1:]
    else:
        text = [*rest[2:].split(b"\0", 2), b"", b""][2]  # after a language and a translated keyword
        text = _inflated(text, most) or text if rest[:1] == b"\1" else text
    if keyword == b"XML:com.adobe.xmp":
        container.add(kinds.XMP, text)
    else:
        text = text if kind == b"iTXt" else text.decode("latin-1").encode()
        container.add(kinds.TEXT, text, keyword.decode("latin-1"))
    return len(text)


def _inflated(data: bytes, most: int) -> bytes:
    """Inflate, up to ``most`` bytes; if none are left, return ``data``, which still differs from other data."""
    try:
        return zlib.decompressobj().decompress(data, most) if most > 0 else data
    except zlib.error:
        return b""

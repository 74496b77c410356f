"""Segments of JPEG files: ITU-T T.81, annex B.

:func:`read_header` reads what is needed to choose a decoder, and only headers that follow the standard to the letter.
All other files go to Pillow, whose reader is lenient and whose answer counts.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from preprocess_ensemble.imaging.containers.container import (
    COMMENT,
    EXIF,
    PICTURES,
    RESOURCE_BEGINS,
    RESOURCES,
    XMP,
    Container,
    Layout,
    number,
)

Sampling = tuple[tuple[int, int], ...]

_START_OF_SCAN: Final = 0xDA
_COMMENT: Final = 0xFE
_START_OF_IMAGE, _END_OF_IMAGE, _STANDALONE = 0xD8, 0xD9, 0x01
_APP1, _APP2, _APP11, _APP13 = 0xE1, 0xE2, 0xEB, 0xED
_MARKER: Final = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""Any marker but restart markers, which are among the pixel data, as are stuffed zeros."""
_MOST_MARKERS: Final = 10_000
"""A camera writes about 20, a depth map of 10 MB takes 160, a progressive file some 30 more."""

_EXIF: Final = ((b"Exif\0\0", EXIF), (b"Exif\0\xff", EXIF))
_XMP: Final = b"http://ns.adobe.com/xap/1.0/"
"""Followed by a zero, which some programs leave out."""
_XMP_EXTENSION: Final = b"http://ns.adobe.com/xmp/extension/\0"
_XMP_EXTENSION_HEADER: Final = len(_XMP_EXTENSION) + 40
"""Followed by a digest of 32 characters, total length and offset: XMP specification, part 3, section 1.1.3.1."""
_PROFILE: Final = b"ICC_PROFILE\0"
_RESOURCES: Final = b"Photoshop 3.0\0"
_OLD_RESOURCES: Final = b"Adobe_Photoshop2.5:"
_UNDESCRIBED: Final = 8
"""Bytes that follow it, which nothing describes; ExifTool skips them, too."""
_MPF: Final = b"MPF\0"
_EXTENSION, _PROFILE_PART = "extension", "profile"
_METADATA: Final = dict.fromkeys(range(0xE0, 0xF0), ()) | {
    _APP1: (*_EXIF, (_XMP, XMP), (_XMP_EXTENSION, _EXTENSION)),
    _APP2: ((_MPF, PICTURES), (_PROFILE, _PROFILE_PART)),
    _APP13: ((_RESOURCES, RESOURCES), (_OLD_RESOURCES, RESOURCES)),
    _COMMENT: ((b"", COMMENT),),
}
"""Marker -> how its segments begin, and what they hold."""
_BLOCK_BEGINS: Final = {EXIF: (b"II*\0", b"MM\0*"), RESOURCES: RESOURCE_BEGINS}
"""Of what may be longer than a segment: the next segment begins in the middle of it."""
_ADOBE: Final = b"Adobe\0"
_SILENT: Final = re.compile(rb"(?:JFIF|JFXX|ICC_PROFILE|Adobe|Adobe_CM)\0|Ducky\0\x01\0\x04.{4}\0*$", re.DOTALL)
"""Beginnings of application segments that say nothing about the photo. The last two are by Photoshop: the digest of a
profile, and the quality of a picture for the web."""
_CREDENTIALS: Final = b"jumdc2pa"
"""In the first segment of content credentials (C2PA 2.1, section 11): a box of this type in JUMBF, in APP11."""
# T.81, table B.1: these have the layout of a frame header; 0xC4, 0xC8 and 0xCC lie between them and have another.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers without a length: TEM, restart markers, start and end of image. None of them belongs in a header.
_BARE: Final = frozenset({0x00, 0x01, *range(0xD0, 0xDA), 0xFF})

_SEGMENT: Final = struct.Struct(">BBH")
"""0xFF, the marker, and the length of what follows the marker."""
_FRAME: Final = struct.Struct(">BHHB")
"""Bits per sample, height, width, number of components."""

_FREQUENCIES: Final = 64
_PROGRESSIVE: Final = 0xC2
_HUFFMAN_8_BIT: Final = frozenset({0xC0, 0xC1, _PROGRESSIVE})
"""Baseline, extended sequential and progressive. Arithmetic and lossless coding are rare; some libraries lack them."""

_MAX_SCANS: Final = 1000
_MAX_SCANNED_PIXELS: Final = 2_000_000_000
"""Scans times pixels. A scan of a few bytes takes up to 0.65 ms per megapixel to decode, so this is 1.3 s; encoders
make about ten scans, so 128 megapixels fit."""


class JpegHeader(NamedTuple):
    """The frame header and what stands before the first scan."""

    width: int
    height: int
    coding: int
    """The frame's marker, 0xC0 to 0xCF."""
    precision: int
    """Bits per sample."""
    sampling: Sampling
    """(horizontal, vertical) factor of each component."""
    metadata_bytes: int
    """Total length of application segments and comments."""
    has_app1: bool
    """Whether there is an EXIF or XMP block, which may hold an orientation."""

    @property
    def is_progressive(self) -> bool:
        """Whether a decoder must hold all frequencies of the picture before it can make a pixel."""
        return self.coding == _PROGRESSIVE

    @property
    def is_plain(self) -> bool:
        """Whether it has one or three components of 8 bits, in a coding that every JPEG library reads."""
        return self.coding in _HUFFMAN_8_BIT and self.precision == 8 and len(self.sampling) in (1, 3)


def read_header(data: bytes) -> JpegHeader | None:
    """Read up to the first scan; None for anything unusual, such as padding, a second frame or a missing part."""
    metadata_bytes = 0
    has_app1 = False
    frame: tuple[int, int, int, int, Sampling] | None = None
    position = 2
    try:
        while True:
            start, marker, length = _SEGMENT.unpack_from(data, position)
            if start != 0xFF or marker in _BARE:
                return None
            body = position + 4
            position += 2 + length
            if length < 2 or position > len(data):
                return None
            if marker == _START_OF_SCAN:
                break
            if 0xE0 <= marker <= 0xEF or marker == _COMMENT:
                metadata_bytes += length
                has_app1 |= marker == 0xE1
            elif marker in _FRAMES:
                if frame is not None:
                    return None
                precision, height, width, count = _FRAME.unpack_from(data, body)
                if length != 8 + 3 * count:
                    return None
                factors = data[body + 7 : position : 3]
                sampling = tuple([(factor >> 4, factor & 15) for factor in factors])
                frame = (width, height, marker, precision, sampling)
    except struct.error:
        return None
    if frame is None or not (frame[0] and frame[1]):
        return None
    return JpegHeader(*frame, metadata_bytes, has_app1)


def count_scans(data: bytes) -> int:
    """Return how many scans the file may have; those of a picture inside the metadata count too."""
    return data.count(b"\xff\xda")


def scans_within_limit(data: bytes, pixels: int) -> bool:
    """Whether the scans of a file of ``pixels`` (width times height) can be decoded in reasonable time."""
    scans = count_scans(data)
    return scans <= _MAX_SCANS and scans * pixels <= _MAX_SCANNED_PIXELS


def segments(data: bytes) -> tuple[list[tuple[int, int, int]], int]:
    """Return the segments of the first picture (marker, start, stop), and where that picture ends."""
    found: list[tuple[int, int, int]] = []
    position = 2
    for _ in range(_MOST_MARKERS):
        match = _MARKER.search(data, position)
        if match is None:
            return found, len(data)
        position = match.end()
        marker = data[position - 1]
        if marker == _END_OF_IMAGE:
            return found, position
        if marker not in (_START_OF_IMAGE, _STANDALONE):
            stop = position + number(data, position, 2)
            found.append((marker, position + 2, stop))
            position = max(position, stop)
    return found, position


def read(data: bytes) -> Container:
    """Read a JPEG, with what stands behind its first scan."""
    found, end = segments(data)
    container = Container(end=end, layout=_layout(data, found))
    profile: dict[int, bytes] = {}
    extensions: dict[bytes, dict[int, bytes]] = {}
    credentials: set[bytes] = set()
    for marker, start, stop in found:
        if marker not in _METADATA:
            continue
        content = data[start:stop]
        beginning, kind = next((one for one in _METADATA[marker] if content.startswith(one[0])), (b"", ""))
        if kind == _EXTENSION:
            parts = extensions.setdefault(content[len(_XMP_EXTENSION) : _XMP_EXTENSION_HEADER - 8], {})
            parts[number(content, _XMP_EXTENSION_HEADER - 4, 4)] = content[_XMP_EXTENSION_HEADER:]
        elif kind == _PROFILE_PART:
            profile[number(content, len(_PROFILE), 1)] = content[len(_PROFILE) + 2 :]
        elif kind:
            skipped = len(beginning) + (_UNDESCRIBED if beginning == _OLD_RESOURCES else 0)
            _add(container, kind, content[skipped:], start + skipped)
        elif not _SILENT.match(content):
            # Each segment of a JUMBF box begins with "JP" and the number of the box.
            credentials |= {content[:4]} if marker == _APP11 and _CREDENTIALS in content[:32] else set()
            if content[:4] not in credentials:
                container.unknown.append(content)
    for parts in extensions.values():
        container.add(XMP, b"".join(part for _, part in sorted(parts.items())), "extension")
    if container.layout is not None:
        container.layout.profile = b"".join(part for _, part in sorted(profile.items()))
    return container


def _add(container: Container, kind: str, content: bytes, start: int) -> None:
    """Add a block; a segment that does not begin as one goes on where the last of its kind ended."""
    before = container.all(kind)
    if content.startswith(_BLOCK_BEGINS.get(kind, b"")) or not before:
        container.add(kind, content, start=start)
    else:
        container.blocks[container.blocks.index(before[-1])] = before[-1]._replace(data=before[-1].data + content)


def _layout(data: bytes, found: list[tuple[int, int, int]]) -> Layout | None:
    for marker, start, _ in found:
        if marker in _FRAMES:
            colours = {1: "grey", 3: "RGB", 4: "CMYK"}.get(number(data, start + 5, 1))
            if colours == "CMYK" and not any(data.startswith(_ADOBE, place) for _, place, _ in found):
                return None  # without Adobe's segment nothing says whether 0 or 255 is the most ink
            size = number(data, start + 3, 2), number(data, start + 1, 2)
            return None if colours is None else Layout(size=size, colours=colours, depth=data[start], is_lossless=False)
    return None


def is_complete(data: bytes) -> bool:
    """Whether the scans of a JPEG, apart from the end of the last one, have all bits of all frequencies of all colours.

    Only a progressive file codes these in several scans: T.81, section G.1.1.1.
    """
    missing: dict[int, list[int]] = {}
    for marker, start, _ in segments(data)[0]:
        if marker in _FRAMES:
            colours = data[start + 6 : start + 6 + 3 * number(data, start + 5, 1) : 3]
            missing = {colour: [1] * _FREQUENCIES for colour in colours}
        elif marker == _START_OF_SCAN:
            count = number(data, start, 1)
            first, last, bits = data[start + 1 + 2 * count : start + 4 + 2 * count].ljust(3, b"\0")
            for colour in data[start + 1 : start + 1 + 2 * count : 2]:
                missing.setdefault(colour, [])[first : last + 1] = [bits & 15] * (last + 1 - first)
    return bool(missing) and not any(map(any, missing.values()))

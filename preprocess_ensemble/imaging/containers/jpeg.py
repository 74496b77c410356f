"""Segments of JPEG files: ITU-T T.81, annex B."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from preprocess_ensemble.imaging.containers import container as kinds
from preprocess_ensemble.imaging.containers.container import Container, Layout, number
from preprocess_ensemble.imaging.containers.tiff import Tiff

Sampling = tuple[tuple[int, int], ...]

START_OF_SCAN, _COMMENT = 0xDA, 0xFE
END: Final = b"\xff\xd9"
_START_OF_IMAGE, _END_OF_IMAGE, _STANDALONE = 0xD8, 0xD9, 0x01
_APP1, _APP2, _APP11, _APP13 = 0xE1, 0xE2, 0xEB, 0xED
_MARKER: Final = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""Any marker but restart markers, which are among the pixel data, as are stuffed zeros."""
_MOST_MPF_PICTURES, _MPF_ENTRIES = 1_000, 0xB002
_THUMBNAIL: Final = 0x01
"""First byte of the type of a "large thumbnail", a smaller version that most cameras append."""
_MOST_MARKERS: Final = 10_000
"""A camera writes about 20, a depth map of 10 MB takes 160, a progressive file some 30 more."""

_XMP: Final = b"http://ns.adobe.com/xap/1.0/"  # some programs leave out the zero that follows
_XMP_EXTENSION: Final = b"http://ns.adobe.com/xmp/extension/\0"
_XMP_EXTENSION_HEADER: Final = len(_XMP_EXTENSION) + 40
"""A digest of 32 characters, total length and offset follow: XMP specification, part 3, section 1.1.3.1."""
_PROFILE: Final = b"ICC_PROFILE\0"
_OLD_RESOURCES: Final = b"Adobe_Photoshop2.5:"
_UNDESCRIBED: Final = 8  # bytes that follow the beginning of old resources. ExifTool skips them, too
_EXTENSION, _PROFILE_PART, _INDEX = "extension", "profile", "index"
_METADATA: Final = dict.fromkeys(range(0xE0, 0xF0), ()) | {  # marker -> how its segments begin, and what they hold
    _APP1: ((b"Exif\0\0", kinds.EXIF), (b"Exif\0\xff", kinds.EXIF), (_XMP, kinds.XMP), (_XMP_EXTENSION, _EXTENSION)),
    _APP2: ((b"MPF\0", _INDEX), (_PROFILE, _PROFILE_PART)),
    _APP13: ((b"Photoshop 3.0\0", kinds.RESOURCES), (_OLD_RESOURCES, kinds.RESOURCES)),
    _COMMENT: ((b"", kinds.COMMENT),),
}
_BLOCK_BEGINS: Final = {kinds.EXIF: (b"II*\0", b"MM\0*"), kinds.RESOURCES: kinds.RESOURCE_BEGINS}
"""Beginnings of blocks that several segments may share; the second segment begins in the middle of the block."""
_SILENT: Final = re.compile(rb"(?:JFIF|JFXX|ICC_PROFILE|Adobe|Adobe_CM)\0|Ducky\0\x01\0\x04.{4}\0*$", re.DOTALL)
"""Beginnings of application segments that say nothing about the photo. The last two are by Photoshop: the digest of a
profile, and the quality of a picture for the web."""
_CREDENTIALS: Final = b"jumdc2pa"
"""The first segment of content credentials has a box of this type in JUMBF: C2PA 2.1, section 11."""
FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of segments that are laid out as a frame header: table B.1."""

_ROUNDED: Final = 2  # most pixels by which a program changes a side to make it even

_PROGRESSIVE: Final = 0xC2
_HUFFMAN_CODINGS: Final = frozenset({0xC0, 0xC1, _PROGRESSIVE})
"""Baseline, extended sequential and progressive. Arithmetic and lossless coding are rare; some libraries lack them."""


class JpegHeader(NamedTuple):
    """The header of a plain JPEG: one or three components of 8 bits, in a coding that every JPEG library reads."""

    width: int
    height: int
    is_progressive: bool  # a decoder then holds all frequencies before it can make a pixel
    sampling: Sampling  # (horizontal, vertical) factor of each component
    metadata_bytes: int
    has_app1: bool


def read_header(data: bytes) -> JpegHeader | None:
    """Read up to the first scan; None for a file that does not follow the standard to the letter, or is unusual."""
    metadata_bytes, has_app1, position = 0, False, 2
    frame: tuple[int, int, bool, Sampling] | None = None
    for marker, start, stop in segments(data):
        if marker == _END_OF_IMAGE or start != position + 4 or not start <= stop <= len(data):
            return None
        position = stop
        if marker == START_OF_SCAN:
            break
        if 0xE0 <= marker <= 0xEF or marker == _COMMENT:
            metadata_bytes += 2 + stop - start
            has_app1 |= marker == _APP1
        elif marker in FRAMES:
            components = number(data, start + 5, 1)
            if frame is not None or components not in (1, 3) or stop - start != 6 + 3 * components:
                return None
            if marker not in _HUFFMAN_CODINGS or data[start] != 8:
                return None
            sampling = tuple([(factor >> 4, factor & 15) for factor in data[start + 7 : stop : 3]])
            frame = (number(data, start + 3, 2), number(data, start + 1, 2), marker == _PROGRESSIVE, sampling)
    return JpegHeader(*frame, metadata_bytes, has_app1) if frame is not None and frame[0] and frame[1] else None


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and stop of each segment of the first picture; at its end, start and stop are equal."""
    position = 2
    for _ in range(_MOST_MARKERS):
        match = _MARKER.search(data, position)
        position = match.end() if match else len(data)
        marker = data[position - 1]
        if match is None or marker == _END_OF_IMAGE:
            break
        if marker not in (_START_OF_IMAGE, _STANDALONE):
            stop = position + number(data, position, 2)
            yield marker, position + 2, stop
            position = max(position, stop)
    yield _END_OF_IMAGE, position, position


def read(data: bytes) -> Container:
    """Read a JPEG, including what follows its first scan."""
    found = list(segments(data))
    container = Container(end=found[-1][1], layout=_layout(data, found))
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
        elif kind == _INDEX:
            _read_index(container, content[len(beginning) :], start + len(beginning), len(data))
        elif kind:
            skipped = len(beginning) + (_UNDESCRIBED if beginning == _OLD_RESOURCES else 0)
            _add(container, kind, content[skipped:])
        elif content.startswith(b"JFIF\0") and _changes_shape(content, container.layout):
            container.add(kinds.DATA, content[7:12], kinds.ASPECT)
        elif not _SILENT.match(content):
            # Each segment of a JUMBF box begins with "JP" and the number of the box.
            credentials |= {content[:4]} if marker == _APP11 and _CREDENTIALS in content[:32] else set()
            if content[:4] not in credentials:
                container.unknown.append(content)
    for parts in extensions.values():
        container.add(kinds.XMP, _joined(parts), "extension")
    if container.layout is not None:
        container.layout.profile = _joined(profile)
    return container


def _changes_shape(jfif: bytes, layout: Layout | None) -> bool:
    """Whether a JFIF segment stretches the picture by more than ffmpeg's ratio for a rounded side does."""
    across, down = number(jfif, 8, 2), number(jfif, 10, 2)
    short = min(layout.size) if layout else 0
    return across != down and abs(across - down) * short >= _ROUNDED * min(across, down)


def _joined(parts: dict[int, bytes]) -> bytes:
    return b"".join(part for _, part in sorted(parts.items()))


def _read_index(container: Container, index: bytes, base: int, size: int) -> None:
    """Read an index of the Multi-Picture Format (CIPA DC-007) that starts at ``base``, in a file of ``size`` bytes."""
    tiff = Tiff(index)
    field = tiff.directory(tiff.first).entries.get(_MPF_ENTRIES)
    entries = index[field.start : min(field.stop, field.start + 16 * _MOST_MPF_PICTURES)] if field else b""
    for kind, stored, offset in struct.iter_unpack(tiff.order + "III4x", entries[: len(entries) // 16 * 16]):
        start, stop = base + offset, base + offset + stored
        # The first picture has offset 0. A picture beyond the end of the file was cut off by a program.
        if offset and stop <= size:
            is_thumbnail = kind >> 16 & 0xFF == _THUMBNAIL
            container.thumbnails += [(start, stop)] if is_thumbnail else []
            container.has_more_pictures |= not is_thumbnail


def _add(container: Container, kind: str, content: bytes) -> None:
    """Add a block. A segment without the beginning of a block continues the last block of its kind."""
    before = container.all(kind)
    if content.startswith(_BLOCK_BEGINS.get(kind, b"")) or not before:
        container.add(kind, content)
    else:
        container.blocks[container.blocks.index(before[-1])] = before[-1]._replace(data=before[-1].data + content)


def _layout(data: bytes, found: list[tuple[int, int, int]]) -> Layout | None:
    for marker, start, _ in found:
        if marker in FRAMES:
            colours = {1: "grey", 3: "RGB", 4: "CMYK"}.get(number(data, start + 5, 1))
            if colours == "CMYK" and not any(data.startswith(b"Adobe\0", place) for _, place, _ in found):
                return None  # without Adobe's segment nothing says whether 0 or 255 is the most ink
            size = number(data, start + 3, 2), number(data, start + 1, 2)
            return None if colours is None else Layout(size=size, colours=colours, depth=data[start], is_lossless=False)
    return None

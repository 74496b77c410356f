"""Finds what an image file holds besides the picture that a viewer shows: films, gain maps, depth maps, more pictures.

A file with such parts is not a copy of a file that has only the picture. Nothing is decoded: the containers are parsed
in one pass and with limits, because a file may be damaged or malicious. Anything beyond a limit counts as content.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.file_types import FILM

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.iso_media import Box

GAIN_MAP: Final = "gain map"
"""How much brighter an HDR display shows each part: Ultra HDR, and Apple's HDR photos."""
DEPTH_MAP: Final = "depth map"
PICTURES: Final = "further pictures"
FRAMES: Final = "further frames"
"""Of an animation or an image sequence, or pages."""
LAYERS: Final = "layers"
SOUND: Final = "sound"
RAW_DATA: Final = "RAW data"
"""Sensor data, in a file that is compared by its preview."""
DATA: Final = "unknown data"

_LEAST_BYTES: Final = 1024
"""Data of unknown kind behind the picture, or in parts of the file that programs may add, counts as content from this
size. Cameras and programs append zeros, which are stripped before, a line break, or a time stamp in a block of about
100 bytes (Samsung). Pictures are larger."""

_MOST_MARKERS: Final = 10_000
"""In a JPEG. A camera writes about 20, a depth map of 10 MB takes 160, a progressive file some 30 more."""
_MOST_CHUNKS: Final = 100_000
"""In a PNG or WebP."""
_MOST_MPF_PICTURES: Final = 1_000

_START_OF_IMAGE, _END_OF_IMAGE, _STANDALONE = 0xD8, 0xD9, 0x01
_APP1, _APP2, _APP11 = 0xE1, 0xE2, 0xEB
_APPLICATION: Final = range(0xE0, 0xF0)
_MARKER: Final = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""Any marker of ITU-T T.81 except restart markers, which are among the pixel data, as are stuffed zeros."""

_XMP: Final = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_EXTENSION: Final = b"http://ns.adobe.com/xmp/extension/\0"
_XMP_EXTENSION_HEADER: Final = len(_XMP_EXTENSION) + 40
"""Followed by a digest of 32 characters, total length and offset: XMP specification, part 3, section 1.1.3.1."""
_MPF: Final = b"MPF\0"
_KNOWN_SEGMENTS: Final = (
    *(b"JFIF\0", b"JFXX\0", b"Exif\0", b"http://ns.adobe.com/xap/1.0/", _XMP_EXTENSION, _MPF, b"ICC_PROFILE\0"),
    *(b"Photoshop 3.0\0", b"Adobe\0", b"Ducky"),
)
"""How application segments of a JPEG begin that hold metadata, or parts that are recognised."""
_CREDENTIALS: Final = b"jumdc2pa"
"""In the first segment of content credentials (C2PA 2.1, section 11): a box of this type in JUMBF, in APP11."""
_MPF_ENTRIES: Final = 0xB002
_THUMBNAILS: Final = 0x01
"""First byte of the type of "large thumbnails" (CIPA DC-007), smaller versions of the picture that most cameras
append."""

_FILM: Final = re.compile(rb"ftyp(?!hei|hev|mif|msf|avi)")
_GAIN_MAP: Final = re.compile(rb"hdrgm:|hdrgainmap|GainMap|urn:iso:std:iso:ts:21496")
_DEPTH_MAP: Final = re.compile(rb"Semantic(?:=\"|>)Depth|DepthMap|aux:(?:depth|disparity)")
_IN_XMP: Final = ((b"GDepth:Data", DEPTH_MAP), (b"GImage:Data", PICTURES), (b"GAudio:Data", SOUND))
"""Google's formats before 2019, which put whole files into the metadata, in base64."""

_KNOWN_BOXES: Final = frozenset(
    {
        *(b"ftyp", b"meta", b"mdat", b"idat", b"free", b"skip", b"uuid", b"moov", b"mpvd"),
        *(b"JXL ", b"jxlc", b"jxlp", b"jxll", b"jxli", b"Exif", b"xml ", b"brob", b"jbrd", b"jumb", b"jhgm"),
    }
)
"""Boxes of a HEIC or AVIF, or of a JPEG XL, with pictures, metadata, or parts that are recognised."""

_KNOWN_CHUNKS: Final = frozenset(
    {
        *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"cHRM", b"gAMA", b"iCCP", b"sBIT", b"sRGB", b"cICP", b"mDCV"),
        *(b"cLLI", b"tEXt", b"zTXt", b"iTXt", b"bKGD", b"hIST", b"pHYs", b"sPLT", b"eXIf", b"tIME", b"acTL", b"fcTL"),
        *(b"fdAT", b"caBX"),
    }
)
"""Of PNG, third edition, and that of content credentials."""
_KNOWN_RIFF_CHUNKS: Final = frozenset(
    {b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF", b"ICCP", b"EXIF", b"XMP ", b"C2PA"}
)
"""Of WebP."""

_PHOTOSHOP_LAYERS: Final = 37724
"""TIFF tag ImageSourceData."""
_SUB_DIRECTORIES: Final = 330
_NEW_SUBFILE_TYPE: Final = 254
_MOST_SUB_DIRECTORIES: Final = 100


@dataclass(frozen=True, kw_only=True)
class EmbeddedParts:
    """What a file holds besides its picture; both fields are empty if there is nothing."""

    kinds: tuple[str, ...] = ()
    digest: str = ""
    """Hexadecimal; equal for files that hold the same besides their pictures."""


def embedded_parts(data: bytes) -> EmbeddedParts:
    """Find what an image file holds besides its picture. Never raises."""
    if data.startswith(b"\xff\xd8\xff"):
        return _of_jpeg(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _of_png(data)
    if data[4:8] == b"ftyp":
        return _of_iso_media(data)
    if data.startswith(b"\0\0\0\x0cJXL "):
        return _of_jpeg_xl(data)
    if data.startswith(b"\xff\x0a") and _FILM.search(data):
        return _parts(data, [FILM], b"")  # a bare codestream of JPEG XL does not say where it ends
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _of_webp(data)
    if data.startswith((b"GIF8", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return _parts(data, _frames_and_layers(data), b"")
    return EmbeddedParts()


def _parts(data: bytes, kinds: list[str], appended: bytes) -> EmbeddedParts:
    """Describe a file with ``kinds`` of parts and ``appended`` data; with kinds, the digest is of the whole file."""
    rest = appended.strip(b"\0")
    more = [FILM] if _FILM.search(rest) else [DATA] if len(rest) >= _LEAST_BYTES else []
    if not (kinds or more):
        return EmbeddedParts()
    digest = hashlib.sha256(data if kinds else rest)
    return EmbeddedParts(kinds=tuple(dict.fromkeys([*kinds, *more])), digest=digest.hexdigest()[:32])


def _of_jpeg(data: bytes) -> EmbeddedParts:
    segments, end = _jpeg_segments(data)
    xmp = b"".join(
        data[start + (_XMP_EXTENSION_HEADER if data.startswith(_XMP_EXTENSION, start) else len(_XMP)) : stop]
        for marker, start, stop in segments
        if marker == _APP1 and data.startswith((_XMP, _XMP_EXTENSION), start)
    )
    pictures = [
        picture
        for marker, start, stop in segments
        if marker == _APP2 and data.startswith(_MPF, start)
        for picture in _mpf_pictures(data[start + len(_MPF) : stop], start + len(_MPF), len(data))
    ]
    in_xmp = [kind for name, kind in _IN_XMP if name in xmp]
    appended = [piece for piece in _without_thumbnails(data, end, pictures) if piece]
    kinds = _kinds_of_appended(appended, xmp, has_pictures=any(not is_small for is_small, _, _ in pictures))
    unknown = _unknown_segments(data, segments)
    in_unknown = [DATA] if len(unknown) >= _LEAST_BYTES else []
    if not (in_xmp or kinds or in_unknown):
        return EmbeddedParts()
    held = [*(appended if kinds else ()), xmp if in_xmp else b"", unknown if in_unknown else b""]
    digest = hashlib.sha256(b"".join(held)).hexdigest()[:32]
    return EmbeddedParts(kinds=tuple(dict.fromkeys([*kinds, *in_xmp, *in_unknown])), digest=digest)


def _unknown_segments(data: bytes, segments: list[tuple[int, int, int]]) -> bytes:
    """Return what application segments of unknown kinds hold, such as the measurements of a thermal camera."""
    own = [(marker, data[start:stop]) for marker, start, stop in segments if marker in _APPLICATION]
    # Each segment of a JUMBF box begins with "JP" and the number of the box.
    boxes = tuple(body[:4] for marker, body in own if marker == _APP11 and _CREDENTIALS in body[:32])
    return b"".join(body.strip(b"\0") for _, body in own if not body.startswith((*_KNOWN_SEGMENTS, *boxes)))


def _jpeg_segments(data: bytes) -> tuple[list[tuple[int, int, int]], int]:
    """Return the segments of the first picture (marker, start, stop), and where that picture ends."""
    segments: list[tuple[int, int, int]] = []
    position = 2
    for _ in range(_MOST_MARKERS):
        found = _MARKER.search(data, position)
        if found is None:
            return segments, len(data)
        position = found.end()
        marker = data[position - 1]
        if marker == _END_OF_IMAGE:
            return segments, position
        if marker not in (_START_OF_IMAGE, _STANDALONE):
            stop = position + int.from_bytes(data[position : position + 2], "big")
            segments.append((marker, position + 2, stop))
            position = max(position, stop)
    return segments, position


def _mpf_pictures(block: bytes, base: int, size: int) -> list[tuple[bool, int, int]]:
    """Read a Multi-Picture Format block that starts at ``base``: is a thumbnail, start and stop of further pictures."""
    order = "<" if block[:2] == b"II" else ">"
    pictures = []
    with suppress(struct.error):  # the block is cut off: keep what was read
        (directory,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, directory)
        fields = (struct.unpack_from(order + "H2xII", block, directory + 2 + 12 * number) for number in range(count))
        length, offset = next(((length, offset) for tag, length, offset in fields if tag == _MPF_ENTRIES), (0, 0))
        for entry in range(min(length // 16, _MOST_MPF_PICTURES)):
            kind, stored, start = struct.unpack_from(order + "III", block, offset + 16 * entry)
            # The first picture has offset 0. A picture beyond the end of the file was cut off by a program.
            if start and base + start + stored <= size:
                pictures.append((kind >> 16 & 0xFF == _THUMBNAILS, base + start, base + start + stored))
    return pictures


def _without_thumbnails(data: bytes, end: int, pictures: list[tuple[bool, int, int]]) -> Iterator[bytes]:
    """Yield the data behind the first picture, without its thumbnails and without padding."""
    for _, start, stop in sorted(picture for picture in pictures if picture[0]):
        yield data[end:start].strip(b"\0")
        end = max(end, stop)
    yield data[end:].strip(b"\0")


def _kinds_of_appended(appended: list[bytes], xmp: bytes, *, has_pictures: bool) -> list[str]:
    kinds = [FILM] if any(map(_FILM.search, appended)) else []
    if has_pictures or any(piece.startswith(b"\xff\xd8\xff") for piece in appended):
        patterns = ((_GAIN_MAP, GAIN_MAP), (_DEPTH_MAP, DEPTH_MAP))
        maps = [kind for pattern, kind in patterns if any(map(pattern.search, (xmp, *appended)))]
        kinds += maps or [PICTURES]
    elif any(map(_DEPTH_MAP.search, appended)):
        kinds.append(DEPTH_MAP)  # in Samsung's own container
    if not kinds and sum(map(len, appended)) >= _LEAST_BYTES:
        kinds.append(DATA)
    return kinds


def _of_png(data: bytes) -> EmbeddedParts:
    # PNG, third edition, section 5.3: length, name, data and a checksum of 4 bytes.
    position, is_animated, unknown = 8, False, []
    for _ in range(_MOST_CHUNKS):
        name, start = data[position + 4 : position + 8], position
        if len(name) < 4:
            break
        is_animated |= name == b"acTL"
        position += 12 + int.from_bytes(data[position : position + 4], "big")
        if name not in _KNOWN_CHUNKS:
            unknown.append(data[start:position])
        if name == b"IEND":
            break
    return _parts(data, [FRAMES] if is_animated else [], b"".join([*unknown, data[position:]]))


def _of_webp(data: bytes) -> EmbeddedParts:
    # RFC 9649, section 2.3: name, length, data, and a zero behind an odd length.
    end = 8 + int.from_bytes(data[4:8], "little")
    position, unknown = 12, []
    for _ in range(_MOST_CHUNKS):
        if position >= min(end, len(data)):
            break
        start, size = position, int.from_bytes(data[position + 4 : position + 8], "little")
        position += 8 + size + size % 2
        if data[start : start + 4] not in _KNOWN_RIFF_CHUNKS:
            unknown.append(data[start:position])
    is_animated = data[12:16] == b"VP8X" and bool(data[20:21]) and bool(data[20] & 0x02)
    return _parts(data, [FRAMES] if is_animated else [], b"".join([*unknown, data[min(position, end) :]]))


def _of_iso_media(data: bytes) -> EmbeddedParts:
    """Describe a HEIC or AVIF file by its boxes and its items."""
    from preprocess_ensemble.imaging.iso_media import IsoMedia
    from preprocess_ensemble.imaging.limits import DecodeError

    try:
        media = IsoMedia(data)
    except DecodeError:
        return _parts(data, [DATA], b"")
    names = {box.name for box in media.top_level}
    kinds = [FRAMES] if b"moov" in names else []  # the tracks of an image sequence
    kinds += [FILM] if b"mpvd" in names else []
    for box in media.properties:
        if box.name == b"auxC":
            kinds += _kind_of_auxiliary(data[box.start + 4 : min(box.stop, box.start + 200)])
    kinds += [GAIN_MAP] if b"tmap" in media.items.values() else []
    kinds += [PICTURES] if media.further_pictures() else []
    return _parts(data, kinds, _behind_boxes(data, media.top_level))


def _of_jpeg_xl(data: bytes) -> EmbeddedParts:
    """Describe a JPEG XL file: what the JPEG holds that it was made from without loss, and what follows its boxes."""
    from preprocess_ensemble.imaging.iso_media import file_boxes
    from preprocess_ensemble.imaging.jpeg_xl import restored_jpeg

    found = list(file_boxes(data))
    kinds = [GAIN_MAP] if any(box.name == b"jhgm" for box in found) else []
    if any(box.name == b"jbrd" for box in found):
        with suppress(Exception):  # a damaged file fails to decode anyway
            kinds += _of_jpeg(restored_jpeg(data)).kinds
    return _parts(data, kinds, _behind_boxes(data, found))


def _behind_boxes(data: bytes, boxes: Sequence[Box]) -> bytes:
    """Return what belongs to no picture: boxes of unknown kinds, a further file of boxes, such as a film, or no box."""
    unknown = (data[box.start : box.stop] for box in boxes if box.name not in _KNOWN_BOXES)
    return b"".join([*unknown, data[boxes[-1].stop if boxes else 0 :]])


def _kind_of_auxiliary(urn: bytes) -> list[str]:
    name = urn.partition(b"\0")[0].lower()
    if name.endswith((b"auxid:1", b":alpha")):
        return []  # transparency is part of the picture
    if b"gainmap" in name:
        return [GAIN_MAP]
    if b"depth" in name or b"disparity" in name or name.endswith(b"auxid:2"):
        return [DEPTH_MAP]
    return [PICTURES]


def _frames_and_layers(data: bytes) -> list[str]:
    """Return the kinds of parts in a GIF or TIFF file; Pillow reads only its directories for this."""
    from PIL import Image, TiffImagePlugin

    kinds = []
    with suppress(Exception), Image.open(io.BytesIO(data)) as image:  # a damaged file fails to decode anyway
        if getattr(image, "is_animated", False):
            kinds.append(FRAMES)
        if isinstance(image, TiffImagePlugin.TiffImageFile):
            if _PHOTOSHOP_LAYERS in image.tag_v2:
                kinds.append(LAYERS)
            directories = image.tag_v2.get(_SUB_DIRECTORIES, ())
            if len(directories) > _MOST_SUB_DIRECTORIES or not all(_is_preview(data, at) for at in directories):
                kinds.append(PICTURES)
    return kinds


def _is_preview(data: bytes, directory: int) -> bool:
    """Tell whether a directory of a TIFF describes a smaller version of another picture.

    Those of a BigTIFF have a type of their own, which Pillow does not read.
    """
    order = "<" if data.startswith(b"II") else ">"
    (count,) = struct.unpack_from(order + "H", data, directory)
    entries = (struct.unpack_from(order + "HHII", data, directory + 2 + 12 * number) for number in range(count))
    return any(tag == _NEW_SUBFILE_TYPE and value & 1 for tag, _, _, value in entries)

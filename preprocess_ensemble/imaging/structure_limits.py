"""What the structure of a file says before its pixels are decoded: parts, frames and length, and limits for them.

Pillow handles the parts of a file one by one, in Python, and a part may cost a thousand times its bytes: each colour
profile of a PNG is inflated to a megabyte, each tile of a TIFF is read separately, and a thousand tags of EXIF or TIFF
may all point at the same bytes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

import PIL
from PIL import GifImagePlugin, ImageFile, TiffImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.iso_media import IsoMedia
from preprocess_ensemble.imaging.jpeg_xl import CONTAINER
from preprocess_ensemble.imaging.limits import DecodeError, check_count

MAX_READS: Final = 10_000
"""For a header. A camera's takes a few hundred; a GIF with 400 KB of XMP, in blocks of 85 bytes, takes 10,000."""

_MAX_CHUNKS: Final = 1_000
"""In a PNG, besides those with pixels. Two seconds of work if each is a colour profile made for an attack."""
_PIXEL_CHUNKS: Final = frozenset({b"IDAT", b"fcTL", b"fdAT"})
_MAX_PIXEL_CHUNKS: Final = 100_000
"""A fifth of a second if they are empty. Encoders write pieces of 8 KB and more."""

_MAX_TILES: Final = 100_000
"""Strips or tiles in a TIFF: half a second if each is one byte. 128 megapixels in tiles of 64 x 64 have 31,250."""
_TILE_TAGS: Final = frozenset({TiffImagePlugin.STRIPOFFSETS, TiffImagePlugin.TILEOFFSETS})

_PLAIN_PPM: Final = (b"P1", b"P2", b"P3")
_MAX_COMMENTS: Final = 1_000
"""In a plain-text PPM, in which each costs a copy of a megabyte: 600 KB took three seconds, and 15 MB minutes."""


_ISO_MEDIA: Final = frozenset({"AVIF", "HEIC"})
_DECODED_SHARE: Final = 3
"""Pixels that a HEIC or AVIF may make its picture of, compared with the most that a picture may have: transparency
doubles them, and the last tiles of a grid may stand out."""
_STORED_SHARE: Final = 2
"""Bytes of all its parts, compared with the file. Encoders share what is equal, such as plain tiles."""


def check_parts(name: str, data: bytes, max_pixels: int) -> None:
    """Raise :class:`DecodeError` for a file whose parts cost too much.

    These are too many parts of a PNG, TIFF, PPM, HEIC or AVIF file (LIMIT), and parts of a HEIC or AVIF with far more
    than ``max_pixels``, which its picture may be cropped from (TOO_LARGE). A HEIC or AVIF without a still picture is
    UNSUPPORTED_FORMAT.
    """
    if name == "PNG":
        pixel_chunks, others = _count_chunks(data)
        check_count(pixel_chunks, _MAX_PIXEL_CHUNKS, "PNG file", "chunks of pixels")
        check_count(others, _MAX_CHUNKS, "PNG file", "chunks besides its pixels")
    elif name == "TIFF":
        parts = max((count for tag, count in _first_directory(data) if tag in _TILE_TAGS), default=0)
        check_count(parts, _MAX_TILES, "TIFF file", "strips or tiles")
    elif name == "PPM" and data.startswith(_PLAIN_PPM):
        check_count(data.count(b"#"), _MAX_COMMENTS, "PPM file", "comments")
    elif name in _ISO_MEDIA:
        media = IsoMedia(data)
        names = {box.name for box in media.top_level}
        if b"moov" in names and b"meta" not in names:
            message = f"The {name} file is an image sequence without a still picture, which cannot be read here."
            raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message)
        check_count(media.stored_bytes, _STORED_SHARE * len(data), f"{name} file", "bytes in its parts together")
        most = _DECODED_SHARE * max_pixels
        if (pixels := media.decoded_pixels(most)) > most:
            total = f"{pixels / 1e6:,.1f} megapixels in all"
            message = f"The {name} file makes its picture of {total}; the limit is {most / 1e6:g}."
            raise DecodeError(ImageStatus.TOO_LARGE, message)


def _count_chunks(data: bytes) -> tuple[int, int]:
    """Count the chunks of pixels and the others, up to the first beyond a limit."""
    # PNG, third edition, section 5.3: length, type, data and a checksum of 4 bytes.
    pixel_chunks = others = 0
    position = 8
    while position + 8 <= len(data) and pixel_chunks <= _MAX_PIXEL_CHUNKS and others <= _MAX_CHUNKS:
        if data[position + 4 : position + 8] in _PIXEL_CHUNKS:
            pixel_chunks += 1
        else:
            others += 1
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    return pixel_chunks, others


class _TiffLayout(NamedTuple):
    """How the directories of a TIFF are stored: TIFF 6.0, section 2; BigTIFF widens count, entry and offset."""

    first_offset: int
    """Where the offset of the first directory stands."""
    offset: struct.Struct
    entries: struct.Struct
    entry: struct.Struct
    """Tag and number of values."""

    @classmethod
    def of(cls, data: bytes) -> _TiffLayout:
        order = "<" if data[:1] == b"I" else ">"
        if 43 in data[2:4]:
            return cls(8, struct.Struct(order + "Q"), struct.Struct(order + "Q"), struct.Struct(order + "HxxQ8x"))
        return cls(4, struct.Struct(order + "I"), struct.Struct(order + "H"), struct.Struct(order + "HxxI4x"))


def _first_directory(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield tag and number of values of each entry."""
    layout = _TiffLayout.of(data)
    try:
        (start,) = layout.offset.unpack_from(data, layout.first_offset)
        (entries,) = layout.entries.unpack_from(data, start)
        for number in range(min(entries, MAX_READS)):  # a header with more entries is refused
            yield layout.entry.unpack_from(data, start + layout.entries.size + number * layout.entry.size)
    except (struct.error, OverflowError):
        return  # The file ends early.


def count_frames(image: ImageFile.ImageFile, data: bytes, at_most: int) -> int:
    """Count the pictures in a file without decoding any; stop at one more than ``at_most``.

    Pillow's own ``n_frames`` parses every directory of a TIFF and every block of a GIF, however many there are.
    """
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return _count_tiff_directories(data, at_most)
    if isinstance(image, GifImagePlugin.GifImageFile):
        return _count_gif_frames(data, at_most)
    return int(getattr(image, "n_frames", 1))


def _count_tiff_directories(data: bytes, at_most: int) -> int:
    # A chain that loops runs into the limit.
    layout = _TiffLayout.of(data)
    frames = 0
    try:
        (position,) = layout.offset.unpack_from(data, layout.first_offset)
        while position and frames <= at_most:
            frames += 1
            (entries,) = layout.entries.unpack_from(data, position)
            (position,) = layout.offset.unpack_from(data, position + layout.entries.size + layout.entry.size * entries)
    except (struct.error, OverflowError):
        pass  # The chain leaves the file: only the directories counted so far can be reached.
    return max(1, frames)


def _count_gif_frames(data: bytes, at_most: int) -> int:
    # GIF89a specification, section 18 and on: a colour table has 3 * 2 ** (n + 1) bytes, if flag 7 is set.
    def table_bytes(flags: int) -> int:
        return 3 << ((flags & 7) + 1) if flags & 0x80 else 0

    frames = 0
    try:
        position = 13 + table_bytes(data[10])
        while frames <= at_most:
            if data[position] == 0x21:
                position += 2
            elif data[position] == 0x2C:
                frames += 1
                position += 11 + table_bytes(data[position + 9])
            else:
                break
            while length := data[position]:
                position += length + 1
            position += 1
    except IndexError:
        pass  # The file ends early: only the frames counted so far can be reached.
    return max(1, frames)


def structure_end(name: str, image: ImageFile.ImageFile | None, data: bytes) -> int:
    """Return the length in bytes that the file's own structure claims, or 0 for formats without such a claim.

    ``name`` is its format's, and ``image`` the opened file, or None if it could not be opened.
    """
    if name == "WebP":
        return 8 + int.from_bytes(data[4:8], "little")
    if name in _ISO_MEDIA or data.startswith(CONTAINER):
        return _iso_boxes_end(data)
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return _tiff_pixels_end(image)
    return 0


def _iso_boxes_end(data: bytes) -> int:
    # Top-level boxes of ISO/IEC 14496-12, section 4.2: a size of 1 means that 64 bits follow, 0 that no box follows.
    position = 0
    while position + 16 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        if size == 1:
            size = int.from_bytes(data[position + 8 : position + 16], "big")
        if size < 8:
            break
        position += size
    return position


def _tiff_pixels_end(image: TiffImagePlugin.TiffImageFile) -> int:
    tags = image.tag_v2
    end = 0
    for offsets, counts in (
        (TiffImagePlugin.STRIPOFFSETS, TiffImagePlugin.STRIPBYTECOUNTS),
        (TiffImagePlugin.TILEOFFSETS, TiffImagePlugin.TILEBYTECOUNTS),
    ):
        pairs = zip(_whole_numbers(tags.get(offsets)), _whole_numbers(tags.get(counts)), strict=False)
        end = max([end, *(offset + count for offset, count in pairs)])
    return end


def _whole_numbers(value: object) -> tuple[int, ...]:
    items = value if isinstance(value, tuple) else (value,)
    return tuple(item for item in items if isinstance(item, int))


class TagReader:
    """Reads a file with a directory of tags, at most twice its length in all.

    Beyond that, ``read`` raises ``OSError``. Pillow then stops reading tags and keeps those it has.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self.seek, self.tell = source.seek, source.tell
        self._read = source.read
        start = source.tell()
        self._left = 2 * source.seek(0, io.SEEK_END)
        source.seek(start)

    def read(self, size: int = -1, /) -> bytes:
        """Read as the source does. Raises ``OSError`` once twice its length has been read."""
        chunk = self._read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise OSError("The tags claim more bytes than the file has.")
        return chunk


def patch_pillow_tags() -> None:
    """Make Pillow before 13 stop at tags that together claim more bytes than the file has, as Pillow 13 does itself.

    Without this limit, 1 MB of TIFF, or of EXIF in any format, took up to 64 GB: all tags may point at the same bytes,
    and each gets a copy. Some formats read their EXIF while the file is opened, so the limit cannot be set anywhere
    else.
    """
    if int(PIL.__version__.partition(".")[0]) >= 13:
        return
    directory: Any = TiffImagePlugin.ImageFileDirectory_v2
    load = directory.load
    directory.load = lambda self, fp: load(self, TagReader(fp))

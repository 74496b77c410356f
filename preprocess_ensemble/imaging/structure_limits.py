"""Limits for what Pillow handles part by part, in Python, before or after the pixels.

A part may cost a thousand times its bytes: each colour profile of a PNG is inflated to a megabyte, each tile of a TIFF
is read anew, and what a tag of EXIF or TIFF says may lie where a thousand other tags say that theirs lies.
"""

from __future__ import annotations

import io
import struct
from typing import IO, TYPE_CHECKING, Any, Final

import PIL
from PIL import TiffImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.limits import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("TagReader", "bound_tags", "check_parts", "check_reads")

_MAX_READS: Final = 10_000
"""Of a header. A camera's takes a few hundred; a GIF with 400 KB of XMP, which lies in blocks of 85 bytes, so many."""

_MAX_CHUNKS: Final = 1_000
"""Of a PNG, other than pixels. Two seconds of work if each is a colour profile made for that."""
_PIXEL_CHUNKS: Final = frozenset({b"IDAT", b"fcTL", b"fdAT"})

_MAX_TILES: Final = 100_000
"""Strips or tiles of a TIFF: half a second where each is one byte. 128 megapixels in tiles of 64 x 64 have 31,250."""
_TILE_TAGS: Final = frozenset({TiffImagePlugin.STRIPOFFSETS, TiffImagePlugin.TILEOFFSETS})


_PLAIN_PPM: Final = (b"P1", b"P2", b"P3")
_MAX_COMMENTS: Final = 1_000
"""Of a PPM in text, where each costs a copy of a megabyte: 600 KB of comments took three seconds, and 15 MB minutes."""


def check_parts(name: str, data: bytes) -> None:
    """Raise :class:`DecodeError` (LIMIT) for a PNG, TIFF or PPM file of too many parts."""
    if name == "PNG":
        _check_count(_chunks(data), _MAX_CHUNKS, "PNG file", "chunks besides its pixels")
    elif name == "TIFF":
        _check_count(_tiles(data), _MAX_TILES, "TIFF file", "strips or tiles")
    elif name == "PPM" and data.startswith(_PLAIN_PPM):
        _check_count(data.count(b"#"), _MAX_COMMENTS, "PPM file", "comments")


def check_reads(reads: int, read_bytes: int, max_bytes: int) -> None:
    """Raise :class:`DecodeError` (LIMIT) for a header that took too many reads, or more bytes than ``max_bytes``."""
    _check_count(reads, _MAX_READS, "image's header", "parts")
    _check_count(read_bytes, max_bytes, "image's header", "bytes")


def _check_count(count: int, limit: int, whole: str, parts: str) -> None:
    if count > limit:
        raise DecodeError(ImageStatus.LIMIT, f"The {whole} has more than {limit:,} {parts}, which is the limit.")


def _chunks(data: bytes) -> int:
    # PNG, third edition, section 5.3: length, type, data and a checksum of 4 bytes.
    count = 0
    position = 8
    while position + 8 <= len(data) and count <= _MAX_CHUNKS:
        count += data[position + 4 : position + 8] not in _PIXEL_CHUNKS
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    return count


def _tiles(data: bytes) -> int:
    return max((count for tag, count in _first_directory(data) if tag in _TILE_TAGS), default=0)


def _first_directory(data: bytes) -> Iterator[tuple[int, int]]:
    # Tag and number of values of each entry: TIFF 6.0, section 2, and BigTIFF.
    order = "<" if data[:1] == b"I" else ">"
    big = 43 in data[2:4]
    try:
        (start,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
        (entries,) = struct.unpack_from(order + ("Q" if big else "H"), data, start)
        entry = struct.Struct(order + ("HxxQ8x" if big else "HxxI4x"))
        first = start + (8 if big else 2)
        for number in range(min(entries, _MAX_READS)):  # with more of them its header is refused
            yield entry.unpack_from(data, first + number * entry.size)
    except (struct.error, OverflowError):
        return  # The file ends early; what was read so far is what there is.


class TagReader:
    """A directory of tags and what lies around it, of which no more can be read than twice what there is.

    ``OSError`` beyond that, which ends Pillow's reading of the tags; those it has are kept.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self.seek, self.tell = source.seek, source.tell
        self._read = source.read
        start = source.tell()
        self._left = 2 * source.seek(0, io.SEEK_END)
        source.seek(start)

    def read(self, size: int = -1, /) -> bytes:
        """As of the source."""
        chunk = self._read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise OSError("The tags claim more bytes than there are.")
        return chunk


def bound_tags() -> None:
    """Have Pillow before 13 stop at tags that claim more bytes together than there are, as 13 does by itself.

    Before, 1 MB of TIFF, or of EXIF in any format, took up to 64 GB: all tags may name the same bytes, and each gets a
    copy. Some formats' EXIF is read as the file is opened, so there is no other place to stop it. Pillow 13 needs
    Python 3.11, and Triton 24.10 has 3.10.
    """
    if int(PIL.__version__.partition(".")[0]) >= 13:
        return
    directory: Any = TiffImagePlugin.ImageFileDirectory_v2
    load = directory.load
    directory.load = lambda self, fp: load(self, TagReader(fp))

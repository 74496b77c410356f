"""Changes to Pillow's reader of tags in this process: a limit for their bytes, and big-endian BigTIFF."""

from __future__ import annotations

import io
import struct
from contextlib import suppress
from typing import IO, Any, Final

import PIL
from PIL import TiffImagePlugin

_BIG_TIFF_OFFSET: Final = 8
"""Position of the offset of a BigTIFF's first directory; a directory cannot begin there."""


class TagReader:
    """Reads the tags of a file: in all, at most twice as many bytes as the file has."""

    def __init__(self, source: IO[bytes]) -> None:
        self.seek, self.tell, self._read = source.seek, source.tell, source.read
        start = source.tell()
        self._left = 2 * source.seek(0, io.SEEK_END)
        source.seek(start)

    def read(self, size: int = -1, /) -> bytes:
        """Read, or raise ``OSError`` beyond the limit: Pillow then keeps the tags that it has read."""
        chunk = self._read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise OSError("The tags claim more bytes than the file has.")
        return chunk


def patch_pillow_tags() -> None:
    """Make Pillow before 13 stop at tags that together claim more bytes than the file has, as Pillow 13 does itself.

    Without this limit, 1 MB of TIFF, or of EXIF in any format, took up to 64 GB: all tags may point at the same bytes,
    and each gets a copy. The limit has to be set here, because some formats read their EXIF while the file is opened.
    """
    if int(PIL.__version__.partition(".")[0]) >= 13:
        return
    directory: Any = TiffImagePlugin.ImageFileDirectory_v2
    load = directory.load
    directory.load = lambda self, fp: load(self, TagReader(fp))


def patch_pillow_big_tiff() -> None:
    """Make Pillow read big-endian BigTIFF, if it cannot.

    Pillow looks for the number of BigTIFF, 43, in the third byte of a file; in big-endian order it is the fourth byte.
    Pillow then reads only 8 bytes of the header, so the patched directory reads its own position.
    """
    directory: Any = TiffImagePlugin.ImageFileDirectory_v2
    magic = b"MM\0+"
    with suppress(struct.error):
        directory(magic + bytes(12))
        return
    start, load = directory.__init__, directory.load

    def start_directory(self: Any, ifh: bytes = b"II*\0\0\0\0\0", *arguments: Any, **named: Any) -> None:
        if not ifh.startswith(magic):
            start(self, ifh, *arguments, **named)
            return
        start(self, ifh[:8], *arguments, **named)
        self._bigtiff, self.next = True, _BIG_TIFF_OFFSET

    def load_directory(self: Any, fp: IO[bytes]) -> None:
        if self._bigtiff and self.prefix == magic[:2] and fp.tell() == _BIG_TIFF_OFFSET:
            fp.seek(struct.unpack(">Q", fp.read(8))[0])
        load(self, fp)

    directory.__init__, directory.load = start_directory, load_directory

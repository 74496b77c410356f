"""Which image formats are read, how a file is told from its first bytes, and what its structure says before decoding.

An explicit allow list: raster formats that keep all they show in the one file. Left out on purpose, though Pillow opens
them: EPS and WMF (run an interpreter), stubs for foreign libraries (BUFR, GRIB, HDF5), containers whose inner pictures
escape a check of the header (ICO, ICNS), formats without a signature (TGA, PCD), which would swallow any text file, and
layered or texture formats that no camera or web page makes (PSD, DDS, BLP). Each decoder is attack surface.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    ImageFile,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    QoiImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
    features,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("FORMATS", "ImageFormat", "count_frames", "identify", "structure_end")

_HEAD_BYTES: Final = 512


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """One format; ``opener`` is None where it is known by its signature only."""

    name: str
    signature: re.Pattern[bytes]
    opener: Callable[[IO[bytes]], ImageFile.ImageFile] | None = None
    pillow_feature: str | None = None
    """The optional part of Pillow that reads it."""

    @property
    def readable(self) -> bool:
        """Whether this installation of Pillow can open it."""
        return self.opener is not None and (self.pillow_feature is None or bool(features.check(self.pillow_feature)))


def _readable(
    name: str, signature: bytes, opener: Callable[[IO[bytes]], ImageFile.ImageFile], pillow_feature: str | None = None
) -> ImageFormat:
    return ImageFormat(
        name=name, signature=re.compile(signature, re.DOTALL), opener=opener, pillow_feature=pillow_feature
    )


def _known(name: str, signature: bytes) -> ImageFormat:
    return ImageFormat(name=name, signature=re.compile(signature, re.DOTALL))


# The plugins' classes are called directly: `Image.open` would warn or raise about the number of pixels before the size
# is known here, and it would split a multi-picture JPEG, of which only the first picture is wanted.
# Order matters among the ISO media brands: AVIF and HEIC may both call themselves "mif1".
FORMATS: Final[tuple[ImageFormat, ...]] = (
    _known("JPEG-LS", rb"\xff\xd8\xff\xf7"),
    _readable("JPEG", rb"\xff\xd8\xff", JpegImagePlugin.JpegImageFile),
    _readable("PNG", rb"\x89PNG\r\n\x1a\n", PngImagePlugin.PngImageFile),
    _readable("WebP", rb"RIFF.{4}WEBP", WebPImagePlugin.WebPImageFile, "webp"),
    _readable("GIF", rb"GIF8[79]a", GifImagePlugin.GifImageFile),
    _known("Canon CR2 raw", rb"II\*\0.{4}CR\x02"),
    _readable("TIFF", rb"II[*+]\0|MM\0[*+]", TiffImagePlugin.TiffImageFile),
    _readable("BMP", rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0", BmpImagePlugin.BmpImageFile),
    _readable(
        "AVIF",
        rb".{4}ftyp(?:avif|avis|(?:mif1|msf1|miaf).{4}(?:.{4}){0,12}?avif)",
        AvifImagePlugin.AvifImageFile,
        "avif",
    ),
    _readable(
        "JPEG 2000", rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n", Jpeg2KImagePlugin.Jpeg2KImageFile, "jpg_2000"
    ),
    _readable("PPM", rb"P[1-6]\s", PpmImagePlugin.PpmImageFile),
    _readable("QOI", rb"qoif", QoiImagePlugin.QoiImageFile),
    _known("HEIC", rb".{4}ftyp(?:hei[cmsx]|hev[cmsx]|mif1|msf1|miaf)"),
    _known("Canon CR3 raw", rb".{4}ftypcrx "),
    _known("video (MP4 or QuickTime)", rb".{4}ftyp"),
    _known("JPEG XL", rb"\xff\x0a|\0\0\0\x0cJXL \r\n\x87\n"),
    _known("Photoshop PSD", rb"8BPS"),
    _known("PDF", rb"%PDF-"),
    _known("PostScript", rb"%!PS|\xc5\xd0\xd3\xc6"),
    _known("SVG", rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml.*?)?<svg[\s>]"),
    _known("ICO", rb"\0\0[\x01\x02]\0[^\0]\0"),
    _known("ICNS", rb"icns"),
    _known("DDS", rb"DDS "),
    _known("OpenEXR", rb"v/1\x01"),
    _known("Radiance HDR", rb"#\?RADIANCE|#\?RGBE"),
    _known("Fujifilm RAF raw", rb"FUJIFILMCCD-RAW"),
    _known("GIMP XCF", rb"gimp xcf"),
    _known("FITS", rb"SIMPLE  ="),
    _known("PCX", rb"\x0a[\0\x02-\x05]\x01[\x01\x02\x04\x08]"),
    _known("SGI", rb"\x01\xda[\0\x01][\x01\x02]"),
    _known("Windows metafile", rb"\xd7\xcd\xc6\x9a\0\0|\x01\0\0\0.{36} EMF"),
    _known("video (Matroska or WebM)", rb"\x1a\x45\xdf\xa3"),
)


def identify(data: bytes) -> ImageFormat | None:
    """The format that the first bytes belong to, or None."""
    head = data[:_HEAD_BYTES]
    return next((known for known in FORMATS if known.signature.match(head)), None)


def count_frames(image: ImageFile.ImageFile, data: bytes, at_most: int) -> int:
    """How many pictures the file holds, without decoding any; counting stops one past `at_most`.

    Pillow's own ``n_frames`` parses every directory of a TIFF and every block of a GIF, however many there are.
    """
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return _count_tiff_directories(data, at_most)
    if isinstance(image, GifImagePlugin.GifImageFile):
        return _count_gif_frames(data, at_most)
    return int(getattr(image, "n_frames", 1))


def _count_tiff_directories(data: bytes, at_most: int) -> int:
    # TIFF 6.0, section 2; BigTIFF widens count, entry and offset. A chain that loops runs into the limit.
    order = "<" if data[:1] == b"I" else ">"
    big = 43 in data[2:4]
    count_format, entry_bytes, offset_format = (order + "Q", 20, order + "Q") if big else (order + "H", 12, order + "I")
    frames = 0
    try:
        (position,) = struct.unpack_from(offset_format, data, 8 if big else 4)
        while position and frames <= at_most:
            frames += 1
            (entries,) = struct.unpack_from(count_format, data, position)
            (position,) = struct.unpack_from(
                offset_format, data, position + struct.calcsize(count_format) + entry_bytes * entries
            )
    except struct.error:
        pass  # The chain leaves the file; what was counted so far is what can be reached.
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
        pass  # The file ends early; what was counted so far is what can be reached.
    return max(1, frames)


def structure_end(image_format: ImageFormat, image: ImageFile.ImageFile | None, data: bytes) -> int:
    """Where the file's own structure says that it ends, in bytes; 0 for formats that do not say.

    ``image`` is the opened file, or None where it could not be opened.
    """
    if image_format.name == "WebP":
        return 8 + int.from_bytes(data[4:8], "little")
    if image_format.name == "AVIF":
        return _iso_boxes_end(data)
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return _tiff_pixels_end(image)
    return 0


def _iso_boxes_end(data: bytes) -> int:
    # Top-level boxes of ISO/IEC 14496-12, section 4.2: a size of 1 means that 64 bits follow, 0 "up to the end".
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

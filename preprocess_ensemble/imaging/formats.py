"""The image formats that are read, and the first bytes of their files.

This is an allow list of raster formats that keep the whole picture in one file. Each decoder is attack surface, so
these formats are left out although Pillow opens them:

- EPS and WMF, which run an interpreter;
- stubs for foreign libraries (BUFR, GRIB, HDF5);
- containers whose inner pictures escape a check of the header (ICO, ICNS);
- formats without a signature (TGA, PCD), which would accept any text file;
- layered or texture formats, which cameras and web pages do not make (PSD, DDS, BLP).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from io import BytesIO
from typing import IO, Final, NamedTuple

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
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

from preprocess_ensemble.errors import pip_install
from preprocess_ensemble.imaging.containers.avif_repairs import repaired
from preprocess_ensemble.imaging.jpeg_xl import JxlFile

_Opener = Callable[[IO[bytes]], ImageFile.ImageFile]


class ImageFormat(NamedTuple):
    """One format; ``opener`` is None if the format is recognised but not read."""

    name: str
    signature: bytes  # pattern of the first bytes; a dot is any byte
    opener: _Opener | None = None
    feature: str | None = None  # optional part of Pillow that reads the format
    package: str | None = None  # package of the extra ``phone`` that reads the format

    @property
    def readable(self) -> bool:
        """Whether this installation can open files of the format. A package is found without importing it."""
        if self.package is not None:
            return find_spec(self.package) is not None
        return self.opener is not None and (self.feature is None or bool(features.check(self.feature)))

    @property
    def has_own_threads(self) -> bool:
        """Whether the decoder starts its own threads, so that the time of the calling thread says nothing.

        libde265 starts a thread for each HEIC picture, whatever the limit. dav1d starts none if its limit is one.
        """
        return self.name == "HEIC" or (self.name == "AVIF" and AvifImagePlugin.DEFAULT_MAX_THREADS != 1)

    @property
    def refusal(self) -> str:
        remedy = f": {pip_install('phone')}" if self.package else ""
        return f"The file is of format {self.name}, which cannot be read here{remedy}."


def _open_heif(source: IO[bytes]) -> ImageFile.ImageFile:
    from pillow_heif import HeifImageFile

    opener: _Opener = HeifImageFile
    return opener(source)


def _open_avif(source: IO[bytes]) -> ImageFile.ImageFile:
    return AvifImagePlugin.AvifImageFile(BytesIO(repaired(source.read())))


# Call the plugins' classes directly. `Image.open` would warn or raise about the number of pixels before this code has
# the size. It would also split a multi-picture JPEG, from which only the first picture is needed.
# Order matters among the ISO media brands: AVIF and HEIC files may both have the brand "mif1".
FORMATS: Final[tuple[ImageFormat, ...]] = (
    ImageFormat("JPEG-LS", rb"\xff\xd8\xff\xf7"),
    ImageFormat("JPEG", rb"\xff\xd8\xff", JpegImagePlugin.JpegImageFile),
    ImageFormat("PNG", rb"\x89PNG\r\n\x1a\n", PngImagePlugin.PngImageFile),
    ImageFormat("WebP", rb"RIFF.{4}WEBP", WebPImagePlugin.WebPImageFile, feature="webp"),
    ImageFormat("GIF", rb"GIF8[79]a", GifImagePlugin.GifImageFile),
    ImageFormat("Canon CR2 raw", rb"II\*\0.{4}CR\x02"),
    ImageFormat("TIFF", rb"II[*+]\0|MM\0[*+]", TiffImagePlugin.TiffImageFile),
    ImageFormat("BMP", rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0", BmpImagePlugin.BmpImageFile),
    ImageFormat("AVIF", rb".{4}ftyp(?:avi[fs]|(?:mif1|msf1|miaf).{4}(?:.{4}){0,12}?avif)", _open_avif, feature="avif"),
    ImageFormat(
        "JPEG 2000", rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n", Jpeg2KImagePlugin.Jpeg2KImageFile,
        feature="jpg_2000",
    ),
    ImageFormat("PPM", rb"P[1-6]\s", PpmImagePlugin.PpmImageFile),
    ImageFormat("QOI", rb"qoif", QoiImagePlugin.QoiImageFile),
    ImageFormat("HEIC", rb".{4}ftyp(?:hei[cmsx]|hev[cmsx]|mif1|mif3heic|msf1|miaf)", _open_heif, package="pillow_heif"),
    ImageFormat("Canon CR3 raw", rb".{4}ftypcrx "),
    ImageFormat("video (MP4 or QuickTime)", rb".{4}ftyp"),
    ImageFormat("JPEG XL", rb"\xff\x0a|\0\0\0\x0cJXL \r\n\x87\n", JxlFile, package="pillow_jxl"),
    ImageFormat("Photoshop PSD", rb"8BPS"),
    ImageFormat("PDF", rb"%PDF-"),
    ImageFormat("PostScript", rb"%!PS|\xc5\xd0\xd3\xc6"),
    ImageFormat("SVG", rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml.*?)?<svg[\s>]"),
    ImageFormat("ICO", rb"\0\0[\x01\x02]\0[^\0]\0"),
    ImageFormat("ICNS", rb"icns"),
    ImageFormat("DDS", rb"DDS "),
    ImageFormat("OpenEXR", rb"v/1\x01"),
    ImageFormat("Radiance HDR", rb"#\?RADIANCE|#\?RGBE"),
    ImageFormat("Fujifilm RAF raw", rb"FUJIFILMCCD-RAW"),
    ImageFormat("GIMP XCF", rb"gimp xcf"),
    ImageFormat("FITS", rb"SIMPLE  ="),
    ImageFormat("PCX", rb"\x0a[\0\x02-\x05]\x01[\x01\x02\x04\x08]"),
    ImageFormat("SGI", rb"\x01\xda[\0\x01][\x01\x02]"),
    ImageFormat("Windows metafile", rb"\xd7\xcd\xc6\x9a\0\0|\x01\0\0\0.{36} EMF"),
    ImageFormat("video (Matroska or WebM)", rb"\x1a\x45\xdf\xa3"),
)  # fmt: skip


def identify(data: bytes) -> ImageFormat | None:
    head = data[:512]
    return next((known for known in FORMATS if re.match(known.signature, head, re.DOTALL)), None)


def outdated_refusals() -> set[str]:
    """Return the beginnings of refusals of formats that can be read by now, because a package was installed."""
    return {known.refusal.partition(":")[0] for known in FORMATS if known.readable}


def limit_decoder_threads() -> None:
    """Make the decoders of this process use one thread for an image instead of one for each core."""
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    if find_spec("pillow_heif") is not None:
        from pillow_heif import options

        options.DECODE_THREADS = 1


def open_image(data: bytes) -> ImageFile.ImageFile:
    """Open a file within the limits, like :func:`PIL.Image.open`; also formats that only the openers here read."""
    image_format = identify(data)
    if image_format and image_format.opener and (image_format.feature or image_format.package):
        return image_format.opener(BytesIO(data))
    return Image.open(BytesIO(data))

"""Decoding with Pillow alone: the reference for every format, and the judge of every file that is odd."""

from __future__ import annotations

import io
import re
import struct
import sys
import threading
import zlib
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
from PIL import ExifTags, Image, ImageFile, JpegImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.formats import count_frames, structure_end
from preprocess_ensemble.imaging.jpeg_header import count_scans, may_have_scans
from preprocess_ensemble.imaging.limits import DecodeError
from preprocess_ensemble.imaging.orientation import SCALE_INFO, ScaleInfo, apply_transpose, transpose_for
from preprocess_ensemble.imaging.structure_limits import bound_tags, check_parts, check_reads

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.formats import ImageFormat
    from preprocess_ensemble.imaging.limits import DecodeLimits

__all__ = ("BAD_FILE", "decode_with_pillow", "large_image_lock", "orientation_of_jpeg")

_JPEG_END: Final = b"\xff\xd9"

_FEW_BYTES: Final = 16
"""Smaller than any block that a pixel reader asks for, larger than any field of a header."""

_ANIMATED: Final = frozenset({"WebP", "AVIF"})
_MAX_ANIMATED_PIXELS: Final = 32_000_000
"""Their decoders hold the canvas several times, 16 bytes a pixel in all, and a file of 4 KB may claim any canvas."""

_MAX_SLOW_PIXELS: Final = 1_000_000
"""For variants that Pillow decodes in Python, at a microsecond or more a pixel and with the GIL held."""

_RLE_BYTES_A_PIXEL: Final = 3
_RLE_BYTES: Final = 65_536
"""Of a BMP in runs. Runs of a single pixel take two bytes each; the rest is for header, palette and ends of lines."""

# What Pillow's readers raise when a file contradicts itself; anything else is a defect, theirs or ours.
BAD_FILE: Final = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
    EOFError,
    struct.error,
    zlib.error,
)

bound_tags()

_LARGE_PIXELS: Final = 32_000_000
"""More than most cameras deliver; 0.4 GB with alpha, which is the most that each thread takes at one time."""
_large_image_lock: Final = threading.Lock()

# Pillow has no exception class of its own for a variant that it cannot read.
_UNSUPPORTED_VARIANT: Final = re.compile(
    r"unsupported|not supported|unknown pixel mode|unknown data organization|cannot handle|unrecogni[sz]ed image mode",
    re.IGNORECASE,
)


def large_image_lock(pixels: int) -> AbstractContextManager[object]:
    """Return a lock to hold while an image of ``pixels`` is decoded, so that large ones are decoded one at a time.

    A batch of large images then needs the memory of one. Smaller images get a context manager that does nothing.
    """
    return _large_image_lock if pixels > _LARGE_PIXELS else nullcontext()


def decode_with_pillow(data: bytes, image_format: ImageFormat, limits: DecodeLimits, *, scale: int = 1) -> Image.Image:
    """Decode the first picture and turn it upright; a JPEG at 1/``scale`` (1, 2, 4 or 8).

    Returns mode L, RGB, CMYK or YCbCr. Raises :class:`DecodeError`, and whatever is a defect.
    """
    check_parts(image_format.name, data)
    is_jpeg = image_format.name == "JPEG"
    source = _Source(data + _JPEG_END if limits.allow_truncated and is_jpeg else data)
    if is_jpeg:
        # Pillow joins the segments of EXIF by copying all that came before for each. The metadata's own limit does not
        # count what is of no use here, such as previews, so it is not what refuses them.
        source.max_header_bytes = 2 * limits.max_metadata_bytes + 2**20
    image = _open(image_format, source)
    _check_header(image, image_format, data, limits)
    pixels = image.width * image.height
    if scale > 1:
        _draft(image, scale)
        # A progressive file is held in memory as a whole, at whatever scale.
        pixels = pixels if "progressive" in image.info else image.width * image.height
    with large_image_lock(pixels):
        _load(image, image_format, source, allow_truncated=limits.allow_truncated)
        return _to_plain_mode(apply_transpose(image, _stored_turn(image)), image_format)


def _stored_turn(image: Image.Image) -> Image.Transpose | None:
    """What `ImageOps.exif_transpose` would do to ``image``, except that a broken EXIF block leaves it as it is."""
    try:
        return transpose_for(image.getexif().get(ExifTags.Base.Orientation))
    except BAD_FILE:
        return None


def orientation_of_jpeg(data: bytes) -> Image.Transpose | None:
    """How to turn a JPEG upright, by its header; raises one of :data:`BAD_FILE` where Pillow cannot open it."""
    with JpegImagePlugin.JpegImageFile(_Source(data)) as image:
        return _stored_turn(image)


def _draft(image: ImageFile.ImageFile, scale: int) -> None:
    """Let libjpeg leave out the frequencies that a smaller picture does not need."""
    whole = image.size
    drafted = image.draft(None, (whole[0] // scale, whole[1] // scale))
    if drafted is not None and image.size != whole:
        image.info[SCALE_INFO] = ScaleInfo(whole, drafted[1])


class _Source(io.BytesIO):
    """The file's bytes, and whether a reader asked for more than there are: the difference of truncated and corrupt."""

    ran_out = False
    reading_pixels = False
    max_header_bytes = sys.maxsize
    _header_reads = 0
    _header_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size)
        if not self.reading_pixels:
            self._header_reads += 1
            self._header_bytes += len(chunk)
            check_reads(self._header_reads, self._header_bytes, self.max_header_bytes)
        if size is not None and size > 0:
            # Pixel readers ask for large blocks and may be content with less; a few bytes are always a must.
            needed = 1 if self.reading_pixels and size > _FEW_BYTES else size
            self.ran_out |= len(chunk) < needed
        return chunk


def _open(image_format: ImageFormat, source: _Source) -> ImageFile.ImageFile:
    assert image_format.opener is not None  # `_readable_format` let it pass
    try:
        return image_format.opener(source)
    except DecodeError:
        raise
    except BAD_FILE as error:
        _refuse(error, image_format, source, None)


def _check_header(image: ImageFile.ImageFile, image_format: ImageFormat, data: bytes, limits: DecodeLimits) -> None:
    width, height = image.size
    if width * height > limits.max_pixels:
        message = (
            f"The image has {width * height / 1e6:,.1f} megapixels ({width} x {height}); "
            f"the limit is {limits.max_pixels / 1e6:g}."
        )
        raise DecodeError(ImageStatus.TOO_LARGE, message)
    if width * height > _MAX_SLOW_PIXELS and any(tile[0] in Image.DECODERS for tile in image.tile):
        message = (
            f"The image has {width * height / 1e6:,.1f} megapixels ({width} x {height}); "
            f"the limit is {_MAX_SLOW_PIXELS / 1e6:g} for this rare variant of its format, which decodes slowly."
        )
        raise DecodeError(ImageStatus.TOO_LARGE, message)
    if image_format.name == "BMP" and "bmp_rle" in (tile[0] for tile in image.tile):
        # Codes that only move on are free of pixels, and cost as much as others.
        most = _RLE_BYTES_A_PIXEL * width * height + _RLE_BYTES
        if len(data) > most:
            message = (
                f"The BMP file has {len(data):,} bytes; the limit is {most:,} for {width} x {height} pixels in runs."
            )
            raise DecodeError(ImageStatus.LIMIT, message)
    if (
        image_format.name in _ANIMATED
        and width * height > _MAX_ANIMATED_PIXELS
        and getattr(image, "is_animated", False)
    ):
        message = (
            f"The image has {width * height / 1e6:,.1f} megapixels ({width} x {height}); "
            f"the limit is {_MAX_ANIMATED_PIXELS / 1e6:g} for an animation."
        )
        raise DecodeError(ImageStatus.TOO_LARGE, message)
    ratio = max(width, height) / min(width, height)
    if ratio > limits.max_side_ratio:
        message = (
            f"The image's sides, {width} x {height}, have a ratio of {ratio:.1f}; "
            f"the limit is {limits.max_side_ratio:g}."
        )
        raise DecodeError(ImageStatus.LIMIT, message)
    if count_frames(image, data, limits.max_frames) > limits.max_frames:
        raise DecodeError(
            ImageStatus.LIMIT, f"The image has more than {limits.max_frames:,} frames, which is the limit."
        )
    metadata_bytes = sum(len(value) for value in image.info.values() if isinstance(value, bytes | str))
    if metadata_bytes > limits.max_metadata_bytes:
        message = (
            f"The image carries {metadata_bytes:,} bytes of metadata (EXIF, XMP, colour profile); "
            f"the limit is {limits.max_metadata_bytes:,}."
        )
        raise DecodeError(ImageStatus.LIMIT, message)
    if image.info.get("progressive") and not may_have_scans(data, width * height):
        message = f"The JPEG file has {count_scans(data):,} scans, too many for its {width} x {height} pixels."
        raise DecodeError(ImageStatus.LIMIT, message)


def _load(image: ImageFile.ImageFile, image_format: ImageFormat, source: _Source, *, allow_truncated: bool) -> None:
    """Decode the pixels in place.

    `PIL.ImageFile.LOAD_TRUNCATED_IMAGES` belongs to the whole process, so it is not touched. A reader that fails half
    way leaves the rows that it has decoded, and without its tiles the image takes them for complete. (A JPEG needs its
    end marker for that, or a progressive one would show nothing.) Where the host process has set the flag, Pillow fills
    up silently, and only the reads beyond the end betray it.
    """
    if image.tile:  # else it was the header that ended early
        source.ran_out = False
    source.reading_pixels = True
    try:
        image.load()
    except BAD_FILE as error:
        if not (allow_truncated and _ends_early(image_format, source, image)):
            _refuse(error, image_format, source, image)
        image.tile = []
        try:
            image.load()
        except BAD_FILE:  # not one row was decoded
            _refuse(error, image_format, source, image)
    else:
        if ImageFile.LOAD_TRUNCATED_IMAGES and source.ran_out and not allow_truncated:
            raise DecodeError(ImageStatus.TRUNCATED, _truncated_message(image_format, source))


def _refuse(
    error: Exception, image_format: ImageFormat, source: _Source, image: ImageFile.ImageFile | None
) -> NoReturn:
    if _UNSUPPORTED_VARIANT.search(str(error)):
        message = f"The {image_format.name} file is of a variant that is not read here."
        raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message) from error
    if _ends_early(image_format, source, image):
        raise DecodeError(ImageStatus.TRUNCATED, _truncated_message(image_format, source)) from error
    message = f"The {image_format.name} file is corrupt: it cannot be decoded."
    raise DecodeError(ImageStatus.CORRUPT, message) from error


def _truncated_message(image_format: ImageFormat, source: _Source) -> str:
    size = len(source.getbuffer())
    return f"The {image_format.name} file is truncated: it ends after {size:,} bytes, before the picture does."


def _ends_early(image_format: ImageFormat, source: _Source, image: ImageFile.ImageFile | None) -> bool:
    """Whether the file is shorter than its reader, or else its own structure, wanted it to be."""
    if source.ran_out:
        return True
    # Some readers take the whole file at once, so only its structure can tell.
    data = source.getvalue()
    return structure_end(image_format, image, data) > len(data)


def _to_plain_mode(image: Image.Image, image_format: ImageFormat) -> Image.Image:
    mode = image.mode
    if mode in ("P", "PA") and image.palette is None:
        raise DecodeError(ImageStatus.CORRUPT, f"The {image_format.name} file is corrupt: it lacks its palette.")
    if mode.startswith("I"):
        return _high_byte(image, image_format)
    if image.has_transparency_data:
        return _on_white(image)
    if mode in ("L", "RGB", "CMYK", "YCbCr"):
        return image
    if mode == "1":
        return image.convert("L")
    if mode in ("P", "RGBX"):
        return image.convert("RGB")
    message = f"The {image_format.name} file has pixels of mode {mode}, which are not read here."
    raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message)


def _on_white(image: Image.Image) -> Image.Image:
    key = image.info.get("transparency")
    if isinstance(key, tuple) and max(key) > 0xFF:  # of a 16-bit file, whose colours Pillow has scaled already
        image.info["transparency"] = tuple(value >> 8 for value in key)
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    rgb = Image.new("RGB", image.size, "white")
    rgb.paste(rgba, mask=rgba)
    return rgb


def _high_byte(image: Image.Image, image_format: ImageFormat) -> Image.Image:
    values = np.asarray(image)  # (H, W), 16-bit, or 32-bit for the 16-bit greys of PPM
    if values.dtype.itemsize > 2 and (values.min() < 0 or values.max() > 0xFFFF):
        message = f"The {image_format.name} file has 32-bit samples, which are not read here."
        raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message)
    grey = (values >> 8).astype(np.uint8)
    if isinstance(key := image.info.get("transparency"), int):
        grey[values == key] = 0xFF
    return Image.fromarray(grey)

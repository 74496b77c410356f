"""One encoded image file in, one upright PIL image out, or a :class:`DecodeError` that says why not.

The pixels of L, RGB and CMYK files are those of ``PIL.ImageOps.exif_transpose(PIL.Image.open(file))``, bit for bit;
colour profiles are ignored, as by open_clip's transform. The other modes become RGB or L here, before any resize:

=============================  ==================================================================================
alpha, colour-key transparency  composited on white, in any mode: the reference drops the alpha and shows what it hid
palette, 1 bit                 RGB, L: the reference would resize them by nearest neighbour
16-bit grey                    scaled to 8 bit by its high byte, as Pillow itself does with 16-bit RGB
YCbCr                          left alone: the reference resizes it as it is
float, 32-bit grey, Lab        refused as UNSUPPORTED_FORMAT: nothing in the file says which value is white
=============================  ==================================================================================
"""

from __future__ import annotations

import io
import math
import re
import struct
import threading
import warnings
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import numpy as np
from PIL import ExifTags, Image, ImageFile

from preprocess_ensemble.formats import ImageFormat, count_frames, identify, structure_end

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("SCALED_FROM", "DecodeError", "DecodeLimits", "ImageStatus", "ScaledFrom", "decode")


class ImageStatus(IntEnum):
    """What became of one image; the number travels in the ``status`` tensor, the name in every error and report."""

    OK = 0
    EMPTY = 1
    """No bytes at all."""
    NOT_AN_IMAGE = 2
    """The bytes are of no image format that is known here."""
    UNSUPPORTED_FORMAT = 3
    """An image, but of a format or variant that cannot be read here."""
    TRUNCATED = 4
    """The file ends before the picture does."""
    CORRUPT = 5
    """The file contradicts itself."""
    TOO_LARGE = 6
    """More bytes or pixels than the limits allow."""
    LIMIT = 7
    """Another limit: side ratio, frames, size of metadata."""
    INTERNAL = 8
    """A defect of this program, not of the image."""


class DecodeError(ValueError):
    """One image could not be decoded; ``message`` is one sentence for people, without a path or a traceback."""

    def __init__(self, status: ImageStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ScaledFrom(NamedTuple):
    """What a scaled image was before, upright."""

    size: tuple[int, int]
    """(width, height) of the file's picture."""
    box: tuple[float, float, float, float]
    """Left, top, right, bottom of the picture inside the scaled image: where its sides are no multiple of the scale,
    the last column and row stand for less than a whole pixel."""

    def describes(self, image: Image.Image) -> bool:
        """Whether ``image`` is that scaled image still: Pillow hands ``info`` on to what is made of it."""
        left, top, right, bottom = self.box
        return image.size == (math.ceil(right - left), math.ceil(bottom - top))


SCALED_FROM: Final = "scaled_from"
"""Key of a :class:`ScaledFrom` in the ``info`` of an image that :func:`decode` has scaled."""


@dataclass(frozen=True, kw_only=True)
class DecodeLimits:
    """What an image may cost; all but ``max_bytes`` are checked on its header, before a pixel is decoded."""

    max_bytes: int = 64 * 2**20
    max_pixels: int = 128_000_000
    """Room for the 108-megapixel cameras of telephones. Pillow needs 4 bytes a pixel, 8 to turn it, 12 for alpha:
    at this limit half a gigabyte to one and a half, in each thread that meets such an image.

    Above twice ``PIL.Image.MAX_IMAGE_PIXELS`` (179 megapixels) Pillow refuses some formats by itself."""
    max_side_ratio: float = 50.0
    """Longer side over shorter side."""
    max_frames: int = 10_000
    """Only the first frame is decoded; a file with more frames than this is no photo."""
    max_metadata_bytes: int = 8 * 2**20
    """EXIF, XMP, colour profile and text together."""
    allow_truncated: bool = False
    """Take what a file that ends early still shows; the rest is grey or black."""

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_side_ratio", "max_frames", "max_metadata_bytes"):
            value = getattr(self, name)
            if not value >= 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")


_JPEG_END: Final = b"\xff\xd9"

_FEW_BYTES: Final = 16
"""Smaller than any block that a pixel reader asks for, larger than any field of a header."""

_MAX_SLOW_PIXELS: Final = 1_000_000
"""For variants that Pillow decodes in Python, at a microsecond or more a pixel and with the GIL held."""

_ORIENTATIONS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF 2.32, tag 0x0112, as in ``PIL.ImageOps.exif_transpose``."""

# What a turn does to the columns and rows of the stored image; the sideways ones exchange the two afterwards.
_SIDEWAYS: Final = frozenset(
    {Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_90}
)
_MIRRORED_COLUMNS: Final = frozenset(
    {
        Image.Transpose.FLIP_LEFT_RIGHT,
        Image.Transpose.ROTATE_180,
        Image.Transpose.TRANSVERSE,
        Image.Transpose.ROTATE_90,
    }
)
_MIRRORED_ROWS: Final = frozenset(
    {
        Image.Transpose.FLIP_TOP_BOTTOM,
        Image.Transpose.ROTATE_180,
        Image.Transpose.TRANSVERSE,
        Image.Transpose.ROTATE_270,
    }
)

# What Pillow's readers raise when a file contradicts itself; anything else is a defect, theirs or ours.
_BAD_FILE: Final = (
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

# Pillow has no exception class of its own for a variant that it cannot read.
_UNSUPPORTED_VARIANT: Final = re.compile(
    r"unsupported|not supported|unknown pixel mode|unknown data organization|cannot handle|unrecogni[sz]ed image mode",
    re.IGNORECASE,
)


def decode(
    data: bytes | memoryview, limits: DecodeLimits = DecodeLimits(), *, at_least: tuple[int, int] | None = None
) -> Image.Image:
    """Decode the first picture of one image file and turn it upright.

    With ``at_least`` (height, width) a JPEG that is larger may come out smaller, by a power of two, but not below that
    size; ``PreprocessConfig.decode_at_least`` says what a model's input needs. Such an image tells in ``info`` under
    :data:`SCALED_FROM` what it was, and ``preprocess`` keeps to that geometry. Without it the pixels are exact.

    Returns an image of mode L, RGB, CMYK or YCbCr, ready for :func:`preprocess_ensemble.transform.preprocess`. Safe to
    call from many threads; Pillow releases the GIL while it decodes. Raises :class:`DecodeError` and nothing else.
    """
    try:
        with _quiet_pillow():
            return _decode(bytes(data), limits, at_least)
    except DecodeError:
        raise
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6
        message = f"The image has more pixels than the {limit:g} megapixels at which Pillow stops."
        raise DecodeError(ImageStatus.TOO_LARGE, message) from error
    except MemoryError as error:
        raise DecodeError(ImageStatus.INTERNAL, "There was not enough memory to decode the image.") from error
    except Exception as error:
        raise DecodeError(ImageStatus.INTERNAL, "The decoder failed in an unexpected way.") from error


def _decode(data: bytes, limits: DecodeLimits, at_least: tuple[int, int] | None) -> Image.Image:
    if not data:
        raise DecodeError(ImageStatus.EMPTY, "The image is empty: 0 bytes were received.")
    if len(data) > limits.max_bytes:
        message = f"The image file has {len(data):,} bytes; the limit is {limits.max_bytes:,}."
        raise DecodeError(ImageStatus.TOO_LARGE, message)
    image_format = _readable_format(data)
    source = _Source(data + _JPEG_END if limits.allow_truncated and image_format.name == "JPEG" else data)
    image = _open(image_format, source)
    _check_header(image, data, limits)
    scaled_from = None if at_least is None or image_format.name != "JPEG" else _draft(image, at_least)
    _load(image, image_format, source, allow_truncated=limits.allow_truncated)
    turn = _turn(image)
    upright = _to_plain_mode(image if turn is None else image.transpose(turn), image_format)
    if scaled_from is not None:
        upright.info[SCALED_FROM] = scaled_from
    return upright


def _readable_format(data: bytes) -> ImageFormat:
    image_format = identify(data)
    if image_format is None:
        raise DecodeError(ImageStatus.NOT_AN_IMAGE, "The file is not an image of any known format.")
    if not image_format.readable:
        raise DecodeError(
            ImageStatus.UNSUPPORTED_FORMAT, f"The file is of format {image_format.name}, which is not read here."
        )
    return image_format


class _Source(io.BytesIO):
    """The file's bytes, and whether a reader asked for more than there are: the difference of truncated and corrupt."""

    ran_out = False
    reading_pixels = False

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size)
        if size is not None and size > 0:
            # Pixel readers ask for large blocks and may be content with less; a few bytes are always a must.
            needed = 1 if self.reading_pixels and size > _FEW_BYTES else size
            self.ran_out |= len(chunk) < needed
        return chunk


def _open(image_format: ImageFormat, source: _Source) -> ImageFile.ImageFile:
    assert image_format.opener is not None  # `_readable_format` let it pass
    try:
        return image_format.opener(source)
    except _BAD_FILE as error:
        _refuse(error, image_format, source, None)


def _check_header(image: ImageFile.ImageFile, data: bytes, limits: DecodeLimits) -> None:
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
    except _BAD_FILE as error:
        if not (allow_truncated and _ends_early(image_format, source, image)):
            _refuse(error, image_format, source, image)
        image.tile = []
        try:
            image.load()
        except _BAD_FILE:  # not one row was decoded
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


def _turn(image: Image.Image) -> Image.Transpose | None:
    """What `ImageOps.exif_transpose` would do, except that a broken EXIF block leaves the image as it is."""
    try:
        return _ORIENTATIONS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except _BAD_FILE:
        return None


def _draft(image: ImageFile.ImageFile, at_least: tuple[int, int]) -> ScaledFrom | None:
    """Let libjpeg leave out the frequencies that a smaller picture does not need; None where that gains nothing."""
    height, width = at_least
    full = image.size
    turn = _turn(image)
    drafted = image.draft(None, (height, width) if turn in _SIDEWAYS else (width, height))
    if drafted is None or image.size == full:
        return None
    _, (_, _, right, bottom) = drafted
    return _turned(ScaledFrom(full, (0, 0, right, bottom)), image.size, turn)


def _turned(scaled: ScaledFrom, size: tuple[int, int], turn: Image.Transpose | None) -> ScaledFrom:
    """`scaled`, of an image of `size`, once the image has been turned."""
    left, top, right, bottom = scaled.box
    width, height = size
    if turn in _MIRRORED_COLUMNS:
        left, right = width - right, width - left
    if turn in _MIRRORED_ROWS:
        top, bottom = height - bottom, height - top
    if turn in _SIDEWAYS:
        return ScaledFrom(scaled.size[::-1], (top, left, bottom, right))
    return ScaledFrom(scaled.size, (left, top, right, bottom))


def _to_plain_mode(image: Image.Image, image_format: ImageFormat) -> Image.Image:
    mode = image.mode
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


_quiet_lock: Final = threading.Lock()
_quiet_threads = 0
_quiet_filters: warnings.catch_warnings[None] | None = None


@contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Ignore Pillow's warnings about odd files, which the status tells better.

    Warning filters belong to the whole process (until Python 3.14), so `catch_warnings` in many threads at once could
    leave the wrong ones behind. Here the first thread in sets the filter and the last one out removes it.
    """
    global _quiet_threads, _quiet_filters
    with _quiet_lock:
        if _quiet_threads == 0:
            _quiet_filters = warnings.catch_warnings()
            _quiet_filters.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _quiet_threads += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_threads -= 1
            if _quiet_threads == 0 and _quiet_filters is not None:
                _quiet_filters.__exit__(None, None, None)

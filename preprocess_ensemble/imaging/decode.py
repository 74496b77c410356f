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

import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from PIL import Image

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.formats import identify
from preprocess_ensemble.imaging.jpeg_header import JpegHeader, may_have_scans, read_header
from preprocess_ensemble.imaging.limits import DecodeError, DecodeLimits
from preprocess_ensemble.imaging.orientation import SCALE_INFO, ScaleInfo, apply_transpose, is_sideways
from preprocess_ensemble.imaging.pillow_decoder import (
    BAD_FILE,
    decode_with_pillow,
    large_image_lock,
    orientation_of_jpeg,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from preprocess_ensemble.imaging.formats import ImageFormat

__all__ = (
    "SCALE_INFO",
    "DecodeError",
    "DecodeLimits",
    "DecodePath",
    "Decoded",
    "Decoder",
    "ImageStatus",
    "ScaleInfo",
    "decode",
    "decode_image",
    "decode_into",
    "identify",
    "quiet_libraries",
)

_DEFAULT_LIMITS: Final = DecodeLimits()

_JPEG_START: Final = b"\xff\xd8\xff"

_SCALES: Final = (8, 4, 2)
"""The scales that libjpeg-turbo has fast code for; 3/8 takes longer than 1/2, though it makes fewer pixels."""


class Decoder(str, Enum):
    """Who made the pixels; both are libjpeg-turbo where the file is a JPEG."""

    PILLOW = "pillow"
    TURBOJPEG = "turbojpeg"


class DecodePath(str, Enum):
    """Whether an image was decoded smaller than it is, or else the reason why it was not."""

    SCALED = "scaled"
    OFF = "off"
    """The caller wants exact pixels."""
    NOT_JPEG = "not_jpeg"
    """Only JPEG can be decoded smaller."""
    SMALL = "small"
    """Half of it would be less than what the resize needs."""
    UNUSUAL = "unusual"
    """A coding, precision or number of colours for which the deviation was not measured, or an odd header."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """An image, and how it came about."""

    image: Image.Image
    decode_path: DecodePath
    decoder: Decoder


def decode(
    data: bytes | memoryview, limits: DecodeLimits = _DEFAULT_LIMITS, *, at_least: tuple[int, int] | None = None
) -> Image.Image:
    """Decode the first picture of one image file and turn it upright.

    With ``at_least`` (height, width) a JPEG that is larger may come out smaller, by 2, 4 or 8, but not below that
    size; ``PreprocessConfig.decode_at_least`` says what a model's input needs. Such an image tells in ``info`` under
    :data:`SCALE_INFO` what it was, and ``preprocess`` keeps to that geometry. Without it the pixels are exact.

    Returns an image of mode L, RGB, CMYK or YCbCr, ready for :func:`~.transform.preprocess`. Safe to
    call from many threads; the GIL is released while pixels are decoded. Raises :class:`DecodeError` and nothing else.
    """
    return decode_image(data, limits, at_least=at_least).image


def decode_image(
    data: bytes | memoryview, limits: DecodeLimits = _DEFAULT_LIMITS, *, at_least: tuple[int, int] | None = None
) -> Decoded:
    """As :func:`decode`, and tell how the image came about."""
    with _only_decode_errors():
        return _decode(bytes(data), limits, at_least)


def decode_into(data: bytes | memoryview, out: npt.NDArray[np.uint8], limits: DecodeLimits = _DEFAULT_LIMITS) -> bool:
    """Decode a plain upright JPEG of the very size of ``out``, uint8 (H, W, 3), straight into it, with exact pixels.

    Returns False for any other file, bad ones too, which is for :func:`decode` to judge; ``out`` may hold anything
    then. ``preprocess`` leaves images of the target's size as they are, so nothing more is to be done to this one.
    """
    data = bytes(data)
    header = read_header(data) if data.startswith(_JPEG_START) else None
    if (
        header is None
        or out.shape != (header.height, header.width, 3)
        or not header.is_plain
        or header.has_app1  # which only Pillow reads
        or not _suits_turbo(data, header, limits, scale=1)
    ):
        return False
    return turbojpeg_decoder.decode_into(data, out)


def _decode(data: bytes, limits: DecodeLimits, at_least: tuple[int, int] | None) -> Decoded:
    if not data:
        raise DecodeError(ImageStatus.EMPTY, "The image is empty: 0 bytes were received.")
    if len(data) > limits.max_bytes:
        message = f"The image file has {len(data):,} bytes; the limit is {limits.max_bytes:,}."
        raise DecodeError(ImageStatus.TOO_LARGE, message)
    image_format = _readable_format(data)
    header, turn = _jpeg_header(data, limits)
    if image_format.name != "JPEG":
        decode_path, scale = DecodePath.NOT_JPEG, 1
    else:
        decode_path, scale = _plan(header, turn, at_least)
    if header is not None and _suits_turbo(data, header, limits, scale=scale):
        image = _decode_with_turbo(data, header, scale)
        if image is not None:
            return Decoded(image=apply_transpose(image, turn), decode_path=decode_path, decoder=Decoder.TURBOJPEG)
    image = decode_with_pillow(data, image_format, limits, scale=scale)
    return Decoded(image=image, decode_path=decode_path, decoder=Decoder.PILLOW)


def _readable_format(data: bytes) -> ImageFormat:
    image_format = identify(data)
    if image_format is None:
        raise DecodeError(ImageStatus.NOT_AN_IMAGE, "The file is not an image of any known format.")
    if not image_format.readable:
        raise DecodeError(
            ImageStatus.UNSUPPORTED_FORMAT, f"The file is of format {image_format.name}, which is not read here."
        )
    return image_format


def _jpeg_header(data: bytes, limits: DecodeLimits) -> tuple[JpegHeader | None, Image.Transpose | None]:
    """A plain header, and how to turn the image; no header where there is any doubt."""
    header = read_header(data) if data.startswith(_JPEG_START) else None
    if header is None or not header.is_plain or header.metadata_bytes > limits.max_metadata_bytes:
        return None, None
    if not header.has_app1:
        return header, None
    try:
        return header, orientation_of_jpeg(data)
    except BAD_FILE:
        return None, None


def _plan(
    header: JpegHeader | None, turn: Image.Transpose | None, at_least: tuple[int, int] | None
) -> tuple[DecodePath, int]:
    """Whether to scale a JPEG, and by how much."""
    if at_least is None:
        return DecodePath.OFF, 1
    if header is None:
        return DecodePath.UNUSUAL, 1
    height, width = at_least[::-1] if is_sideways(turn) else at_least
    for scale in _SCALES:
        if header.height // scale >= height and header.width // scale >= width:
            return DecodePath.SCALED, scale
    return DecodePath.SMALL, 1


def _suits_turbo(data: bytes, header: JpegHeader, limits: DecodeLimits, *, scale: int) -> bool:
    """Whether the library may try; a file that breaks a limit is left to the code that names it."""
    pixels = header.width * header.height
    ratio = max(header.width, header.height) / min(header.width, header.height)
    return (
        not limits.allow_truncated
        and len(data) <= limits.max_bytes
        and pixels <= limits.max_pixels
        and ratio <= limits.max_side_ratio
        and header.metadata_bytes <= limits.max_metadata_bytes
        and (not header.is_progressive or may_have_scans(data, pixels))
        and (scale > 1 or turbojpeg_decoder.has_pillows_pixels(header))
    )


def _decode_with_turbo(data: bytes, header: JpegHeader, scale: int) -> Image.Image | None:
    mode = "L" if len(header.sampling) == 1 else "RGB"
    # A progressive file is held in memory as a whole, at whatever scale.
    size = header.width * header.height // (1 if header.is_progressive else scale**2)
    with large_image_lock(size):
        pixels = turbojpeg_decoder.decode(data, mode=mode, scale=scale)
    if pixels is None:
        return None
    height, width = pixels.shape[:2]
    image = Image.frombuffer(mode, (width, height), pixels, "raw", mode, 0, 1)
    if scale > 1:
        box = (0, 0, header.width / scale, header.height / scale)
        image.info[SCALE_INFO] = ScaleInfo((header.width, header.height), box)
    return image


@contextmanager
def _only_decode_errors() -> Iterator[None]:
    try:
        with quiet_libraries():
            yield
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


_quiet_lock: Final = threading.Lock()
_quiet_threads = 0
_quiet_filters: warnings.catch_warnings[None] | None = None


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep warnings about odd files in, which the status tells better.

    Warning filters belong to the whole process (until Python 3.14), so `catch_warnings` in many threads at once could
    leave the wrong ones behind. Here the first thread in sets the filter and the last one out removes it.
    """
    global _quiet_threads, _quiet_filters
    with _quiet_lock:
        if _quiet_threads == 0:
            _quiet_filters = warnings.catch_warnings()
            _quiet_filters.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")
            # What libjpeg-turbo complains about is for Pillow to judge.
            warnings.filterwarnings("error", module="turbojpeg")
        _quiet_threads += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_threads -= 1
            if _quiet_threads == 0 and _quiet_filters is not None:
                _quiet_filters.__exit__(None, None, None)

"""Decode one image file to one PIL image, or raise a :class:`DecodeError` that says why not.

The pixels of L, RGB and CMYK files are those of ``PIL.ImageOps.exif_transpose(PIL.Image.open(file))``, bit for bit.
Colour profiles are ignored, as by open_clip's transform. Other modes become RGB or L before any resize:

===============================  =================================================================================
alpha, colour-key transparency   composited on white: the reference drops the alpha and shows hidden colours
palette, 1 bit                   converted to RGB, L: the reference would resize them by nearest neighbour
12-bit and 16-bit grey           scaled to 8 bits by the high byte, as Pillow itself does with 16-bit RGB
YCbCr                            unchanged: the reference resizes it as it is
float, grey beyond 16 bits, Lab  refused as UNSUPPORTED_FORMAT: the file does not say which value is white
===============================  =================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from PIL import Image

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.containers.jpeg import JpegHeader, read_header
from preprocess_ensemble.imaging.formats import ImageFormat, identify
from preprocess_ensemble.imaging.inspection import Facts, check, count_scans
from preprocess_ensemble.imaging.limits import SMALLER
from preprocess_ensemble.imaging.limits import DecodeError as DecodeError
from preprocess_ensemble.imaging.limits import DecodeLimits as DecodeLimits
from preprocess_ensemble.imaging.orientation import SCALE_INFO as SCALE_INFO
from preprocess_ensemble.imaging.orientation import SWAPPED, ScaleInfo, apply_transpose
from preprocess_ensemble.imaging.pillow_decoder import PillowFile
from preprocess_ensemble.imaging.quiet import quiet_libraries

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


_DEFAULT_LIMITS: Final = DecodeLimits()

_SCALES: Final = (8, 4, 2)
"""Scales for which libjpeg-turbo has fast code; 3/8 takes longer than 1/2, although it makes fewer pixels."""


class Decoder(StrEnum):
    """The library that made the pixels; for a JPEG, both use libjpeg-turbo."""

    PILLOW = "pillow"
    TURBOJPEG = "turbojpeg"


class DecodePath(StrEnum):
    """Whether an image was decoded at reduced size; if not, the reason."""

    SCALED = "scaled"
    OFF = "off"  # the caller wants exact pixels
    NOT_JPEG = "not_jpeg"
    SMALL = "small"  # half the image would be smaller than the resize needs
    UNUSUAL = "unusual"
    """An unusual header, or a coding, precision or number of colours for which the deviation was not measured."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """An image, or None if the pixels were decoded straight into ``out``, and the way in which it was decoded."""

    image: Image.Image | None
    decode_path: DecodePath
    decoder: Decoder


def decode(
    data: bytes | memoryview, limits: DecodeLimits = _DEFAULT_LIMITS, *, at_least: tuple[int, int] | None = None
) -> Image.Image:
    """Decode the first picture of one image file and apply its EXIF orientation.

    A JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, but not below ``at_least`` (height, width): pass the
    model's ``PreprocessConfig.decode_at_least``. The ``info`` of such an image holds the size of the whole picture
    under :data:`SCALE_INFO`, and ``preprocess`` crops it like the whole. Without ``at_least`` the pixels are
    exact.

    Returns an image of mode L, RGB, CMYK or YCbCr. Thread-safe; the GIL is released while pixels are decoded. Raises
    only :class:`DecodeError`.
    """
    image = decode_image(data, limits, at_least=at_least).image
    assert image is not None  # there is no `out`
    return image


def suffices_for(image: Image.Image, at_least: tuple[int, int], more: tuple[int, int]) -> bool:
    """Whether ``image``, decoded with ``at_least``, is what ``at_least=more`` would give: whole, or scaled alike."""
    if more[0] < at_least[0] or more[1] < at_least[1]:
        return False
    scaled: ScaleInfo | None = image.info.get(SCALE_INFO)
    if scaled is None:
        return True
    left, top, right, bottom = scaled.box
    return int(bottom - top) >= more[0] and int(right - left) >= more[1]


def decode_image(
    data: bytes | memoryview,
    limits: DecodeLimits = _DEFAULT_LIMITS,
    *,
    at_least: tuple[int, int] | None = None,
    out: npt.NDArray[np.uint8] | None = None,
) -> Decoded:
    """Decode as :func:`decode` does, and tell how.

    With ``out``, C-contiguous uint8 (H, W, 3), a plain JPEG of exactly that size may be decoded straight into ``out``
    as RGB, with exact pixels: :func:`~.transform.preprocess` would not change them. Then ``image`` is None; otherwise,
    and after an error, ``out`` may hold anything.
    """
    try:
        with quiet_libraries():
            return _decode(bytes(data), limits, at_least, out)
    except DecodeError:
        raise
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6
        message = f"The image has more pixels than Pillow's own limit of {limit:g} megapixels{SMALLER}"
        raise DecodeError(ImageStatus.TOO_LARGE, message) from error
    except MemoryError as error:
        raise DecodeError(ImageStatus.INTERNAL, "There was not enough memory to decode the image.") from error
    except Exception as error:
        raise DecodeError(ImageStatus.INTERNAL, "The decoder failed in an unexpected way.") from error


def _decode(
    data: bytes, limits: DecodeLimits, at_least: tuple[int, int] | None, out: npt.NDArray[np.uint8] | None
) -> Decoded:
    image_format = _readable_format(data, limits)
    header = read_header(data) if image_format.name == "JPEG" else None
    if header is not None and header.metadata_bytes > limits.max_metadata_bytes:
        header = None  # only Pillow tells metadata from segments that are not read
    if header is not None:
        scans = count_scans(data) if header.is_progressive else 0
        check(Facts(len(data), header.width, header.height, scans=scans), limits)
    # Only Pillow reads EXIF and other headers. Open the file once, even if Pillow decodes the pixels, too.
    file = PillowFile(data, image_format, limits) if header is None or header.has_app1 else None
    transpose = file.transpose if file is not None and header is not None else None
    decode_path, scale = _plan(image_format, header, transpose, at_least)
    turbojpeg = turbojpeg_decoder.installed() if header is not None and not limits.allow_truncated else None
    if header is not None and turbojpeg is not None and (scale > 1 or turbojpeg.is_exact(header)):
        if scale == 1 and transpose is None and out is not None and out.shape == (header.height, header.width, 3):
            if turbojpeg.decode_into(data, out):
                return Decoded(image=None, decode_path=decode_path, decoder=Decoder.TURBOJPEG)
        elif (image := turbojpeg.decode(data, header, scale)) is not None:
            image = apply_transpose(image, transpose)
            return Decoded(image=image, decode_path=decode_path, decoder=Decoder.TURBOJPEG)
    file = file or PillowFile(data, image_format, limits)
    return Decoded(image=file.decode(scale), decode_path=decode_path, decoder=Decoder.PILLOW)


def _readable_format(data: bytes, limits: DecodeLimits) -> ImageFormat:
    if not data:
        raise DecodeError(ImageStatus.EMPTY, "The image is empty: 0 bytes were received.")
    if len(data) > limits.max_bytes:
        message = f"The image file has {len(data):,} bytes; the limit is {limits.max_bytes:,}: use a smaller file."
        raise DecodeError(ImageStatus.TOO_LARGE, message)
    image_format = identify(data)
    if image_format is None:
        raise DecodeError(ImageStatus.NOT_AN_IMAGE, "The file is not an image of any known format.")
    if not image_format.readable:
        raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, image_format.refusal)
    return image_format


def _plan(
    image_format: ImageFormat,
    header: JpegHeader | None,
    transpose: Image.Transpose | None,
    at_least: tuple[int, int] | None,
) -> tuple[DecodePath, int]:
    if image_format.name != "JPEG":
        return DecodePath.NOT_JPEG, 1
    if at_least is None:
        return DecodePath.OFF, 1
    if header is None:
        return DecodePath.UNUSUAL, 1
    height, width = at_least[::-1] if transpose in SWAPPED else at_least
    for scale in _SCALES:
        if header.height // scale >= height and header.width // scale >= width:
            return DecodePath.SCALED, scale
    return DecodePath.SMALL, 1

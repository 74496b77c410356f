"""Decode with Pillow alone: the reference for every format, and the decoder of every unusual file."""

from __future__ import annotations

import io
import re
import struct
import sys
import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
from PIL import ExifTags, Image, ImageFile, TiffImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.containers.iso_media import IsoMedia
from preprocess_ensemble.imaging.jpeg_end import JPEG_END, lacks_only_its_end
from preprocess_ensemble.imaging.limits import (
    DecodeError,
    DecodeLimits,
    check_count,
    large_image_lock,
    unsupported_variant,
)
from preprocess_ensemble.imaging.orientation import SCALE_INFO, ScaleInfo, apply_transpose, transpose_for
from preprocess_ensemble.imaging.structure_limits import (
    MAX_READS,
    check_compression,
    check_parts,
    count_frames,
    count_scans,
    patch_pillow_big_tiff,
    patch_pillow_tags,
    scans_within_limit,
    structure_end,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preprocess_ensemble.imaging.formats import ImageFormat

_FEW_BYTES: Final = 16
"""Bytes of a small read. Fields of a header are smaller; the blocks that pixel readers ask for are larger."""

_ANIMATED: Final = frozenset({"WebP", "AVIF"})
_MAX_ANIMATED_PIXELS: Final = 32_000_000
"""Limit for animations. Their decoders hold the canvas several times, 16 bytes per pixel in all, and a file of 4 KB may
claim any size."""

_MAX_SLOW_PIXELS: Final = 1_000_000
"""Limit for variants that Pillow decodes in Python, at a microsecond or more per pixel and with the GIL held."""

_RLE_BYTES_PER_PIXEL: Final = 3
_RLE_BYTES: Final = 65_536
"""Limits of a run-length BMP. A run of one pixel takes two bytes; the rest is for header, palette and ends of lines."""

# Errors of Pillow's readers for a file that contradicts itself. Any other error is a defect in Pillow or here.
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

_WHITE_IS_ZERO: Final = 0
_YCBCR: Final = 6
_YCBCR_SUBSAMPLING: Final = 530
"""TIFF 6.0: two values of the tag PhotometricInterpretation, and the tag YCbCrSubSampling."""

_KEY_FACTORS: Final[Mapping[object, int]] = {"L;2": 85, "L;4": 17}
"""Factors for the transparent level of a grey PNG with fewer than 8 bits, because Pillow scales only the pixels."""

_IN_OTHER_ORDER: Final = {
    f"{mode};16{order}": f"{mode};16{other}"
    for mode in ("RGB", "RGBA", "RGBX", "CMYK")
    for order, other in (("B", "L"), ("L", "B"), ("N", "B" if sys.byteorder == "little" else "L"))
}

patch_pillow_tags()
patch_pillow_big_tiff()

# Pillow has no exception class for a variant that it cannot read, so the message tells.
_UNSUPPORTED_VARIANT: Final = re.compile(
    r"unsupported|not supported|not implemented|unknown pixel mode|unknown data organization|cannot handle|"
    r"unrecogni[sz]ed image mode",
    re.IGNORECASE,
)
_NO_PICTURE: Final = "not identified by this driver"
"""Part of Pillow's message if a reader finds no picture where it expects one."""


class PillowFile:
    """One file that Pillow has opened: it has read the header, but not the pixels.

    Raises :class:`DecodeError` for a file that cannot be opened. Any other exception is a defect.
    """

    def __init__(self, data: bytes, image_format: ImageFormat, limits: DecodeLimits) -> None:
        check_parts(image_format.name, data, limits.max_pixels)
        is_jpeg = image_format.name == "JPEG"
        self._data = data
        self._format = image_format
        self._limits = limits
        self._source = _Source(data + JPEG_END if limits.allow_truncated and is_jpeg else data)
        if is_jpeg:
            # Limit the header, because Pillow joins the segments of EXIF, and copies all earlier segments for each. The
            # limit of the metadata is not enough, because it leaves out unused segments such as previews.
            self._source.max_header_bytes = 2 * limits.max_metadata_bytes + 2**20
        assert image_format.opener is not None  # `identify` found a readable format
        try:
            self._image = image_format.opener(self._source)
        except DecodeError:
            raise
        except _BAD_FILE as error:
            self._refuse(error)

    @cached_property
    def transpose(self) -> Image.Transpose | None:
        """The transpose of `ImageOps.exif_transpose`; None without one, and for a broken EXIF block.

        Some formats have their EXIF block behind the pixels, so it is known only after these are decoded.
        """
        try:
            return transpose_for(self._image.getexif().get(ExifTags.Base.Orientation))
        except _BAD_FILE:
            return None

    def decode(self, *, scale: int = 1) -> Image.Image:
        """Decode the first picture and apply its orientation; a JPEG at 1/``scale`` (1, 2, 4 or 8). Call it once.

        Returns mode L, RGB, CMYK or YCbCr. Raises :class:`DecodeError`. Any other exception is a defect.
        """
        image = self._decoded(scale)
        return _to_plain_mode(image, self._format, self._tags)

    def decode_whole(self, *, low_bytes: bool = False) -> Image.Image:
        """Decode the first picture as it is, and apply its orientation. Call it once, in place of :meth:`decode`.

        Returns mode L, RGB, CMYK or YCbCr; RGBA for a picture that may have transparency; I or I;16 for grey of more
        than 8 bits. For colours of 16 bits it returns the high bytes, or the low bytes with ``low_bytes``. Raises
        :class:`DecodeError` for a picture that cannot be read in full.
        """
        if low_bytes:
            if not self._image.tile:  # the reader has already reduced it to 8 bits
                raise unsupported_variant(self._format.name)
            self._image.tile = [tile._replace(args=_of_low_bytes(tile.args, self._format)) for tile in self._image.tile]
        image = self._decoded()
        if image.mode.startswith("I"):
            is_inverted = self._tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == _WHITE_IS_ZERO
            if is_inverted or "transparency" in image.info:
                raise unsupported_variant(self._format.name)
            return image
        if image.has_transparency_data:
            return _with_alpha(image)
        return _to_plain_mode(image, self._format, self._tags)

    @property
    def _tags(self) -> Mapping[int, Any]:
        return self._image.tag_v2 if isinstance(self._image, TiffImagePlugin.TiffImageFile) else {}

    def _decoded(self, scale: int = 1) -> Image.Image:
        self._check_header()
        image = self._image
        whole = image.size
        if scale > 1:
            # For a smaller picture, libjpeg leaves out frequencies.
            drafted = image.draft(None, (whole[0] // scale, whole[1] // scale))
            if drafted is not None and image.size != whole:
                image.info[SCALE_INFO] = ScaleInfo(whole, drafted[1])
        # A progressive file is held in memory as a whole, at any scale.
        width, height = whole if "progressive" in image.info else image.size
        raw_mode = image.tile[0][3] if image.tile else None
        with large_image_lock(width * height):
            self._load()
            if self._format.name == "PNG" and isinstance(key := image.info.get("transparency"), int):
                image.info["transparency"] = key * _KEY_FACTORS.get(raw_mode, 1)
            # Crop an AVIF as its box says, because Pillow's reader does not. The reader of HEIC crops itself.
            if self._format.name == "AVIF" and (shown := IsoMedia(self._data).crop(*image.size)) is not None:
                return apply_transpose(image.crop(shown), self.transpose)
            return apply_transpose(image, self.transpose)

    def _check_header(self) -> None:
        image, data, limits = self._image, self._data, self._limits
        width, height = image.size
        codecs = {tile[0] for tile in image.tile}
        is_slow = not codecs.isdisjoint(Image.DECODERS)
        is_animated = self._format.name in _ANIMATED and getattr(image, "is_animated", False)
        for applies, most, where in (
            (True, limits.max_pixels, ""),
            (is_slow, _MAX_SLOW_PIXELS, " for this rare variant of its format, which is slow to decode"),
            (is_animated, _MAX_ANIMATED_PIXELS, " for an animation"),
        ):
            if applies and width * height > most:
                message = (
                    f"The image has {width * height / 1e6:,.1f} megapixels ({width} x {height}); "
                    f"the limit is {most / 1e6:g}{where}."
                )
                raise DecodeError(ImageStatus.TOO_LARGE, message)
        # Limit the bytes of a run-length BMP: codes that only move the position hold no pixels, but cost as much.
        most = _RLE_BYTES_PER_PIXEL * width * height + _RLE_BYTES
        if self._format.name == "BMP" and "bmp_rle" in codecs and len(data) > most:
            message = (
                f"The BMP file has {len(data):,} bytes; the limit is {most:,} for {width} x {height} pixels "
                "with run-length coding."
            )
            raise DecodeError(ImageStatus.LIMIT, message)
        if isinstance(image, TiffImagePlugin.TiffImageFile) and "raw" in codecs and _is_misread(image):
            raise unsupported_variant(self._format.name)
        ratio = max(width, height) / min(width, height)
        if ratio > limits.max_side_ratio:
            message = (
                f"The image's sides, {width} x {height}, have a ratio of {ratio:.1f}; "
                f"the limit is {limits.max_side_ratio:g}."
            )
            raise DecodeError(ImageStatus.LIMIT, message)
        check_count(
            count_frames(self._format.name, image, data, limits.max_frames), limits.max_frames, "image", "frames"
        )
        metadata_bytes = sum(len(value) for value in image.info.values() if isinstance(value, bytes | str))
        if metadata_bytes > limits.max_metadata_bytes:
            message = (
                f"The image carries {metadata_bytes:,} bytes of metadata (EXIF, XMP, colour profile); "
                f"the limit is {limits.max_metadata_bytes:,}."
            )
            raise DecodeError(ImageStatus.LIMIT, message)
        if image.info.get("progressive") and not scans_within_limit(data, width * height):
            message = f"The JPEG file has {count_scans(data):,} scans, too many for its {width} x {height} pixels."
            raise DecodeError(ImageStatus.LIMIT, message)

    def _load(self) -> None:
        """Decode the pixels in place.

        This does not set `PIL.ImageFile.LOAD_TRUNCATED_IMAGES`, which belongs to the whole process. A reader that fails
        half way leaves its decoded rows, and Pillow treats an image without tiles as complete. For this a JPEG needs an
        end marker; without it, a progressive JPEG would show nothing. If the host process has set the flag, Pillow
        fills the missing part silently, and only the reads beyond the end show that it is missing.
        """
        image, source, allow_truncated = self._image, self._source, self._limits.allow_truncated
        if image.tile:  # else the header itself ended early
            source.ran_out = False
        source.reading_pixels = True
        try:
            image.load()
        except DecodeError:
            raise
        except _BAD_FILE as error:
            if not self._ends_early():
                self._refuse(error)
            if allow_truncated:
                image.tile = []
            elif not self._add_end():
                self._refuse(error)
            try:
                image.load()
            except _BAD_FILE:  # no row was decoded
                self._refuse(error)
        else:
            was_lenient = ImageFile.LOAD_TRUNCATED_IMAGES and source.ran_out
            # libheif shows a tile as black if its bytes are missing.
            lacks_bytes = self._format.name == "HEIC" and IsoMedia(self._data).stored_end > len(self._data)
            if (was_lenient or lacks_bytes) and not allow_truncated:
                raise DecodeError(ImageStatus.TRUNCATED, self._truncated_message())

    def _add_end(self) -> bool:
        """Add the end marker to a JPEG that lacks only this marker. Returns False for any other file."""
        try:
            if self._format.name != "JPEG" or not lacks_only_its_end(self._data):
                return False
        except _BAD_FILE:
            return False
        self._source.seek(0, io.SEEK_END)
        self._source.write(JPEG_END)
        return True

    def _refuse(self, error: Exception) -> NoReturn:
        """Raise :class:`DecodeError` with the reason why the file cannot be read."""
        # pillow-heif leaves out pictures if it lacks their codec, such as uncompressed pictures.
        lacks_codec = self._format.name == "HEIC" and _NO_PICTURE in str(error)
        if lacks_codec or _UNSUPPORTED_VARIANT.search(str(error)):
            raise unsupported_variant(self._format.name) from error
        if self._ends_early():
            raise DecodeError(ImageStatus.TRUNCATED, self._truncated_message()) from error
        if self._format.name == "TIFF":
            check_compression(self._data)
        message = f"The {self._format.name} file is corrupt: it cannot be decoded."
        raise DecodeError(ImageStatus.CORRUPT, message) from error

    def _truncated_message(self) -> str:
        size = len(self._source.getbuffer())
        return f"The {self._format.name} file is truncated: it ends after {size:,} bytes, before the picture does."

    def _ends_early(self) -> bool:
        """Whether the file is shorter than its reader needed, or than its own structure claims."""
        # Check the structure, too, because some readers read the whole file at once.
        data = self._source.getvalue()
        return self._source.ran_out or structure_end(self._format.name, data) > len(data)


class _Source(io.BytesIO):
    """The file's bytes; ``ran_out`` is True if a reader needed more bytes, so that the file is truncated."""

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
            check_count(self._header_reads, MAX_READS, "image's header", "parts")
            check_count(self._header_bytes, self.max_header_bytes, "image's header", "bytes")
        if size is not None and size > 0:
            # Pixel readers ask for large blocks and may accept fewer bytes; a request for a few bytes needs all.
            needed = 1 if self.reading_pixels and size > _FEW_BYTES else size
            self.ran_out |= len(chunk) < needed
        return chunk


def _is_misread(image: TiffImagePlugin.TiffImageFile) -> bool:
    """Whether a TIFF has uncompressed YCbCr that Pillow would decode to wrong pixels.

    Pillow assumes that such a file has a colour for each pixel; before release 13, that it is RGB with a fourth
    channel. Without the tag of the subsampling, four pixels share a colour (TIFF 6.0, section 21).
    """
    if image.tag_v2.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) != _YCBCR:
        return False
    return image.mode != "YCbCr" or image.tag_v2.get(_YCBCR_SUBSAMPLING, (2, 2)) != (1, 1)


def _to_plain_mode(image: Image.Image, image_format: ImageFormat, tags: Mapping[int, Any]) -> Image.Image:
    mode = image.mode
    if mode in ("P", "PA") and image.palette is None:
        raise DecodeError(ImageStatus.CORRUPT, f"The {image_format.name} file is corrupt: it lacks its palette.")
    if mode.startswith("I"):
        return _high_byte(image, image_format, tags)
    if image.has_transparency_data:
        return _on_white(image)
    if mode in ("L", "RGB", "CMYK", "YCbCr"):
        return image
    if mode == "1":
        return image.convert("L")
    if mode in ("P", "RGBX"):
        return image.convert("RGB")
    message = f"The {image_format.name} file has pixels of mode {mode}, which cannot be read here."
    raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message)


def _of_low_bytes(arguments: Any, image_format: ImageFormat) -> Any:
    """Return arguments for Pillow's reader of 16-bit channels, with the opposite byte order.

    With the opposite order, the reader returns the low byte of each channel instead of the high byte.
    """
    raw_mode, *others = arguments if isinstance(arguments, tuple) else (arguments,)
    if not isinstance(raw_mode, str) or raw_mode not in _IN_OTHER_ORDER:
        raise unsupported_variant(image_format.name)
    other = _IN_OTHER_ORDER[raw_mode]
    return (other, *others) if isinstance(arguments, tuple) else other


def _with_alpha(image: Image.Image) -> Image.Image:
    key = image.info.get("transparency")
    if isinstance(key, tuple) and max(key) > 0xFF:  # a 16-bit file; Pillow has already scaled its colours
        image.info["transparency"] = tuple(value >> 8 for value in key)
    if image.mode == "La":  # Pillow converts premultiplied grey only through LA
        image = image.convert("LA")
    return image if image.mode == "RGBA" else image.convert("RGBA")


def _on_white(image: Image.Image) -> Image.Image:
    rgba = _with_alpha(image)
    rgb = Image.new("RGB", image.size, "white")
    rgb.paste(rgba, mask=rgba)
    return rgb


def _high_byte(image: Image.Image, image_format: ImageFormat, tags: Mapping[int, Any]) -> Image.Image:
    values = np.asarray(image)  # (H, W), 16 bits, or 32 bits for the 16-bit greys of PPM
    if values.dtype.itemsize > 2 and (values.min() < 0 or values.max() > 0xFFFF):
        message = f"The {image_format.name} file has samples outside 0 to 65,535, which cannot be read here."
        raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message)
    # Pillow scales neither the 12 bits of a TIFF, nor inverts its levels if 0 is white.
    bits = min(16, *tags.get(TiffImagePlugin.BITSPERSAMPLE, (16,)))
    grey = (values >> (bits - 8)).astype(np.uint8)
    if tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == _WHITE_IS_ZERO:
        grey = ~grey
    if isinstance(key := image.info.get("transparency"), int):
        grey[values == key] = 0xFF
    return Image.fromarray(grey)

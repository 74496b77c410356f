"""Decode with Pillow alone: the reference for every format, and the decoder of every unusual file."""

from __future__ import annotations

import io
import re
import struct
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, NoReturn

import numpy as np
from PIL import ExifTags, Image, ImageFile, TiffImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.containers.iso_media import IsoMedia
from preprocess_ensemble.imaging.containers.jpeg import END
from preprocess_ensemble.imaging.formats import ImageFormat
from preprocess_ensemble.imaging.inspection import (
    MAX_READS,
    Facts,
    check,
    check_compression,
    check_parts,
    count_frames,
    count_scans,
    structure_end,
)
from preprocess_ensemble.imaging.jpeg_end import lacks_only_its_end
from preprocess_ensemble.imaging.limits import (
    DecodeError,
    DecodeLimits,
    check_count,
    large_image_lock,
    unsupported_variant,
)
from preprocess_ensemble.imaging.orientation import SCALE_INFO, ScaleInfo, apply_transpose, transpose_for
from preprocess_ensemble.imaging.pillow_patches import patch_pillow_big_tiff, patch_pillow_tags

_FEW_BYTES: Final = 16
"""Bytes of a small read. Fields of a header are smaller; the blocks that pixel readers ask for are larger."""


# Errors of Pillow's readers for a file that contradicts itself. Any other error is a defect in Pillow or here.
_BAD_FILE: Final = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, AssertionError, EOFError,
    struct.error, zlib.error,
)  # fmt: skip

WHITE_IS_ZERO: Final = 0
_YCBCR: Final = 6
_YCBCR_SUBSAMPLING: Final = 530
"""TIFF 6.0: two values of the tag PhotometricInterpretation, and the tag YCbCrSubSampling."""

_KEY_FACTORS: Final[Mapping[object, int]] = {"L;2": 85, "L;4": 17}
"""Factors for the transparent level of a grey PNG with fewer than 8 bits, because Pillow scales only the pixels."""

patch_pillow_tags()
patch_pillow_big_tiff()

# Pillow has no exception class for a variant that it cannot read, so the message tells.
_UNSUPPORTED_VARIANT: Final = re.compile(
    r"unsupported|not supported|not implemented|unknown pixel mode|unknown data organization|cannot handle|"
    r"unrecogni[sz]ed image mode",
    re.IGNORECASE,
)
_NO_CODEC: Final = "not identified by this driver"
"""Part of Pillow's message for a HEIC whose codec pillow-heif lacks, such as uncompressed pictures."""


class PillowFile:
    """A file within the limits, opened by Pillow up to its pixels. Raises only :class:`DecodeError`."""

    def __init__(self, data: bytes, image_format: ImageFormat, limits: DecodeLimits) -> None:
        self.name = image_format.name
        check_parts(self.name, data, limits.max_pixels)
        self._data = data
        self._limits = limits
        self._source = _Source(data)
        if self.name == "JPEG":
            if limits.allow_truncated:
                self._add_end()
            # Limit the header, because Pillow joins the segments of EXIF, and copies all earlier segments for each. The
            # limit of the metadata is not enough, because it leaves out unused segments such as previews.
            self._source.max_header_bytes = 2 * limits.max_metadata_bytes + 2**20
        assert image_format.opener is not None  # `identify` found a readable format
        try:
            self.image = image_format.opener(self._source)
        except DecodeError:
            raise
        except _BAD_FILE as error:
            self._refuse(error)
        codecs = {tile[0] for tile in self.image.tile}
        if "raw" in codecs and self._is_misread():
            raise unsupported_variant(self.name)
        info = self.image.info
        facts = Facts(
            len(data),
            *self.image.size,
            frames=count_frames(self.name, self.image, data, limits.max_frames),
            metadata_bytes=sum(len(value) for value in info.values() if isinstance(value, bytes | str)),
            scans=count_scans(data) if info.get("progressive") else 0,
            is_slow=not codecs.isdisjoint(Image.DECODERS),
            is_animated=self.name in ("WebP", "AVIF") and getattr(self.image, "is_animated", False),
            is_run_length="bmp_rle" in codecs,
        )
        check(facts, limits)

    @cached_property
    def transpose(self) -> Image.Transpose | None:
        """The transpose of `ImageOps.exif_transpose`; None without one, and for a broken EXIF block.

        Some formats have their EXIF block after the pixels, so it is known only after these are decoded.
        """
        with suppress(*_BAD_FILE):
            return transpose_for(self.image.getexif().get(ExifTags.Base.Orientation))
        return None

    @property
    def tags(self) -> Mapping[int, Any]:
        """The tags of a TIFF; empty for other formats."""
        return self.image.tag_v2 if isinstance(self.image, TiffImagePlugin.TiffImageFile) else {}

    def decode(self, scale: int = 1) -> Image.Image:
        """Decode the first picture once, upright, at 1/``scale`` (JPEG: 1, 2, 4, 8), to L, RGB, CMYK or YCbCr."""
        return self.in_plain_mode(self.load(scale))

    def load(self, scale: int = 1) -> Image.Image:
        """Decode like :meth:`decode`, but keep the mode of the file."""
        image = self.image
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
            if self.name == "PNG" and isinstance(key := image.info.get("transparency"), int):
                image.info["transparency"] = key * _KEY_FACTORS.get(raw_mode, 1)
            # Crop an AVIF as its box says, because Pillow's reader does not. The reader of HEIC crops itself.
            shown = IsoMedia(self._data).crop(*image.size) if self.name == "AVIF" else None
            return apply_transpose(image if shown is None else image.crop(shown), self.transpose)

    def in_plain_mode(self, image: Image.Image) -> Image.Image:
        """Return the loaded picture in mode L, RGB, CMYK or YCbCr; raise :class:`DecodeError` if that is impossible."""
        mode = image.mode
        if mode in ("P", "PA") and image.palette is None:
            raise DecodeError(ImageStatus.CORRUPT, f"The {self.name} file is corrupt: it lacks its palette.")
        if mode.startswith("I"):
            return self._high_byte(image)
        if image.has_transparency_data:
            rgba = with_alpha(image)
            on_white = Image.new("RGB", image.size, "white")
            on_white.paste(rgba, mask=rgba)
            return on_white
        if mode in ("L", "RGB", "CMYK", "YCbCr"):
            return image
        if mode in ("1", "P", "RGBX"):
            return image.convert("L" if mode == "1" else "RGB")
        message = f"The {self.name} file has pixels of Pillow's mode {mode}, which cannot be read here."
        raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message)

    def _high_byte(self, image: Image.Image) -> Image.Image:
        values = np.asarray(image)  # (H, W), 16 bits, or 32 bits for the 16-bit greys of PPM
        if values.dtype.itemsize > 2 and (values.min() < 0 or values.max() > 0xFFFF):
            message = f"The {self.name} file has samples outside 0 to 65,535, which cannot be read here."
            raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message)
        # Pillow neither scales the 12 bits of a TIFF nor inverts its levels if 0 is white.
        bits = min(16, *self.tags.get(TiffImagePlugin.BITSPERSAMPLE, (16,)))
        grey = (values >> (bits - 8)).astype(np.uint8)
        if self.tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == WHITE_IS_ZERO:
            grey = ~grey
        if isinstance(key := image.info.get("transparency"), int):
            grey[values == key] = 0xFF
        return Image.fromarray(grey)

    def _is_misread(self) -> bool:
        """Whether a TIFF has uncompressed YCbCr that Pillow would decode to wrong pixels.

        Pillow assumes that such a file has a colour for each pixel; before release 13, that it is RGB with a fourth
        channel. Without the tag of the subsampling, four pixels share a colour (TIFF 6.0, section 21).
        """
        if self.tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) != _YCBCR:
            return False
        return self.image.mode != "YCbCr" or self.tags.get(_YCBCR_SUBSAMPLING, (2, 2)) != (1, 1)

    def _load(self) -> None:
        """Decode the pixels in place, whatever the process has set as `PIL.ImageFile.LOAD_TRUNCATED_IMAGES`.

        A reader that fails half way leaves its decoded rows, and Pillow treats an image without tiles as complete. For
        this a JPEG needs an end marker; without it, a progressive JPEG would show nothing. If the host process has set
        the flag, Pillow fills the missing part silently, and only the reads beyond the end show that it is missing.
        """
        image, source, allow_truncated = self.image, self._source, self._limits.allow_truncated
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
            elif self._lacks_only_its_end():
                self._add_end()
            else:
                self._refuse(error)
            try:
                image.load()
            except _BAD_FILE:  # no row was decoded
                self._refuse(error)
        else:
            was_lenient = ImageFile.LOAD_TRUNCATED_IMAGES and source.ran_out
            # libheif shows a tile as black if its bytes are missing.
            lacks_bytes = self.name == "HEIC" and IsoMedia(self._data).stored_end > len(self._data)
            if (was_lenient or lacks_bytes) and not allow_truncated:
                raise DecodeError(ImageStatus.TRUNCATED, self._truncated_message())

    def _lacks_only_its_end(self) -> bool:
        with suppress(*_BAD_FILE):
            return self.name == "JPEG" and lacks_only_its_end(self._data)
        return False

    def _add_end(self) -> None:
        self._source.seek(0, io.SEEK_END)
        self._source.write(END)
        self._source.seek(0)

    def _refuse(self, error: Exception) -> NoReturn:
        if _UNSUPPORTED_VARIANT.search(str(error)) or (self.name == "HEIC" and _NO_CODEC in str(error)):
            raise unsupported_variant(self.name) from error
        if self._ends_early():
            raise DecodeError(ImageStatus.TRUNCATED, self._truncated_message()) from error
        if self.name == "TIFF":
            check_compression(self._data)
        raise DecodeError(ImageStatus.CORRUPT, f"The {self.name} file is corrupt: it cannot be decoded.") from error

    def _truncated_message(self) -> str:
        return f"The {self.name} file is truncated: it ends after {len(self._data):,} bytes, before the picture does."

    def _ends_early(self) -> bool:
        # Check the structure, too, because some readers read the whole file at once.
        return self._source.ran_out or structure_end(self.name, self._data) > len(self._data)


class _Source(io.BytesIO):
    """The file's bytes. ``ran_out`` is True once a reader needs more bytes than there are: the file is truncated."""

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


def with_alpha(image: Image.Image) -> Image.Image:
    key = image.info.get("transparency")
    if isinstance(key, tuple) and max(key) > 0xFF:  # a 16-bit file; Pillow has already scaled its colours
        image.info["transparency"] = tuple(value >> 8 for value in key)
    if image.mode == "La":  # Pillow converts premultiplied grey only through LA
        image = image.convert("LA")
    return image if image.mode == "RGBA" else image.convert("RGBA")

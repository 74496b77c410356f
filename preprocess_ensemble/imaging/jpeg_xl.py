"""JPEG XL through pillow-jxl-plugin, whose own reader decodes the whole file when it opens it.

This reader reads header and metadata first, so that the limits are checked before a pixel is decoded. The orientation
is applied exactly once: libjxl applies that of the codestream, and EXIF counts only if the codestream has none.
"""

from __future__ import annotations

import io
from typing import Any, Final, NamedTuple, cast

from PIL import ExifTags, Image, ImageFile, JpegImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.containers.container import Container, Layout
from preprocess_ensemble.imaging.containers.iso_media import JXL_CONTAINER, file_boxes
from preprocess_ensemble.imaging.containers.read import read
from preprocess_ensemble.imaging.inspection import count_scans, scans_within_limit
from preprocess_ensemble.imaging.limits import DecodeError, check_count, unsupported_variant

_RATIOS: Final = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
_SIZES: Final = ((9, 1), (13, 1), (18, 1), (30, 1))
_HEADER_BYTES: Final = 64  # bytes read of a codestream; its header is shorter
_MOST_BOXES: Final = 1_000
_MOST_EXTRA_CHANNELS: Final = 4
"""Transparency, depth and the like. The format allows 4,096; each takes the memory of a picture."""


class JxlHeader(NamedTuple):
    """The beginning of a codestream: ISO/IEC 18181-1, annex D. Pixels as stored, orientation as in EXIF."""

    width: int
    height: int
    orientation: int = 1
    is_animated: bool = False
    bit_depth: int = 8
    extra_channels: int = 0
    is_xyb: bool = True
    """Whether colours are stored as XYB. Lossless files and files with a JPEG inside never do; other lossy files do."""


class JxlFile(ImageFile.ImageFile):
    """A JPEG XL file with the interface of Pillow's readers; mode and colour profile are known after loading."""

    format = "JXL"
    format_description = "JPEG XL"

    def _open(self) -> None:
        assert self.fp is not None
        self._file = self.fp.read()
        header = _read_header(_codestream_start(self._file))
        # Refuse animations, because the decoder returns their last frame.
        if header.is_animated or header.extra_channels > _MOST_EXTRA_CHANNELS:
            raise unsupported_variant(self.format_description)
        self.header = header
        container = read(self._file)
        self.is_jpeg = b"jbrd" in container.kinds
        # A file made from a JPEG without loss is restored, and turned as the JPEG says.
        swaps = header.orientation > 4 and not self.is_jpeg
        self._size = (header.height, header.width) if swaps else (header.width, header.height)
        self._mode = "RGBA" if header.extra_channels else "RGB"
        self.info["bit_depth"] = header.bit_depth
        for block in reversed(container.blocks):
            self.info[block.kind.lower()] = block.data
        if b"brob" in container.kinds:
            self.info["compressed_metadata"] = True

    def load(self) -> Any:
        """Decode the pixels. Raises RuntimeError for a damaged file, and :class:`DecodeError` above a limit."""
        if self._im is None:
            is_jpeg, info, data, profile, *_ = _decode(self._file)
            if is_jpeg:
                self._load_jpeg(data)
            elif (info.width, info.height) != self._size or info.mode == "F;16":
                raise unsupported_variant(self.format_description)
            else:
                self._mode = info.mode
                self.im = Image.frombytes(self.mode, self.size, data).im
                if profile:
                    self.info["icc_profile"] = profile
        return super().load()

    def getexif(self) -> Image.Exif:
        """Return the EXIF block; without its orientation if that of the codestream has been applied."""
        if self.is_jpeg and "compressed_metadata" in self.info:
            self.load()  # the restored JPEG has the block
        exif = super().getexif()
        if self.header.orientation != 1 and not self.is_jpeg:
            exif.pop(ExifTags.Base.Orientation, None)
        return exif

    def _load_jpeg(self, data: bytes) -> None:
        with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
            scans = count_scans(data) if image.info.get("progressive") else 0
            if not scans_within_limit(scans, image.width * image.height):
                message = f"The JPEG XL file holds a JPEG of {scans:,} scans, too many for its pixels."
                raise DecodeError(ImageStatus.LIMIT, message)
            if image.size != self._size:
                raise ValueError("The JPEG inside has another size.")
            image.load()
            self._mode, self.im = image.mode, image.im
            self.info = {**image.info, "bit_depth": 8}


def read_container(data: bytes) -> Container:
    """Read an image file's structure; a JPEG XL's from its JPEG, or from its pixels, which tell its colours."""
    if not data.startswith((JXL_CONTAINER, b"\xff\x0a")):
        return read(data)
    if jpeg := restored_jpeg(data):
        return read(jpeg)
    container = read(data)
    with JxlFile(io.BytesIO(data)) as image:
        image.load()
        container.layout = Layout(
            colours="grey" if image.mode.startswith("L") else image.mode.removesuffix("A"),
            depth=image.header.bit_depth,
            has_alpha=image.mode.endswith("A"),
            further_channels=image.header.extra_channels - image.mode.endswith("A"),
            is_lossless=not (image.is_jpeg or image.header.is_xyb),
            profile=image.info.get("icc_profile", b""),
        )
    return container


def restored_jpeg(data: bytes) -> bytes:
    """Return the JPEG that a file was made from without loss, or nothing. Raises RuntimeError and ImportError."""
    is_jpeg, _, jpeg, *_ = _decode(data)
    return jpeg if is_jpeg else b""


def _decode(data: bytes) -> tuple[Any, ...]:
    """Return (whether it was a JPEG, mode and size, pixels or JPEG, colour profile, unused values)."""
    from pillow_jxl import Decoder

    # Decode in the calling thread, whose time is counted.
    return cast("tuple[Any, ...]", Decoder(num_threads=0)(data))


def _codestream_start(data: bytes) -> bytes:
    if not data.startswith(JXL_CONTAINER):
        return data[:_HEADER_BYTES]
    start = b""
    for number, box in enumerate(file_boxes(data), start=1):
        check_count(number, _MOST_BOXES, "JPEG XL file", "boxes")
        if box.name in (b"jxlc", b"jxlp"):  # a partial codestream begins with its number, of 4 bytes
            first = box.start + (4 if box.name == b"jxlp" else 0)
            start += data[first : min(box.stop, first + _HEADER_BYTES)]
    return start[:_HEADER_BYTES]


class _Bits:
    """Reads numbers from bytes, the lowest bit first, as annex B of 18181-1 defines them."""

    def __init__(self, data: bytes) -> None:
        self._bits = int.from_bytes(data, "little")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise EOFError("The header ends early.")
        value = self._bits & ((1 << count) - 1)
        self._bits >>= count
        return value

    def choose(self, *choices: tuple[int, int]) -> int:
        """Read U32: two bits choose (number of the bits that follow, offset that is added to them)."""
        count, offset = choices[self.take(2)]
        return self.take(count) + offset

    def size(self) -> tuple[int, int]:
        is_small = self.take(1)
        height = 8 * (self.take(5) + 1) if is_small else self.choose(*_SIZES)
        if ratio := self.take(3):
            numerator, denominator = _RATIOS[ratio - 1]
            return height * numerator // denominator, height
        return 8 * (self.take(5) + 1) if is_small else self.choose(*_SIZES), height

    def skip_preview(self) -> None:
        is_small = self.take(1)
        sizes = ((0, 16), (0, 32), (5, 1), (9, 33)) if is_small else ((6, 1), (8, 65), (10, 321), (12, 1345))
        self.choose(*sizes)
        if not self.take(3):
            self.choose(*sizes)


def _read_header(codestream: bytes) -> JxlHeader:
    if not codestream.startswith(b"\xff\x0a"):
        raise SyntaxError("not a JPEG XL codestream")
    bits = _Bits(codestream[2:])
    header = JxlHeader(*bits.size())
    if bits.take(1):  # all further fields have their defaults
        return header
    if bits.take(1):
        header = header._replace(orientation=1 + bits.take(3))
        if bits.take(1):
            bits.size()
        if bits.take(1):
            bits.skip_preview()
        if bits.take(1):
            return header._replace(is_animated=True)
    if bits.take(1):  # floating point
        bit_depth = bits.choose((0, 32), (0, 16), (0, 24), (6, 1))
        bits.take(4)
    else:
        bit_depth = bits.choose((0, 8), (0, 10), (0, 12), (6, 1))
    bits.take(1)
    channels = bits.choose((0, 0), (0, 1), (4, 2), (12, 1))
    # Stop at a channel that is not plain transparency: its fields, and those that follow, are not read.
    is_xyb = all(bits.take(1) for _ in range(channels)) and bool(bits.take(1))
    return header._replace(bit_depth=bit_depth, extra_channels=channels, is_xyb=is_xyb)

"""The facts about a file before a pixel is decoded, and their check against the limits.

Pillow handles the parts of a file one by one, in Python, and a part may cost a thousand times its bytes. Each colour
profile of a PNG is inflated to a megabyte. Each tile of a TIFF is read separately. A thousand tags of EXIF or TIFF may
all point at the same bytes.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from PIL import ImageFile, TiffImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.containers import gif, iso_media, png, riff, tiff
from preprocess_ensemble.imaging.containers.container import number
from preprocess_ensemble.imaging.limits import SMALLER, DecodeError, DecodeLimits, check_count

_MAX_ANIMATED_PIXELS: Final = 32_000_000
"""Limit for animations: decoders hold the canvas several times, 16 bytes per pixel, and 4 KB may claim any size."""
_MAX_SLOW_PIXELS: Final = 1_000_000
"""Limit for variants that Pillow decodes in Python, at a microsecond or more per pixel and with the GIL held."""

_RLE_BYTES_PER_PIXEL: Final = 3
_RLE_BYTES: Final = 65_536
"""Limits of a run-length BMP. A run of one pixel takes two bytes; the rest is for header, palette and ends of lines."""

MAX_READS: Final = 10_000
"""Reads of a header. A camera's file takes a few hundred; a GIF with 400 KB of XMP, in blocks of 85 bytes, 10,000."""

_MAX_CHUNKS: Final = 1_000
"""Chunks in a PNG besides its pixels: two seconds of work if each is a colour profile made for an attack."""
_PIXEL_CHUNKS: Final = frozenset({b"IDAT", b"fcTL", b"fdAT"})
_MAX_PIXEL_CHUNKS: Final = 100_000
"""Chunks of pixels in a PNG: a fifth of a second if they are empty. Encoders write chunks of 8 KB and more."""

_MAX_TILES: Final = 100_000
"""Strips or tiles in a TIFF: half a second if each is one byte. 128 megapixels in tiles of 64 x 64 have 31,250."""
_TILE_TAGS: Final = (TiffImagePlugin.STRIPOFFSETS, TiffImagePlugin.TILEOFFSETS)

_PLAIN_PPM: Final = (b"P1", b"P2", b"P3")
_MAX_COMMENTS: Final = 1_000
"""Comments in a plain-text PPM. Each costs a copy of a megabyte: 600 KB took three seconds, and 15 MB minutes."""

_ISO_MEDIA: Final = frozenset({"AVIF", "HEIC"})
_DECODED_SHARE: Final = 3
"""Most pixels in the parts of a HEIC or AVIF, as a multiple of the most pixels of a picture. Transparency doubles the
pixels, and the last tiles of a grid may stand out."""
_STORED_SHARE: Final = 4
"""Most bytes in all parts, as a multiple of the file. An AVIF may hold four layers of one stream, each as a picture."""
_STORED_BYTES: Final = 2**20
"""Bytes that the parts of any file may have. Encoders store equal parts once, and the tiles of a plain picture are
equal: a file of 3 KB has 16 KB in its parts. This many bytes cost as much as an ordinary file of a megabyte."""
_MAX_HEIC_ITEMS: Final = 1_000
"""Items that libheif opens: pictures, tiles, EXIF and XMP. 128 megapixels have 500 tiles of the usual 512 x 512."""

_MAX_SCANS: Final = 1000
_MAX_SCANNED_PIXELS: Final = 2_000_000_000
"""Scans times pixels. A scan of a few bytes takes up to 0.65 ms per megapixel to decode, so this is 1.3 s; encoders
make about ten scans, so 128 megapixels fit."""


class Facts(NamedTuple):
    """Header and structure of a file, as far as limits concern them; size in stored pixels."""

    file_bytes: int
    width: int
    height: int
    frames: int = 1
    metadata_bytes: int = 0
    scans: int = 0
    is_slow: bool = False
    is_animated: bool = False
    is_run_length: bool = False


def check(facts: Facts, limits: DecodeLimits) -> None:
    """Raise :class:`DecodeError` for a file whose pixels must not be decoded.

    - TOO_LARGE: more pixels than the limit, or than a limit for this variant of the format.
    - LIMIT: side ratio, frames, metadata, scans, or codes without pixels.
    """
    pixels, sides = facts.width * facts.height, f"{facts.width} x {facts.height}"
    for applies, most, where in (
        (True, limits.max_pixels, ""),
        (facts.is_slow, _MAX_SLOW_PIXELS, " for this rare variant of its format, which is slow to decode"),
        (facts.is_animated, _MAX_ANIMATED_PIXELS, " for an animation"),
    ):
        if applies and pixels > most:
            message = f"The image has {pixels / 1e6:,.1f} megapixels ({sides}); the limit is "
            raise DecodeError(ImageStatus.TOO_LARGE, f"{message}{most / 1e6:g}{where}{SMALLER}")
    # Limit the bytes of a run-length BMP: codes that only move the position hold no pixels, but cost as much.
    most = _RLE_BYTES_PER_PIXEL * pixels + _RLE_BYTES
    if facts.is_run_length and facts.file_bytes > most:
        message = f"The BMP file has {facts.file_bytes:,} bytes; the limit is {most:,} for {sides} pixels "
        raise DecodeError(ImageStatus.LIMIT, message + "with run-length coding.")
    ratio = max(facts.width, facts.height) / min(facts.width, facts.height)
    if ratio > limits.max_side_ratio:
        message = f"The image's sides, {sides}, have a ratio of {ratio:.1f}; "
        raise DecodeError(ImageStatus.LIMIT, f"{message}the limit is {limits.max_side_ratio:g}: crop it.")
    check_count(facts.frames, limits.max_frames, "image", "frames")
    if facts.metadata_bytes > limits.max_metadata_bytes:
        message = f"The image carries {facts.metadata_bytes:,} bytes of metadata (EXIF, XMP, colour profile); "
        raise DecodeError(ImageStatus.LIMIT, f"{message}the limit is {limits.max_metadata_bytes:,}: remove some.")
    if not scans_within_limit(facts.scans, pixels):
        message = f"The JPEG file has {facts.scans:,} scans, too many for its {sides} pixels."
        raise DecodeError(ImageStatus.LIMIT, message)


def check_parts(name: str, data: bytes, max_pixels: int) -> None:
    """Raise :class:`DecodeError` for a file whose parts cost too much.

    - LIMIT: too many parts in a PNG, TIFF, PPM, HEIC or AVIF file.
    - TOO_LARGE: parts of a HEIC or AVIF with far more than ``max_pixels``, from which its picture may be cropped.
    - UNSUPPORTED_FORMAT: a HEIC or AVIF without a still picture.
    """
    if name == "PNG":
        counts = [0, 0]
        for chunk, _, _ in png.chunks(data):
            counts[chunk in _PIXEL_CHUNKS] += 1
            check_count(counts[True], _MAX_PIXEL_CHUNKS, "PNG file", "chunks of pixels")
            check_count(counts[False], _MAX_CHUNKS, "PNG file", "chunks besides its pixels")
    elif name == "TIFF":
        reader = tiff.Tiff(data)
        entries = reader.directory(reader.first, MAX_READS).entries  # a header with more is refused
        parts = max(entries[tag].values if tag in entries else 0 for tag in _TILE_TAGS)
        check_count(parts, _MAX_TILES, "TIFF file", "strips or tiles")
    elif name == "PPM" and data.startswith(_PLAIN_PPM):
        check_count(data.count(b"#"), _MAX_COMMENTS, "PPM file", "comments")
    elif name in _ISO_MEDIA:
        media = iso_media.IsoMedia(data)
        names = {box.name for box in media.top_level}
        if b"moov" in names and b"meta" not in names:
            message = f"The {name} file is an image sequence without a still picture, which cannot be read here."
            raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message)
        if name == "HEIC":
            check_count(len(media.items), _MAX_HEIC_ITEMS, "HEIC file", "items, such as tiles")
        most_bytes = max(_STORED_BYTES, _STORED_SHARE * len(data))
        check_count(media.stored_bytes, most_bytes, f"{name} file", "bytes in its parts together")
        most = _DECODED_SHARE * max_pixels
        if (pixels := media.decoded_pixels(most)) > most:
            total = f"{pixels / 1e6:,.1f} megapixels in all"
            message = f"The {name} file makes its picture of {total}; the limit is {most / 1e6:g}{SMALLER}"
            raise DecodeError(ImageStatus.TOO_LARGE, message)


def count_frames(name: str, image: ImageFile.ImageFile, data: bytes, at_most: int) -> int:
    """Count the pictures in a file of the format ``name`` without decoding any; stop at one more than ``at_most``.

    Pillow's own ``n_frames`` parses every directory of a TIFF and every block of a GIF, however many there are.
    """
    if name == "TIFF":
        frames = sum(1 for _ in tiff.Tiff(data).positions(at_most + 1))
    elif name == "GIF":
        frames = sum(1 for _ in islice((1 for label, _, _ in gif.blocks(data) if label == gif.IMAGE), at_most + 1))
    else:
        frames = int(getattr(image, "n_frames", 1))
    return max(1, frames)


def count_scans(data: bytes) -> int:
    """Return how many scans the file may have; those of a picture inside the metadata count too."""
    return data.count(b"\xff\xda")


def scans_within_limit(scans: int, pixels: int) -> bool:
    """Whether the scans of a progressive JPEG of ``pixels`` (width times height) can be decoded in reasonable time."""
    return scans <= _MAX_SCANS and scans * pixels <= _MAX_SCANNED_PIXELS


def structure_end(name: str, data: bytes) -> int:
    """Return the length in bytes that the structure of a file of the format ``name`` claims; 0 for other formats."""
    if name == "WebP":
        return riff.end(data)
    if name == "TIFF":
        reader = tiff.Tiff(data)
        return reader.pixels_end(reader.directory(reader.first, MAX_READS))
    if name not in _ISO_MEDIA and not data.startswith(iso_media.JXL_CONTAINER):
        return 0
    position = 0
    while position + 16 <= len(data):
        size = number(data, position, 4)
        size = number(data, position + 8, 8) if size == 1 else size
        if size < 8:  # 0: up to the end of the file
            break
        position += size
    return position


def check_compression(data: bytes) -> None:
    """Raise :class:`DecodeError` (UNSUPPORTED_FORMAT) for a TIFF that could not be decoded because of its compression.

    The wheels of Pillow have no WebP in their libtiff, and some crash if they are asked to write it.
    """
    reader = tiff.Tiff(data)
    for method in reader.numbers(reader.directory(reader.first, MAX_READS), TiffImagePlugin.COMPRESSION)[:1]:
        name = TiffImagePlugin.COMPRESSION_INFO.get(method)
        if name is None or name == "webp":
            message = f"The TIFF file is compressed by {name or f'method {method}'}, which Pillow cannot read here."
            raise DecodeError(ImageStatus.UNSUPPORTED_FORMAT, f"{message} No extra of this package adds it.")

"""How a file stores its picture, which tells whether another file of the same picture is as good."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.colours import (
    ADOBE_RGB,
    SRGB,
    ColourSpace,
    space_of_chromaticities,
    space_of_codes,
    space_of_profile,
)

if TYPE_CHECKING:
    from PIL import Image

    from preprocess_ensemble.imaging.iso_media import IsoMedia

_ADOBE_RGB: Final = "R03"
"""DCF 2.0: the interoperability index of a camera that was set to Adobe RGB, which embeds no profile."""
_SRGB_CODES: Final = frozenset(struct.pack(">HH", *codes) for codes in ((1, 13), (2, 2), (1, 2), (2, 13)))
"""Primaries and transfer by ITU-T H.273: those of sRGB, or unspecified."""
_SRGB_GAMMA: Final = 0.45455
_SRGB_CHROMATICITY: Final = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
"""What PNG, third edition, section 11.3.2.5 tells encoders to write into gAMA and cHRM for sRGB."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """What the header of a file says about its picture."""

    extras: tuple[str, ...] = ()
    """What an opaque picture of 8 bits a channel cannot hold, such as ``"transparency"``."""
    colour_space: ColourSpace = SRGB

    def lacks_kinds_of(self, other: Encoding) -> str:
        """Say what kinds of data ``other``, a file of the same picture, has and this file cannot hold; empty if none.

        These are transparency, more bits a channel, further frames and colours of a wider profile.
        """
        missing = [extra for extra in other.extras if extra not in self.extras]
        if not self.colour_space.has_all_of(other.colour_space):
            missing.append(f"the colour profile {other.colour_space.name}")
        return " and ".join(missing)


def read_encoding(data: bytes) -> Encoding | None:
    """Read how an image file stores its picture; None if that cannot be read."""
    from preprocess_ensemble.imaging.formats import open_image
    from preprocess_ensemble.imaging.iso_media import IsoMedia

    try:
        with open_image(data) as image:
            if image.format == "JXL":
                image.load()  # its profile is among the pixels
            media = IsoMedia(data) if data[4:8] == b"ftyp" else None
            coded = _coded_space(data, media)
            return Encoding(extras=_extras(image, data, media), colour_space=_colour_space(image, coded))
    except Exception:  # Pillow may raise anything for a damaged file
        return None


def _extras(image: Image.Image, data: bytes, media: IsoMedia | None) -> tuple[str, ...]:
    tiles = getattr(image, "tile", ())
    is_deep = image.mode.startswith(("I", "F")) or any(";16" in str(tile[3]) for tile in tiles)
    is_deep = is_deep or image.info.get("bit_depth", 8) > 8
    if image.format == "PPM":
        is_deep = is_deep or any(isinstance(tile[3], tuple) and tile[3][1] > 255 for tile in tiles)  # mode, maxval
    elif image.format == "JPEG2000":
        is_deep = is_deep or _is_deep_jpeg_2000(data)
    # Further pictures in a JPEG are appended to it. A file with them never moves in favour of one without, but its
    # first picture may have copies.
    frames = 1 if image.format in ("JPEG", "MPO") else getattr(image, "n_frames", 1)
    has_frames = frames > 1
    if media is not None:
        # AV1 Codec ISO Media File Format Binding, section 2.3.3: the bit high_bitdepth. Pillow returns 8 of 10 or 12.
        is_deep = is_deep or any(data[box.start + 2] & 0x40 for box in media.properties if box.name == b"av1C")
        has_frames = has_frames or any(box.name == b"moov" for box in media.top_level)
    held = {
        "more than 8 bits a channel": is_deep,
        "further frames": has_frames,
        "transparency": image.has_transparency_data,
    }
    return tuple(name for name, is_held in held.items() if is_held)


def _is_deep_jpeg_2000(data: bytes) -> bool:
    """Tell whether a component has more than 8 bits. ITU-T T.800, section A.5.1: the field Ssiz, 3 bytes apart."""
    start = data.index(b"\xff\x4f\xff\x51") + 40  # of the codestream, with Csiz, the number of components
    (components,) = struct.unpack_from(">H", data, start)
    return any(depth & 0x7F > 7 for depth in data[start + 2 : start + 2 + 3 * components : 3])


def _colour_space(image: Image.Image, codes: bytes) -> ColourSpace:
    """Return the colours that a file can show, by its profile, what it says in its place, or ``codes``; else sRGB."""
    from PIL import ExifTags

    info = image.info
    if profile := info.get("icc_profile"):
        return space_of_profile(profile)
    exif = image.getexif()
    # Before Pillow 13, a directory that is not there raises KeyError.
    has_interop = ExifTags.IFD.Interop in exif.get_ifd(ExifTags.IFD.Exif)
    if has_interop and exif.get_ifd(ExifTags.IFD.Interop).get(ExifTags.Interop.InteropIndex) == _ADOBE_RGB:
        return ADOBE_RGB
    fields = (info.get("gamma", _SRGB_GAMMA), info.get("chromaticity", _SRGB_CHROMATICITY))
    if "srgb" not in info and fields != (_SRGB_GAMMA, _SRGB_CHROMATICITY):
        key = repr(fields).encode()
        if chromaticity := info.get("chromaticity"):
            return space_of_chromaticities(chromaticity[:2], chromaticity[2:], key)
        return ColourSpace(name="with another gamma", primaries=None, key=key, is_profile=False)
    if len(codes) == struct.calcsize(">HH"):
        return space_of_codes(*struct.unpack(">HH", codes))
    return ColourSpace(name="with several profiles", primaries=None, key=codes, is_profile=False) if codes else SRGB


def _coded_space(data: bytes, media: IsoMedia | None) -> bytes:
    """Return the colour space that a HEIC, AVIF or PNG file names by numbers, such as that of HDR; empty for sRGB."""
    if data.startswith(b"\x89PNG"):
        # PNG, third edition, section 11.3.2.6: four bytes, of which the first two say primaries and transfer.
        start = data.find(b"\0\0\0\x04cICP", 0, max(0, data.find(b"IDAT"))) + 8
        coded = bytes((0, data[start], 0, data[start + 1])) if start > 8 else b""
        return b"" if coded in _SRGB_CODES else coded
    if media is None:
        return b""
    starts = (box.start for box in media.properties if box.name == b"colr" and data.startswith(b"nclx", box.start))
    return b"".join(sorted({data[start + 4 : start + 8] for start in starts} - _SRGB_CODES))

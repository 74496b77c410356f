"""The kinds of data in a picture, by its content: an alpha channel that is opaque everywhere is not transparency."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clip_client.dedup.formats.colours import ADOBE_RGB, SRGB, ColourSpace, space_of
from preprocess_ensemble.imaging.containers.container import EXIF, Container
from preprocess_ensemble.imaging.containers.tiff import EXIF_DIRECTORY, INTEROP_DIRECTORY, Tiff

if TYPE_CHECKING:
    from PIL import Image

_BITS, _FRAMES, _CHANNELS, _ALPHA = "more than 8 bits a channel", "further frames", "further channels", "transparency"

_COLOUR_SPACE, _INTEROP_INDEX = 0xA001, 1
_INDEX_OF_ADOBE_RGB, _CODE_OF_ADOBE_RGB = b"R03", (2,)
"""Signs of a camera that was set to Adobe RGB and embeds no profile: by DCF 2.0, and by no standard."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    extras: tuple[str, ...] = ()
    """Kinds of data that an opaque picture of 8 bits a channel cannot hold, such as ``"transparency"``."""
    colour_space: ColourSpace = SRGB
    profile: bytes = field(default=b"", compare=False)
    names_colours: bool = field(default=False, compare=False)
    """Whether the file says which colours its numbers mean; if not, sRGB is assumed."""
    is_lossless: bool = field(default=False, compare=False)
    """Whether its format may store exactly the pixels that it was made from."""

    def lacks_kinds_of(self, other: Encoding) -> str:
        """Name the kinds of data that ``other``, a file of the same picture, has and this file is not known to have."""
        # Only equal pixels prove that a file has the same transparency or bits as another one.
        missing = list(other.extras)
        if not self.colour_space.has_all_of(other.colour_space):
            missing.append(f"the colour profile {other.colour_space.name}")
        return " and ".join(missing)


def read_encoding(data: bytes) -> Encoding | None:
    return read_pixels(data, always=False)[0]


def read_pixels(data: bytes, *, always: bool = True) -> tuple[Encoding | None, list[Image.Image]]:
    """Return the encoding, and all that a file shows: nothing if it holds more, or if any of it cannot be read.

    Unless ``always``, nothing is decoded if the header alone tells what the picture holds.
    """
    from preprocess_ensemble.imaging.decode import DecodeError
    from preprocess_ensemble.imaging.jpeg_xl import read_container
    from preprocess_ensemble.imaging.whole_pixels import decode_whole

    pictures: list[Image.Image] = []
    try:
        container = read_container(data)
        layout = container.layout
        if layout is None:
            return None, []
        held = {_FRAMES: layout.pages > 1, _CHANNELS: layout.further_channels > 0}
        held |= {_BITS: layout.depth > 8, _ALPHA: layout.has_alpha}
        if layout.pages == 1 and (always or any(held.values())):
            with suppress(DecodeError):
                pictures = decode_whole(data, layout)
                held = {_BITS: len(pictures) > 1, _ALPHA: pictures[0].mode == "RGBA"}
        space = ADOBE_RGB if not layout.profile and _is_adobe_rgb(container) else space_of(layout)
    except Exception:  # what reads JPEG XL may raise anything for a damaged file
        return None, []
    return Encoding(
        extras=tuple(name for name, is_held in held.items() if is_held),
        colour_space=space,
        profile=layout.profile,
        names_colours=bool(layout.profile or layout.codes),
        is_lossless=layout.is_lossless,
    ), pictures


def _is_adobe_rgb(container: Container) -> bool:
    for block in container.all(EXIF):
        tiff = Tiff(block.data)
        for details in tiff.below(tiff.directory(tiff.first), EXIF_DIRECTORY):
            below = tiff.below(details, INTEROP_DIRECTORY)
            indexes = [tiff.values(one.entries.get(_INTEROP_INDEX))[:3] for one in below]
            if _INDEX_OF_ADOBE_RGB in indexes or tiff.numbers(details, _COLOUR_SPACE) == _CODE_OF_ADOBE_RGB:
                return True
    return False

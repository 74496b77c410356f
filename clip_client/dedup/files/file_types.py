"""What a file is by the ending of its name: a photo, or something that belongs to one."""

from __future__ import annotations

import os
from typing import Final

PHOTO_SUFFIXES: Final = frozenset(
    ".avif .bmp .gif .heic .heif .hif .jfif .jp2 .jpe .jpeg .jpg .jxl .mpo .pbm .pgm .png .pnm .ppm .qoi .tif .tiff "
    ".webp".split(),
)
"""A file in a folder is taken for a photo by these endings, in any case; a file that is named itself always is.

HEIC and JPEG XL are among them although not every server reads them: a photo that cannot be read shall be listed, not
overlooked.
"""

RAW_SUFFIXES: Final = frozenset(
    ".3fr .arw .cr2 .cr3 .crw .dcr .dng .erf .fff .gpr .iiq .kdc .mef .mos .mrw .nef .nrw .orf .pef .raf .raw .rw2 "
    ".rwl .sr2 .srf .srw .x3f".split(),
)
"""What a camera's sensor saw. Beside a photo of its name such a file belongs to it; alone it is a photo itself."""

RAW: Final = "RAW file"
FILM: Final = "film"
SIDECAR: Final = "sidecar"
EDITED: Final = "edited version"

PICTURES: Final = frozenset({RAW, FILM})
"""Companions that hold a picture, which are large: planning compares them by size, moving by their bytes."""

COMPANION_KINDS: Final = {
    **dict.fromkeys(RAW_SUFFIXES, RAW),
    **dict.fromkeys(".mov .mp4".split(), FILM),
    **dict.fromkeys(".aae .dop .pp3 .thm .xmp".split(), SIDECAR),
}
"""Ending -> what such a file is to a photo of the same name beside it."""


def suffix_of(name: str) -> str:
    """Return the ending of a file's name with its dot, in lower case."""
    return os.path.splitext(name)[1].lower()


def is_raw(path: str) -> bool:
    """Tell whether the name is that of a RAW file."""
    return suffix_of(path) in RAW_SUFFIXES

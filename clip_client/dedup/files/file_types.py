"""Kinds of files by their names alone: photos, RAW files, films, sidecars."""

from __future__ import annotations

import os
from typing import Final

from clip_client.dedup.types import RAW

PHOTO_SUFFIXES: Final = frozenset(
    ".avif .bmp .gif .heic .heif .hif .jfif .jp2 .jpe .jpeg .jpg .jxl .mpo .pbm .pgm .png .pnm .ppm .qoi .tif .tiff "
    ".webp".split(),
)
"""Endings of photos, in upper or lower case. A file that the user names is a photo whatever its ending is. HEIC and
JPEG XL are included although not every server reads them, so that a report lists what cannot be read."""
RAW_SUFFIXES: Final = frozenset(
    ".3fr .arw .cr2 .cr3 .crw .dcr .dng .erf .fff .gpr .iiq .kdc .mef .mos .mrw .nef .nrw .orf .pef .raf .raw .rw2 "
    ".rwl .sr2 .srf .srw .x3f".split(),
)
"""Endings of sensor data. Such a file is a companion of the photo with its name beside it, else a photo itself."""
FILM: Final = "film"
SIDECAR: Final = "sidecar"
EDITED: Final = "edited version"
RESOURCE_FORK: Final = "resource fork"
"""Tags and comments of ``a.jpg``, which macOS writes as ``._a.jpg`` to drives of other systems."""
OTHER: Final = "file of its name"
"""A file of unknown purpose: the photo of its name does not move."""
PICTURES: Final = frozenset({RAW, FILM})
COMPANION_KINDS: Final = {
    **dict.fromkeys(RAW_SUFFIXES, RAW),
    **dict.fromkeys(".mov .mp .mp4".split(), FILM),
    **dict.fromkeys(".aae .acr .cos .dop .json .on1 .pp3 .thm .vrd .xmp".split(), SIDECAR),
    ".wav": "voice note",
}


def suffix_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def is_raw(path: str) -> bool:
    return suffix_of(path) in RAW_SUFFIXES


def companion_kind(path: str) -> str:
    name = os.path.basename(path)
    return RESOURCE_FORK if name.startswith("._") else COMPANION_KINDS.get(suffix_of(name), OTHER)

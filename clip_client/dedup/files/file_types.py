"""What a file is by its name: a photo, or a companion of one, which moves with it.

Companions are RAW files, the film of a live photo, and sidecars of other programs.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from clip_client.dedup.types import RAW, Companion

PHOTO_SUFFIXES: Final = frozenset(
    ".avif .bmp .gif .heic .heif .hif .jfif .jp2 .jpe .jpeg .jpg .jxl .mpo .pbm .pgm .png .pnm .ppm .qoi .tif .tiff "
    ".webp".split(),
)
"""Endings of photos, in upper or lower case. A file that the user names is a photo whatever its ending is.

HEIC and JPEG XL are included although not every server reads them, so that a report lists what cannot be read.
"""

RAW_SUFFIXES: Final = frozenset(
    ".3fr .arw .cr2 .cr3 .crw .dcr .dng .erf .fff .gpr .iiq .kdc .mef .mos .mrw .nef .nrw .orf .pef .raf .raw .rw2 "
    ".rwl .sr2 .srf .srw .x3f".split(),
)
"""Endings of sensor data. Such a file is a companion of the photo with its name beside it, else a photo itself."""

FILM: Final = "film"
SIDECAR: Final = "sidecar"
EDITED: Final = "edited version"

PICTURES: Final = frozenset({RAW, FILM})
"""Kinds of companions that hold a picture."""

COMPANION_KINDS: Final = {
    **dict.fromkeys(RAW_SUFFIXES, RAW),
    **dict.fromkeys(".mov .mp4".split(), FILM),
    **dict.fromkeys(".aae .dop .pp3 .thm .xmp".split(), SIDECAR),
}
"""Ending -> kind of the companion."""


def suffix_of(name: str) -> str:
    """Return the ending of a file's name with its dot, in lower case."""
    return os.path.splitext(name)[1].lower()


def is_raw(path: str) -> bool:
    """Tell whether the name is that of a RAW file."""
    return suffix_of(path) in RAW_SUFFIXES


def photos_and_companions(names: Sequence[str], *, raw: bool) -> tuple[set[str], set[str]]:
    """Return which names in a folder are photos, and which belong to one of these photos, such as sidecars.

    With ``raw``, a RAW file is a photo if no photo has its name.
    """
    photos = {name for name in names if suffix_of(name) in PHOTO_SUFFIXES}
    if raw:
        owners = _owners(photos)
        photos |= {name for name in names if suffix_of(name) in RAW_SUFFIXES and _stem(name) not in owners}
    owners = _owners(photos)
    found = {name for name in names if suffix_of(name) in COMPANION_KINDS and _stem(name) in owners}
    owners = {name.lower() for name in found}
    return photos, found | {name for name in names if suffix_of(name) in COMPANION_KINDS and _stem(name) in owners}


def _owners(photos: Iterable[str]) -> set[str]:
    return {owner for name in photos for owner in (name.lower(), _stem(name))}


def _stem(name: str) -> str:
    return os.path.splitext(name)[0].lower()


def companions(photos: Iterable[str]) -> dict[str, tuple[Companion, ...]]:
    """Return photo -> its companions, for those of ``photos`` that have any.

    A companion is in the same folder and has the name of the photo up to the ending, in upper or lower case, or the
    whole name of the photo followed by its own ending (``a.jpg.xmp``), or that of such a companion (``a.nef.xmp``). If
    two photos in the folder have that name, whether in ``photos`` or not, it belongs to neither. A RAW file in
    ``photos`` has no other RAW file as companion.
    """
    folders: dict[str, list[str]] = {}
    for photo in photos:
        folders.setdefault(os.path.dirname(photo), []).append(photo)
    found: dict[str, tuple[Companion, ...]] = {}
    for folder, inside in folders.items():
        listing = _Folder(folder)
        for photo in inside:
            if own := listing.of(photo):
                found[photo] = tuple(sorted(own, key=lambda companion: os.fsencode(companion.path)))
    return found


def what_would_be_lost(duplicate: Iterable[Companion], kept: Iterable[Companion]) -> str:
    """Return the first kind of companion that the duplicate has and the kept photo lacks; empty if none."""
    kinds = {companion.kind for companion in kept}
    return next((companion.kind for companion in duplicate if companion.kind not in kinds), "")


def differing_companion(
    duplicate: Iterable[Companion], kept: Iterable[Companion], hash_of: Callable[[str], str]
) -> str:
    """Return the first kind of companion whose content the kept photo's companions do not have; empty if they have all.

    ``hash_of`` is called only for files of equal size.
    """
    others = list(kept)
    return next((one.kind for one in duplicate if not any(_is_copy(one, other, hash_of) for other in others)), "")


def _is_copy(one: Companion, other: Companion, hash_of: Callable[[str], str]) -> bool:
    size = _size(one.path)
    if one.kind != other.kind or size is None or size != _size(other.path):
        return False
    sha256 = hash_of(one.path)
    return size == 0 or (bool(sha256) and sha256 == hash_of(other.path))


def _size(path: str) -> int | None:
    with suppress(OSError):
        return os.stat(path).st_size
    return None


class _Folder:
    """The files in a folder, counted and sorted by their names and stems in lower case."""

    def __init__(self, folder: str) -> None:
        self.names: Counter[str] = Counter()
        self.photos: Counter[str] = Counter()
        """Number of photos by stem."""
        self.raws: Counter[str] = Counter()
        """Number of RAW files by stem."""
        self.companions: dict[str, list[Companion]] = {}
        """Companions by the name or stem that they belong to."""
        with suppress(OSError):
            for name in os.listdir(folder or os.curdir):
                stem, suffix = os.path.splitext(name.lower())
                self.names[name.lower()] += 1
                self.photos[stem] += suffix in PHOTO_SUFFIXES
                self.raws[stem] += suffix in RAW_SUFFIXES
                if kind := COMPANION_KINDS.get(suffix):
                    companion = Companion(path=os.path.join(folder, name), kind=kind)
                    self.companions.setdefault(stem, []).append(companion)

    def of(self, photo: str) -> list[Companion]:
        name = os.path.basename(photo)
        stem = os.path.splitext(name)[0].lower()
        own = self._with_whole_name(name)
        if is_raw(name):
            beside = self.companions.get(stem, []) if self.raws[stem] < 2 and not self.photos[stem] else []
            return own + [companion for companion in beside if companion.kind != RAW]
        beside = self.companions.get(stem, []) if self.photos[stem] < 2 else []
        # Raw developers name their sidecars after the RAW file (a.nef.xmp, a.nef.pp3).
        return own + [each for one in beside for each in (one, *self._with_whole_name(os.path.basename(one.path)))]

    def _with_whole_name(self, name: str) -> list[Companion]:
        """Return the companions that are called like this file, with an ending of their own."""
        return self.companions.get(name.lower(), []) if self.names[name.lower()] < 2 else []

"""What belongs to a photo and moves with it: RAW files, the film of a live photo, sidecars of other programs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.scan import PHOTO_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Iterable

RAW: Final = "RAW file"
FILM: Final = "film"
SIDECAR: Final = "sidecar"

_KINDS: Final = {
    **dict.fromkeys(
        ".3fr .arw .cr2 .cr3 .crw .dcr .dng .erf .fff .gpr .iiq .kdc .mef .mos .mrw .nef .nrw .orf .pef .raf .raw .rw2 "
        ".rwl .sr2 .srf .srw .x3f".split(),
        RAW,
    ),
    **dict.fromkeys(".mov .mp4".split(), FILM),
    **dict.fromkeys(".aae .dop .pp3 .thm .xmp".split(), SIDECAR),
}
"""Ending -> what such a file is to a photo of the same name beside it."""


@dataclass(frozen=True, kw_only=True)
class Companion:
    """A file that belongs to a photo."""

    path: str
    kind: str
    """``"RAW file"``, ``"film"`` or ``"sidecar"``."""


def companions(photos: Iterable[str]) -> dict[str, tuple[Companion, ...]]:
    """Find what belongs to each of ``photos``; photos without anything are not in the answer.

    A file belongs to the photo in its folder that has its name up to the ending, in any case, or its whole name
    followed by the ending (``a.jpg.xmp``). Where two photos of the folder have that name, whether they were asked for
    or not, it belongs to neither: nobody can tell which.
    """
    folders: dict[str, list[str]] = {}
    for photo in photos:
        folders.setdefault(os.path.dirname(photo), []).append(photo)
    found: dict[str, tuple[Companion, ...]] = {}
    for folder, inside in folders.items():
        owners, files = _listing(folder)
        for photo in inside:
            name = os.path.basename(photo)
            stem = os.path.splitext(name)[0].lower()
            own = [*files.get(name.lower(), ()), *(files.get(stem, ()) if owners.get(stem, 0) < 2 else ())]
            if own:
                found[photo] = tuple(sorted(own, key=lambda companion: os.fsencode(companion.path)))
    return found


def what_would_be_lost(victim: Iterable[Companion], survivor: Iterable[Companion]) -> str:
    """Name the first kind of file that belongs to the victim and to no survivor; empty where there is none."""
    kept = {companion.kind for companion in survivor}
    return next((companion.kind for companion in victim if companion.kind not in kept), "")


def _listing(folder: str) -> tuple[dict[str, int], dict[str, list[Companion]]]:
    """Return how many photos have each stem, and the companions by the lower-case name that they belong to."""
    owners: dict[str, int] = {}
    files: dict[str, list[Companion]] = {}
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return owners, files
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in PHOTO_SUFFIXES:
            owners[stem.lower()] = owners.get(stem.lower(), 0) + 1
        elif kind := _KINDS.get(suffix.lower()):
            companion = Companion(path=os.path.join(folder, name), kind=kind)
            files.setdefault(stem.lower(), []).append(companion)
    return owners, files

"""What belongs to a photo and moves with it: RAW files, the film of a live photo, sidecars of other programs."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clip_client.dedup.files.file_types import COMPANION_KINDS, PHOTO_SUFFIXES, RAW, RAW_SUFFIXES, is_raw
from clip_client.dedup.types import Companion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def companions(photos: Iterable[str]) -> dict[str, tuple[Companion, ...]]:
    """Find what belongs to each of ``photos``; photos without anything are not in the answer.

    A file belongs to the photo in its folder that has its name up to the ending, in any case, or its whole name
    followed by the ending (``a.jpg.xmp``). Where two photos of the folder have that name, whether they were asked for
    or not, it belongs to neither: nobody can tell which. A RAW file that is itself one of ``photos`` has no other.
    """
    folders: dict[str, list[str]] = {}
    for photo in photos:
        folders.setdefault(os.path.dirname(photo), []).append(photo)
    found: dict[str, tuple[Companion, ...]] = {}
    for folder, inside in folders.items():
        listing = _listing(folder)
        for photo in inside:
            if own := listing.of(photo):
                found[photo] = tuple(sorted(own, key=lambda companion: os.fsencode(companion.path)))
    return found


def what_would_be_lost(victim: Iterable[Companion], survivor: Iterable[Companion]) -> str:
    """Name the first kind of file that belongs to the victim and to no survivor; empty where there is none."""
    kept = {companion.kind for companion in survivor}
    return next((companion.kind for companion in victim if companion.kind not in kept), "")


def differing_companion(
    victim: Iterable[Companion], survivor: Iterable[Companion], hash_of: Callable[[str], str]
) -> str:
    """Name the first kind of file whose content differs from every such file of the survivor; empty if there is none.

    ``hash_of`` is asked about files of equal size only.
    """
    kept = list(survivor)
    return next((one.kind for one in victim if not any(_is_copy(one, other, hash_of) for other in kept)), "")


def _is_copy(one: Companion, other: Companion, hash_of: Callable[[str], str]) -> bool:
    size = _size(one.path)
    if one.kind != other.kind or size is None or size != _size(other.path):
        return False
    sha256 = hash_of(one.path)
    return size == 0 or (bool(sha256) and sha256 == hash_of(other.path))


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


@dataclass(frozen=True, kw_only=True)
class _Folder:
    names: Counter[str]
    """How many files have each name, in lower case."""
    photos: Counter[str]
    """How many photos have each stem, in lower case."""
    raws: Counter[str]
    """How many RAW files have."""
    companions: dict[str, list[Companion]]
    """By the name in lower case that they belong to."""

    def of(self, photo: str) -> list[Companion]:
        name = os.path.basename(photo)
        stem = os.path.splitext(name)[0].lower()
        own = self.companions.get(name.lower(), []) if self.names[name.lower()] < 2 else []
        if not is_raw(name):
            return own + (self.companions.get(stem, []) if self.photos[stem] < 2 else [])
        beside = self.companions.get(stem, []) if self.raws[stem] < 2 and not self.photos[stem] else []
        return own + [companion for companion in beside if companion.kind != RAW]


def _listing(folder: str) -> _Folder:
    found = _Folder(names=Counter(), photos=Counter(), raws=Counter(), companions={})
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return found
    for name in names:
        stem, suffix = os.path.splitext(name.lower())
        found.names[name.lower()] += 1
        found.photos[stem] += suffix in PHOTO_SUFFIXES
        found.raws[stem] += suffix in RAW_SUFFIXES
        if kind := COMPANION_KINDS.get(suffix):
            found.companions.setdefault(stem, []).append(Companion(path=os.path.join(folder, name), kind=kind))
    return found

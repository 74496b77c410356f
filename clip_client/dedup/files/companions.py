"""The companions of a photo, which move with it: RAW files, the film of a live photo, sidecars of other programs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from clip_client.dedup.files.file_types import COMPANION_KINDS, PHOTO_SUFFIXES, RAW_SUFFIXES, is_raw
from clip_client.dedup.types import RAW, Companion


def companions(photos: Iterable[str]) -> dict[str, tuple[Companion, ...]]:
    """Return photo -> its companions, for those of ``photos`` that have any.

    A companion is in the same folder and has the name of the photo up to the ending, in upper or lower case, or the
    whole name of the photo followed by its own ending (``a.jpg.xmp``). If two photos in the folder have that name,
    whether in ``photos`` or not, it belongs to neither. A RAW file in ``photos`` has no other RAW file as companion.
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
        own = self.companions.get(name.lower(), []) if self.names[name.lower()] < 2 else []
        if not is_raw(name):
            return own + (self.companions.get(stem, []) if self.photos[stem] < 2 else [])
        beside = self.companions.get(stem, []) if self.raws[stem] < 2 and not self.photos[stem] else []
        return own + [companion for companion in beside if companion.kind != RAW]

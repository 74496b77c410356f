"""Files that belong to a photo by their names: one rule for the search, the verdict, the move and the purge.

A file belongs to a photo if its name continues the photo's name (``a.jpg.xmp``), or the photo's name up to its ending
(``a.mov``, ``a.docx``, and ``a.MP`` of ``a.MP.jpg``). The photo with the longest such name counts. Further spellings
are those of darktable, Photos and iOS (:data:`_INSERTED`), of macOS (``._a.jpg``), and of Google Takeout, which cuts
names off and moves their counters. What belongs to a RAW file belongs to its photo, too.
"""

from __future__ import annotations

import os
import re
import string
import sys
import unicodedata
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from clip_client.dedup.files.file_types import (
    COMPANION_KINDS,
    PHOTO_SUFFIXES,
    PICTURES,
    RESOURCE_FORK,
    companion_kind,
    is_raw,
    suffix_of,
)
from clip_client.dedup.types import RAW, Companion

_OTHER_CASE: Final = str.maketrans(string.ascii_letters, string.ascii_letters.swapcase())
_INSERTED: Final = {
    ".xmp": re.compile(r"_\d\d+(?=\.[^.]+$)"),
    ".mov": re.compile("_3$"),
    ".aae": re.compile(r"(?<=^IMG_)O(?=\d)", re.IGNORECASE),
}
"""Ending of a companion -> what darktable, Photos and iOS insert into the photo's name."""
_TAKEOUT: Final = re.compile(r"(?P<title>.*?)(?P<counter>(?:\(\d+\))?)\.json", re.DOTALL | re.IGNORECASE)
_TAKEOUT_ENDING: Final = "supplemental-metadata"
_LEAST_CUT: Final = 44
"""Bytes of a name that Takeout may have cut off: it leaves 46, and up to two fewer within a letter."""
_COUNTER: Final = re.compile(r"\(\d+\)$")
_LAST: Final = chr(sys.maxunicode)


class FolderNames:
    def __init__(self, folder: str, listed: Collection[str], photos: Collection[str] = ()) -> None:
        """``photos`` are names of photos in any spelling: they may have other endings, or be gone."""
        self._folds_case = _folds_case(folder, listed)
        known = self._by_key(listed)
        names = [*listed, *(name for name in photos if self._key(name) not in known)]
        self._by_name = self._by_key(names)
        forks = {name for name in names if name.startswith("._") and self._key(name[2:]) in self._by_name}
        named = {name for name in photos if suffix_of(name) not in COMPANION_KINDS}
        self.photos = {name for name in names if suffix_of(name) in PHOTO_SUFFIXES or name in named} - forks
        self._raws = {name for name in names if is_raw(name)} - forks
        # What continues the stem of a photo and of a RAW file belongs to the photo.
        self._by_stem = {**self._by_key(self._raws, _stem), **self._by_key(self.photos, _stem)}
        self._owning = self.photos | self._raws
        self._sorted = sorted(self._by_key(self._owning))
        self._owners = {
            name: found for name in listed if name not in self.photos and (found := self._find_owners(name))
        }
        self._owned = defaultdict[str, list[str]](list)
        for name, owners in self._owners.items():
            for owner in owners:
                self._owned[owner].append(name)
        self.lone_raws = self._raws - self._owners.keys()

    def of(self, photo: str) -> Iterator[tuple[str, Collection[str]]]:
        spellings = self._by_name[self._key(photo)]
        return self._below(photo if photo in spellings else spellings[0])

    def _below(self, owner: str, others: Collection[str] | None = None) -> Iterator[tuple[str, Collection[str]]]:
        for name in self._owned.get(owner, ()):
            beside = [one for one in self._owners[name] if one != owner] if others is None else others
            yield name, beside
            yield from self._below(name, beside)

    def _key(self, name: str) -> str:
        name = unicodedata.normalize("NFC", name)
        return name.casefold() if self._folds_case else name

    def _by_key(self, names: Iterable[str], part: Callable[[str], str] = str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in sorted(names):
            found.setdefault(self._key(part(name)), []).append(name)
        return found

    def _find_owners(self, name: str) -> list[str]:
        kind, key = companion_kind(name), self._key(name)
        if kind == RESOURCE_FORK:
            return self._by_name.get(key[2:], [])
        if (match := _TAKEOUT.fullmatch(key)) and (found := self._of_takeout(match["title"], match["counter"])):
            return found
        owning = self.photos if kind == RAW else self._owning
        for base in _bases(key, kind):
            for table in (self._by_name, self._by_stem):
                if found := [one for one in table.get(base, ()) if one in owning]:
                    return found
        return []

    def _of_takeout(self, title: str, counter: str) -> list[str]:
        name, _, ending = title.rpartition(".")
        if not (name and _TAKEOUT_ENDING.startswith(ending)):
            name = title
        stem, ending = os.path.splitext(name)
        # Takeout gives an edited version no JSON of its own, and names it in the language of the account.
        edited = re.compile(re.escape(f"{stem}-") + r"[^\W\d_]+" + re.escape(f"{counter}{ending}"))
        among = slice(bisect_left(self._sorted, f"{stem}-"), bisect_left(self._sorted, f"{stem}-{_LAST}"))
        keys = [f"{stem}{counter}{ending}", *filter(edited.fullmatch, self._sorted[among])]
        if whole := [one for key in keys for one in self._by_name.get(key, ())]:
            return [one for one in whole if one in self._owning]
        if len(os.fsencode(title)) < _LEAST_CUT:
            return []
        among = slice(bisect_left(self._sorted, name), bisect_left(self._sorted, f"{name}{_LAST}"))
        longer = [one for key in self._sorted[among] for one in self._by_name[key] if one in self._owning]
        return [one for one in longer if "".join(_COUNTER.findall(_stem(one))) == counter] or longer


def companions(photos: Iterable[str]) -> dict[str, tuple[Companion, ...]]:
    folders, found = defaultdict[str, list[str]](list), dict[str, tuple[Companion, ...]]()
    for photo in photos:
        folders[os.path.dirname(photo)].append(photo)
    for folder, inside in folders.items():
        names = FolderNames(folder, _files_in(folder), {os.path.basename(photo) for photo in inside})
        for photo in inside:
            if own := dict(names.of(os.path.basename(photo))):
                found[photo] = tuple(
                    Companion(
                        path=os.path.join(folder, name),
                        kind=companion_kind(name),
                        others=tuple(os.path.join(folder, one) for one in own[name]),
                    )
                    for name in sorted(own, key=os.fsencode)
                )
    return found


def differing_companion(
    duplicate: Iterable[Companion],
    kept: Collection[Companion],
    hash_of: Callable[[str], str],
    says_all: Callable[[str, str], bool] = lambda other, one: True,
) -> str:
    """Return the kind of a companion whose content the kept photo's companions do not have; empty if they have all."""
    for one in duplicate:
        if not any(_is_copy(one, other, hash_of) and says_all(other.path, one.path) for other in kept):
            return one.kind
    return ""


def _is_copy(one: Companion, other: Companion, hash_of: Callable[[str], str]) -> bool:
    with suppress(OSError):
        size = os.stat(one.path).st_size
        if one.kind == other.kind and size == os.stat(other.path).st_size:
            sha256 = hash_of(one.path)
            return size == 0 or (bool(sha256) and sha256 == hash_of(other.path))
    return False


def _files_in(folder: str) -> list[str]:
    with suppress(OSError), os.scandir(folder or os.curdir) as entries:
        return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
    return []


def _folds_case(folder: str, names: Collection[str]) -> bool:
    known = set(names)
    for name in names:
        if (other := name.translate(_OTHER_CASE)) not in known:
            return os.path.lexists(os.path.join(folder, other))
    return False


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _bases(name: str, kind: str) -> Iterator[str]:
    if kind != RAW:
        yield name
    rest, _, _ = name.rpartition(".")
    shorter = rest
    while shorter:
        yield shorter
        # Only one ending of a film or RAW file counts: "2019.12.24 1.mov" does not belong to "2019.jpg".
        shorter = "" if kind in PICTURES else shorter.rpartition(".")[0]
    if inserted := _INSERTED.get(suffix_of(name)):
        yield inserted.sub("", rest)

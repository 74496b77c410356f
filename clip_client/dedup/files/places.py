"""Folders that belong to another program or to the system: recycle bins, snapshots, libraries and caches.

Nothing in them moves. The originals in a library last: they are searched and kept like other photos. All else vanishes
by itself or can be made again: it is searched only if a person names it, and never kept in place of another file.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from clip_client.dedup.files.directories import DirectorySet, why_read_only


def _is_immich(folder: str) -> bool:
    """Tell whether Immich made a folder: by its marker file, or, before version 1.114, by the folders beside it."""
    above = os.path.dirname(folder)
    if any(os.path.lexists(os.path.join(one, ".immich")) for one in (folder, above)):
        return True
    names = ("thumbs", "encoded-video", "profile", "library", "upload")
    *previews, library, upload = (os.path.isdir(os.path.join(above, name)) for name in names)
    return all(previews) and (library or upload)


class Place(NamedTuple):
    names: str
    what: str
    is_lasting: bool = False
    """Its files stay until a person deletes them."""
    is_one: Callable[[str], bool] = lambda folder: True


READ_ONLY: Final = "a folder that you cannot write to"
"""Name of a folder that is not a :class:`Place`, but may be in a snapshot of an unknown name."""
_PLACES: Final = (
    Place(r"#recycle|@recycle|\$recycle\.bin|recycler|\.recycle|\.trash[^/]*|\.local/share/trash|files_trashbin",
          "a recycle bin"),
    Place(r"#snapshot|\.snapshots?|~snapshot|@recently-snapshot|\.zfs/snapshot", "a snapshot"),
    Place(r"files_versions|\.stversions", "a folder of old versions"),
    Place(r"lost\+found", "lost+found"),
    Place(r"system volume information", "Windows' System Volume Information"),
    Place(r"@eadir", "Synology's thumbnails"),
    Place(r"\.@__thumb", "QNAP's thumbnails"),
    Place(r"\.thumbnails", "thumbnails"),
    Place(r"appdata_[^/]*", "Nextcloud's previews"),
    Place(r"[^/]*\.lrdata", "Lightroom's previews"),
    Place(r"thumbs|encoded-video|profile", "Immich's previews", is_one=_is_immich),
    # Libraries: what is not among their originals was made from them.
    Place(r"[^/]*\.photoslibrary/(?!originals/|masters/)[^/]+", "the previews of Apple Photos"),
    Place(r"[^/]*\.(?:migrated)?photolibrary/(?!masters/|originals/|modified/)[^/]+", "iPhoto's previews"),
    Place(r"[^/]*\.(?:migrated)?aplibrary/(?!masters/)[^/]+", "Aperture's previews"),
    Place(r"[^/]*\.lrlibrary/(?!originals/)[^/]+/(?!originals/)[^/]+", "Lightroom's previews"),
    Place(r"[^/]*\.photoslibrary", "an Apple Photos library", is_lasting=True),
    Place(r"[^/]*\.(?:migrated)?photolibrary", "an iPhoto library", is_lasting=True),
    Place(r"[^/]*\.(?:migrated)?aplibrary", "an Aperture library", is_lasting=True),
    Place(r"[^/]*\.lrlibrary", "a Lightroom library", is_lasting=True),
    Place(r"library|upload", "Immich's library", is_lasting=True, is_one=_is_immich),
)  # fmt: skip
"""The first that fits a folder, or one above it, counts."""
_PATTERNS: Final = [re.compile(f"(?<=/)(?:{place.names})(?=/)", re.IGNORECASE) for place in _PLACES]


def place_of(folder: str) -> Place | None:
    return named_place(folder) or named_place(os.path.realpath(folder))


def named_place(folder: str) -> Place | None:
    path = os.path.abspath(folder)
    text = f"{path.replace(os.sep, '/')}/"
    for place, pattern in zip(_PLACES, _PATTERNS, strict=True):
        if any(place.is_one(path[: found.end()]) for found in pattern.finditer(text)):
            return place
    return None


def why_not_kept(paths: Iterable[str], references: Iterable[str] = ()) -> dict[str, str]:
    """Return path -> where a photo is, for photos that no other photo may move in favour of."""
    lasting = DirectorySet(references)

    @functools.cache
    def place_name(folder: str) -> str:
        place = place_of(folder)
        return place.what if place is not None and not place.is_lasting else ""

    is_read_only = functools.cache(why_read_only)
    found = {}
    for path in paths:
        folder = os.path.dirname(os.path.abspath(path))
        if what := place_name(folder):
            found[path] = what
        elif is_read_only(folder) and not lasting.contains(path):
            found[path] = READ_ONLY
    return found
